"""What SGLang's log says, 0.5.2 to 0.5.23: all spellings beside each other.

Its launcher kills itself with all its children once one of them has failed, so an exit code tells nothing.
"""

from typing import Final

from outrider.engines.host_failures import HOST_FAILURES, HOST_FATAL
from outrider.engines.log_rules import LineRule, LogFailure, LogRules, NoteRule, PhaseRule, ProgressRule

_PHASES: Final = (
    PhaseRule("config", "server_args=ServerArgs(", r"^server_args=ServerArgs\("),
    # its arguments were accepted
    PhaseRule("workers", "Init torch distributed begin", r"^Init torch distributed begin"),  # until 0.5.20
    PhaseRule("workers", "Init parallel begin", r"^Init parallel begin"),  # 0.5.21 and later
    PhaseRule("target_weights", "Load weight begin. ", r"^Load weight begin\. ", after="config"),
    PhaseRule("drafter_weights", "Load weight begin. ", r"^Load weight begin\. ", after="target_weights", nth=2),
    PhaseRule("kv_cache", "KV Cache is allocated. ", r"^KV Cache is allocated\. ", after="target_weights"),
    PhaseRule("kv_cache", "Memory pool end. ", r"^Memory pool end\. ", after="target_weights"),
    PhaseRule("compile", "Compiling ", r"^(?:Compiling|Try DeepGEMM JIT Compiling|Entering DeepGEMM)", after="target_weights"),
    # cuda graph, draft cuda graph, target verify CUDA graph, draft extend CUDA graph, cpu graph ...
    PhaseRule("graphs", " graph begin. ", r"^Capture [\w ]*graph begin\. ", after="target_weights"),
    PhaseRule("serving", "Uvicorn running on ", r"^INFO:\s+Uvicorn running on "),
    PhaseRule("ready", "The server is fired up and ready to roll!", r"^The server is fired up and ready to roll!"),
    PhaseRule("token", "Decode batch", r"^Decode batch[.,] ", after="ready"),
    PhaseRule("token", ' HTTP/1.1" 200', r'"POST /(?:v1/(?:chat/)?completions|generate) HTTP/1\.1" 200', after="ready"),
)

_PROGRESS: Final = (
    ProgressRule("% Completed | ", r"% Completed \| (?P<done>\d+)/(?P<total>\d+) \[(?P<elapsed>[\d:]+)<"),
    ProgressRule("Capturing ", r"^Capturing .+?\| (?P<done>\d+)/(?P<total>\d+) \[(?P<elapsed>[\d:]+)<"),
)

_FATAL: Final = (
    LineRule(" hit an exception: ", r"^\w+ hit an exception: "),
    LineRule("Received sigquit from a child process", r"^Received sigquit from a child process"),
    LineRule("SIGQUIT received", r"^SIGQUIT received\."),  # 0.5.3 and later
    LineRule(
        "Initialization failed. ", r"^(?:RuntimeError: )?Initialization failed\. (?:Please see the error messages above|warmup error)"
    ),
    LineRule("scheduler died during initialization", ""),  # 0.5.10 and later
    LineRule(" scheduler is dead", r"^Rank \d+ scheduler is dead"),
    LineRule(" crashed with exit code", r"^Subprocess \S+ \(pid=\d+\) crashed with exit code"),  # 0.5.10 and later
    LineRule("atchdog timeout (", r"^\w* ?[Ww]atchdog timeout \((?!.*soft=True)"),
)

_STOPPED: Final = (LineRule("SIGTERM received", r"^SIGTERM received\. "), LineRule("Gracefully exiting...", r"^Gracefully exiting\.\.\."))

_ANSWERING: Final = (
    LineRule("Decode batch", r"^Decode batch[.,] "),
    LineRule(' HTTP/1.1" 200', r'"POST /(?:v1/(?:chat/)?completions|generate) HTTP/1\.1" 200'),
)

_NOTES: Final = (
    NoteRule(
        "requests-capped",
        "Max running requests is reset to ",  # 0.5.4 and later
        r"^Max running requests is reset to (\d+) for speculative decoding",
        "at most {0} requests run at once, because it drafts",
        "against a server without drafts that takes more, it looks slow for the wrong reason",
        "--max-running-requests, equal in both arms of a comparison",
    ),
    NoteRule(
        "draft-length",
        "Overriding the draft model's max_position_embeddings to ",  # 0.5.3 and later
        r"^Overriding the draft model's max_position_embeddings to (\d+)",
        "the drafter's positions are taken to reach {0}",
        "it drafts where it was not trained: acceptance may fall in long requests",
    ),
    NoteRule(
        "context-length",
        "is greater than the derived context_length",
        r"^Warning: (\S+ \S+) context_length \((\d+)\) is greater than the derived context_length \((\d+)\)",
        "it serves {1} tokens, and a model's config stops at {2} ({0})",
        "answers, or acceptance, may be wrong beyond",
        "a shorter --context-length",
    ),
    NoteRule(
        "graphs-fallback",
        "Disable piecewise CUDA graph because ",  # until 0.5.13
        r"^Disable piecewise CUDA graph because (.+)",
        "prefill is not captured in CUDA graphs: {0}",
        "slower first tokens",
    ),
    NoteRule(
        "graphs-fallback",
        "disabling prefill CUDA graph",  # 0.5.14 and later
        r"^(.+); disabling prefill CUDA graph",
        "prefill is not captured in CUDA graphs: {0}",
        "slower first tokens",
    ),
    NoteRule(
        "no-graphs",
        "disabled because",
        r"^(?:Cuda|CUDA) graph (?:and server warmup )?(?:is|are) disabled because (?:of )?(.+)",
        "no CUDA graphs are captured: {0}",
        "each step is launched kernel by kernel: drafting may cost more than it saves",
        "another --attention-backend",
    ),
    NoteRule(
        "attention-backend",
        "ttention backend",
        r"^Attention backend not (?:explicitly )?specified\. Use (\S+) backend by default",
        "attention by {0}",
    ),
    NoteRule("attention-backend", " as attention backend", r"^Us(?:e|ing) (\S+) as attention backend", "attention by {0}"),
    NoteRule(
        "no-overlap",
        "Overlap schedule",
        r"^Overlap scheduler? is (?:disabled because of using|disabled for|not implemented for) (.+?)\.?$",
        "scheduling waits for each step ({0})",
        "slower than a later version that overlaps both",
    ),
    NoteRule(
        "token-map-ignored",
        "Speculative token map specified",
        r"^Speculative token map specified, but EAGLE3 models already have this",
        "--speculative-token-map is ignored: the drafter has a vocabulary map of its own",
    ),
    NoteRule(
        "memory-unbalanced",
        "The memory capacity is unbalanced",
        r"^The memory capacity is unbalanced",
        "other processes hold memory of some of the devices",
        "the KV cache is as large as the fullest device allows, or the start fails",
        "end what else uses the devices",
    ),
    NoteRule(
        "sized",
        "max_running_requests=",
        r"^max_total_num_tokens=(\d+),.* max_running_requests=(\d+), context_len=(\d+)",
        "room for {0} tokens, {1} requests at once, {2} tokens each",
    ),
    NoteRule(
        "health-fails",
        "Health check failed",
        r"^Health check failed\. Server couldn't get a response",
        "its own health check has got no token",
        "it hangs, or is overloaded",
    ),
)

_FREE_MEMORY: Final = "give less to the cache (--mem-fraction-static), serve fewer requests at once, or use more devices (--tp-size)"

_FAILURES: Final = (
    LogFailure(
        r"Unknown speculative algorithm|--speculative-algorithm: invalid choice",
        "this version does not know the algorithm",
        "`outrider preflight` names the algorithms of each version",
        "speculative-method",
    ),
    LogFailure(
        r"Pipeline parallelism (?:is not compatible|currently only supports)",
        "it does not draft over pipeline stages",
        "one stage (--pp-size 1), and tensor parallelism instead",
        "pipeline-parallel",
    ),
    LogFailure(
        r"(?:Cannot find model module\. |Model architectures \[)'(\w+)'",
        "it does not know the architecture {0}",
        "a version that does, or export in a layout that it reads: it does not know vLLM's names of drafters",
        "unknown-architecture",
    ),
    LogFailure(
        r"(?:'|Model )(\w+)(?:' object has no attribute '| does not implement )(?:set_eagle3_layers_to_capture|get_embed_and_head)",
        "its class {0} for this target cannot hand out what the drafter reads",
        "a version or engine whose class can",
        "target-interface",
    ),
    LogFailure(
        r"object has no attribute 'draft_vocab_size'",
        "the drafter's config does not say how large its vocabulary is",
        "write draft_vocab_size into it; null takes the target's head",
        "draft-vocabulary",
    ),
    LogFailure(
        r"EAGLE3 currently only supports 1 layer",
        "it builds drafters of one layer only",
        "SGLang 0.5.12 or later, or one layer",
        "drafter-layers",
    ),
    LogFailure(
        r"context_length \((\d+)\) is greater than the derived context_length \((\d+)\)",
        "it is to serve {0} tokens, and a model's config stops at {1}: the drafter's, if the target's is longer",
        "max_position_embeddings of the target in the drafter's config, or a shorter --context-length",
        "context-length",
    ),
    LogFailure(
        r"Attempted to load weight \((.+?)\) into parameter \((.+)\)",
        "a tensor has shape {0}, its config asks for {1}",
        "`outrider preflight` names the tensor; config and weights are of different drafters",
        "weight-shape",
    ),
    LogFailure(
        r"The size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)",
        "a tensor has size {0} where {1} is needed",
        "`outrider preflight` compares the shapes of target and drafter",
        "weight-shape",
        phases=("target_weights", "drafter_weights"),
    ),
    LogFailure(
        r"^AssertionError: (assert loaded_weight\.shape.+|assert param\S* == loaded_weight.+)",
        "a tensor has another shape than its config asks for: {0}",
        "`outrider preflight` names the tensor; config and weights are of different drafters",
        "weight-shape",
    ),
    LogFailure(
        r"mat1 and mat2 shapes cannot be multiplied \((\w+) and (\w+)\)",
        "states of shape {0} meet weights of shape {1}",
        "often the drafter is made for another number or width of target states: `outrider preflight`",
        "states-width",
    ),
    LogFailure(
        r"Some weights (?:are|were) not initialized from checkpoints?: (.+)",
        "tensors that it needs are missing: {0}",
        "`outrider preflight` names the tensors that this version reads; export again for it",
        "missing-weight",
    ),
    LogFailure(
        r"^KeyError: '((?:model\.|layers\.|midlayer|lm_head|embed_tokens|fc|norm|d2t|t2d)[\w.]*)'",
        "the drafter or target holds a tensor that it does not know: {0}",
        "`outrider preflight` names the tensors that this version reads; export again for it",
        "unexpected-weight",
    ),
    LogFailure(
        r"Cannot find any model weights with `(.+?)`",
        "weight files are missing in {0}",
        "download or copy the folder again",
        "missing-weight-file",
    ),
    LogFailure(
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "out of memory: none is left for the KV cache",
        "more for all (--mem-fraction-static), or more devices (--tp-size)",
        "out-of-memory-kv-cache",
    ),
    LogFailure(r"(Capture \w+ (?:cuda )?graph failed: .*out of memory.*)", "out of memory: {0}", _FREE_MEMORY, "out-of-memory-graphs"),
    LogFailure(
        r"(Capture .*graph failed: .*)",
        "graphs cannot be captured: {0}",
        "--disable-cuda-graph shows whether it serves without; another --attention-backend",
        "graph-capture",
    ),
    LogFailure(
        r"OutOfMemoryError: (.+)",
        "out of memory while weights were loaded: {0}",
        "more devices (--tp-size), a smaller dtype, or end what else uses the device",
        "out-of-memory-weights",
        phases=("workers", "target_weights", "drafter_weights"),
    ),
    LogFailure(
        r"OutOfMemoryError: (.+)",
        "out of memory while it served: {0}",
        _FREE_MEMORY,
        "out-of-memory-serving",
        phases=("serving", "ready", "token"),
    ),
    LogFailure(r"OutOfMemoryError: (.+)", "out of memory: {0}", _FREE_MEMORY, "out-of-memory"),
    LogFailure(
        r"[Aa]ttention backend (?:is |should be )?(?:not supported|invalid)|requires (?:the )?(\w+) attention backend",
        "this attention back-end does not serve this model",
        "leave --attention-backend out",
        "attention-backend",
    ),
    LogFailure(
        r"[Hh]ead (?:size|dim) (\d+) is not supported|Unsupported head_dim: (\d+)",
        "no kernel takes heads of size {0}",
        "another --attention-backend",
        "head-size",
    ),
    LogFailure(
        r"Unknown quantization method: (\S+)|quantization method (\S+) is not supported",
        "it does not know the quantisation {0}",
        "a version that does, or weights quantised otherwise",
        "quantisation",
    ),
    LogFailure(
        r"[Ww]atchdog timeout \(",
        "it has answered nothing for the time of its own watchdog: it hung",
        "the stacks that it wrote before say where; --watchdog-timeout if it was only slow",
        "hung",
    ),
    LogFailure(
        r"Subprocess \S+ \(pid=\d+\) crashed with exit code (-?\d+)|scheduler died during initialization \(exit code: (-?\d+)\)|"
        r"^(Rank \d+ scheduler) is dead",
        "one of its processes died",
        "-9: killed, often for want of memory, see dmesg; -6 or -11: native code crashed",
        "worker-died",
    ),
)

LOG: Final = LogRules(_PHASES, _PROGRESS, _NOTES, (*_FAILURES, *HOST_FAILURES), (*_FATAL, *HOST_FATAL), _STOPPED, _ANSWERING)
