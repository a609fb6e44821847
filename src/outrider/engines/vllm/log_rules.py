"""What vLLM's log says, 0.9.2 to 0.33.0: all spellings beside each other."""

from typing import Final

from outrider.engines.host_failures import HOST_FAILURES, HOST_FATAL
from outrider.engines.log_rules import LineRule, LogFailure, LogRules, PhaseRule, ProgressRule
from outrider.engines.vllm.log_notes import NOTES

_PHASES: Final = (
    PhaseRule("config", "non-default args: ", r"^non-default args: "),
    PhaseRule("config", "vLLM API server version ", r"^vLLM API server version "),  # until 0.24
    PhaseRule("config", "Resolved architecture: ", r"^Resolved architecture: "),  # 0.10.1 and later
    # its config was accepted
    PhaseRule("workers", "Initializing a V1 LLM engine (v", r"^Initializing a V1 LLM engine \(v"),
    PhaseRule("target_weights", "Starting to load model ", r"^Starting to load model .+\.\.\."),
    PhaseRule("target_weights", "Loading model from scratch...", r"^Loading model from scratch\.\.\."),
    # runner V1 says so; of V2 the lines that come before it, or at its end
    PhaseRule("drafter_weights", "Loading drafter model...", r"^Loading drafter model\.\.\."),
    PhaseRule("drafter_weights", "Using Eagle3 auxiliary layers from ", r"^Using Eagle3 auxiliary layers from ", after="target_weights"),
    PhaseRule("drafter_weights", "Loading weights took ", r"^Loading weights took ", after="target_weights", nth=2),
    PhaseRule("compile", "for vLLM's torch.compile", r"^(?:\[\w+\] )?Using cache directory: ", after="target_weights"),
    PhaseRule("compile", "Dynamo bytecode transform time: ", "", after="target_weights"),
    PhaseRule("compile", "Directly load AOT compilation from path ", "", after="target_weights"),
    PhaseRule("compile", "Warming up model for the compilation", "", after="target_weights"),  # on a CPU
    PhaseRule("kv_cache", "Available KV cache memory: ", r"^Available KV cache memory: ", after="target_weights"),
    PhaseRule("kv_cache", "for KV cache on node", r"^Explicitly set \(", after="target_weights"),  # on a CPU
    PhaseRule("kv_cache", " KV cache size: ", r"^\w+ KV cache size: [\d,]+ tokens", after="target_weights"),
    # the bar of V1; V2 has one for each of target, prefill and decode
    PhaseRule("graphs", " CUDA graph", r"^Capturing [\w ]*CUDA graph", after="kv_cache"),
    PhaseRule("serving", "Starting vLLM ", r"^Starting vLLM (?:API )?server "),
    PhaseRule("ready", "Application startup complete.", r"^INFO:\s+Application startup complete\."),
    PhaseRule("token", '/completions HTTP/1.1" 200', r'"POST /v1/(?:chat/)?completions HTTP/1\.1" 200', after="ready"),
    PhaseRule("token", "Avg generation throughput: ", r"Avg generation throughput: (?!0\.0 )", after="ready"),
)

_PROGRESS: Final = (
    ProgressRule("% Completed | ", r"% Completed \| (?P<done>\d+)/(?P<total>\d+) \[(?P<elapsed>[\d:]+)<"),
    ProgressRule("Capturing ", r"^Capturing .+?\| (?P<done>\d+)/(?P<total>\d+) \[(?P<elapsed>[\d:]+)<"),
)

_FATAL: Final = (
    LineRule("EngineCore failed to start", r"^EngineCore failed to start"),
    LineRule("EngineCore encountered a fatal error", r"^EngineCore encountered a fatal error"),
    LineRule("WorkerProc failed to start", r"^WorkerProc failed to start"),
    # a worker, the engine, or, with several API servers or data parallelism, one of theirs; the process may end with code 0
    LineRule(" died unexpectedly", r"^(?:Worker proc|Engine core proc|Engine core process|API server process) \S+ died unexpectedly"),
    LineRule("engine core exited unexpectedly", r"^\[shutdown\] MPClient: engine core exited unexpectedly"),  # 0.23 and later
    LineRule("Engine core initialization failed", r"^RuntimeError: Engine core initialization failed"),
)

_STOPPED: Final = (
    LineRule("[shutdown] API server: shutdown triggered"),  # 0.23 and later
    LineRule("trigger received signal=SIG", r"^\[shutdown\] EngineCore: trigger received signal=SIG(?:TERM|INT)"),
    LineRule("Received KeyboardInterrupt, shutting down", ""),
    LineRule("Shutting down", r"^INFO:\s+Shutting down$"),
)

_ANSWERING: Final = (
    LineRule('/completions HTTP/1.1" 200', r'"POST /v1/(?:chat/)?completions HTTP/1\.1" 200'),
    LineRule("Avg generation throughput: ", r"Avg generation throughput: (?!0\.0 )"),
)

_KV_CACHE_FIX: Final = (
    "give the cache less (VLLM_CPU_KVCACHE_SPACE in GiB on a CPU, --gpu-memory-utilization on a GPU), or serve shorter requests"
)
_OUT_OF_MEMORY: Final = r"(?:OutOfMemoryError: |(?=Failed to load model - not enough GPU memory))(.+)"

_FAILURES: Final = (
    LogFailure(
        r"There is no module or parameter named '([^']+)'",
        "the drafter or target holds a tensor that it does not know: {0}",
        "`outrider preflight` names the tensors that this version reads; export again for it",
        "unexpected-weight",
    ),
    LogFailure(
        r"Following weights were not initialized from checkpoint: (.+)",
        "tensors that it needs are missing: {0}",
        "`outrider preflight` names the tensors that this version reads; export again for it",
        "missing-weight",
    ),
    LogFailure(
        r"Weight files referenced in index but missing: (.+)|Cannot find any model weights with `(.+?)`",
        "weight files are missing: {0}",
        "download or copy the folder again",
        "missing-weight-file",
    ),
    LogFailure(
        r"Tried to load weights of size (.+?)\s?to a parameter of size (.+)|"
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
        r"Model architectures \[(.+?)\] are not supported for now",
        "it does not know the architecture {0}",
        "a version that does, or export in a layout that it reads",
        "unknown-architecture",
    ),
    LogFailure(
        r"Model architectures \[(.+?)\] failed to be inspected",
        "the class {0} of this model cannot be imported",
        "the traceback above it says why, often a missing module: `outrider engine add` makes a fresh environment",
        "architecture-not-importable",
    ),
    LogFailure(
        r"(\w+) is only supported for .+? models\. Got (?:[\w.]+=)?'?([\w-]+)",
        "it does not accept {0} for targets of type {1}",
        "vLLM 0.22.0 or later has no such list; `outrider engine gate` lifts it in older ones",
        "target-type",
    ),
    LogFailure(
        r"Model does not support EAGLE3 interface",
        "its class for this target cannot hand out the states that the drafter reads",
        "a version or engine whose class can",
        "target-interface",
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
        r"shape '(\[.+?\])' is invalid for input of size (\d+)",
        "a tensor of {1} numbers is read in the shape {0}",
        "often the drafter reads other layers, or another number or width of states, than the target hands out: `outrider preflight`",
        "states-width",
        phases=("compile", "kv_cache", "graphs", "serving", "ready", "token"),
    ),
    LogFailure(
        r"validation error for SpeculativeConfig: (?!Value error)([\w.]+): (.+)",
        "--speculative-config is refused: {0}: {1}",
        "`outrider preflight` names the fields and methods of each version",
        "speculative-config",
    ),
    LogFailure(
        r"num_speculative_tokens was provided but without speculative model|"
        r"Unsupported speculative method: '?([\w-]+)|(\S+) is not supported yet\.$",
        "it cannot draft so: the method is not one that this version or runner knows",
        "`outrider preflight` names the methods of each version; the drafter's folder must exist",
        "speculative-method",
    ),
    LogFailure(
        r"Target and draft model should have the same vocabulary size\. Target model vocab_size=(\d+)\. Draft model vocab_size=(\d+)",
        "the drafter has a vocabulary of {1} tokens, the target one of {0}",
        "a drafter made for this target, or a method with a draft vocabulary (eagle3)",
        "vocabulary",
    ),
    LogFailure(
        r"User-specified max_model_len \((\d+)\) is greater than the derived max_model_len \((.+?)\)",
        "it is to serve {0} tokens, and the model's config stops at {1}",
        "a shorter --max-model-len, or a RoPE scaling in the config that reaches so far",
        "context-length",
    ),
    LogFailure(
        r"No common block size for (\d+)(?: \((.+)\))?",
        "target and drafter have attention of different kinds, which share no block size of the KV cache ({0})",
        "--block-size 32 or another that both take, another --attention-backend, or a drafter with the target's kind of attention",
        "no-common-block-size",
    ),
    LogFailure(
        r"pin_memory=True requires|[Pp]inned memory is not available",
        "it needs pinned memory, which this machine or build does not have",
        "another method, or a build for the device: on a CPU such states cannot be handed out",
        "pinned-memory",
    ),
    LogFailure(
        r"No valid attention backend found for (.+?) with|Selected backend (\S+) is not valid for this configuration\. Reason: (.+)|"
        r"Unknown attention backend: '(.+?)'|Invalid attention backend for (.+)",
        "no attention back-end serves this model here: {0}",
        "the message names the reasons (head size, dtype, block size, device): leave --attention-backend out, or another dtype",
        "attention-backend",
    ),
    LogFailure(r"[Hh]ead size (\d+) is not supported", "no kernel takes heads of size {0}", "another --attention-backend", "head-size"),
    LogFailure(
        r"Bfloat16 is only supported on GPUs with compute capability", "this GPU does not compute in bfloat16", "--dtype float16", "dtype"
    ),
    LogFailure(
        r"Unknown quantization method: (\S+)|is not supported for quantization method (\S+?)\.|"
        r"quantization method (\S+) is not supported|The quantization method (\S+) is",
        "it does not know, or not with this dtype, the quantisation {0}",
        "a version that does, another --dtype, or weights quantised otherwise",
        "quantisation",
    ),
    LogFailure(
        r"Quantization method specified in the model config \((.+?)\) does not match",
        "the weights are quantised as {0}, and another way was asked for",
        "leave --quantization out",
        "quantisation",
    ),
    LogFailure(
        r"World size \((\d+)\) is larger than the number of available GPUs \((\d+)\)",
        "it is to use {0} GPUs, and {1} are there",
        "a smaller --tensor-parallel-size or --pipeline-parallel-size, or see CUDA_VISIBLE_DEVICES",
        "too-few-gpus",
    ),
    LogFailure(
        r"Total number of attention heads \((\d+)\) must be divisible by tensor parallel size \((\d+)\)",
        "{0} attention heads cannot be split over {1} devices",
        "another --tensor-parallel-size; for the drafter alone draft_tensor_parallel_size 1",
        "tensor-parallel",
    ),
    LogFailure(
        r"Available memory on node \d+ \((.+?)\).*less than requested memory for kv \((.+?)\)",
        "out of memory: {1} asked for the KV cache, {0} there",
        _KV_CACHE_FIX,
        "out-of-memory-kv-cache",
    ),
    LogFailure(
        r"No available memory for the cache blocks",
        "out of memory: none is left for the KV cache",
        "more for all (--gpu-memory-utilization), or less for the rest: more devices, fewer --max-num-batched-tokens",
        "out-of-memory-kv-cache",
    ),
    LogFailure(
        r"max seq len \((\d+)\), \((.+?) KV cache is needed, which is larger than the available KV cache memory \((.+?)\)",
        "out of memory: one request of {0} tokens needs {1} of KV cache, and {2} is there",
        "a shorter --max-model-len, or more for the cache (--gpu-memory-utilization)",
        "out-of-memory-kv-cache",
    ),
    LogFailure(
        r"Free memory on device .*? (?:is less than desired|Desired) (.+)",
        "out of memory: less is free on the device than it wants ({0})",
        "end what else uses the device, or lower --gpu-memory-utilization",
        "out-of-memory-at-start",
    ),
    LogFailure(
        r"Error in memory profiling\. Initial free memory",
        "another process let go of the device's memory while it measured what is free",
        "one server after the other on one device",
        "memory-changed",
    ),
    LogFailure(
        _OUT_OF_MEMORY,
        "out of memory while weights were loaded: {0}",
        "more devices (--tensor-parallel-size), a smaller dtype, or end what else uses the device",
        "out-of-memory-weights",
        phases=("workers", "target_weights", "drafter_weights"),
    ),
    LogFailure(
        _OUT_OF_MEMORY,
        "out of memory while graphs were captured: {0}",
        "fewer or smaller graphs (--max-num-seqs, cudagraph_capture_sizes), or a lower --gpu-memory-utilization",
        "out-of-memory-graphs",
        phases=("graphs",),
    ),
    LogFailure(
        _OUT_OF_MEMORY,
        "out of memory while it served: {0}",
        "a lower --gpu-memory-utilization, fewer --max-num-batched-tokens or --max-num-seqs",
        "out-of-memory-serving",
        phases=("serving", "ready", "token"),
    ),
    LogFailure(
        _OUT_OF_MEMORY,
        "out of memory: {0}",
        "more devices (--tensor-parallel-size), a smaller dtype, a smaller --max-model-len or --max-num-seqs",
        "out-of-memory",
    ),
    LogFailure(
        r"Worker proc (\S+) died unexpectedly \(exit code: (-?\d+|None)\)",  # None: vLLM asked too early
        "its worker {0} died with exit code {1}",
        "-9: killed, often for want of memory, see dmesg; -6 or -11: native code crashed, often on states of another width than "
        "the drafter reads: `outrider preflight`",
        "worker-died",
    ),
    LogFailure(
        r"^(Worker proc|Engine core proc|Engine core process|API server process) (\S+) died unexpectedly",
        "its process {1} died",
        "often killed for want of memory, see dmesg; or its native code crashed",
        "worker-died",
    ),
    LogFailure(
        r"MPClient: engine core exited unexpectedly",
        "its engine core died, and said nothing",
        "often killed for want of memory, see dmesg; or its native code crashed",
        "worker-died",
    ),
    LogFailure(
        r"TimeoutError: RPC call to (\w+) timed out|RPC call to (\w+) timed out",
        "its workers did not answer a call of {0} in time: they hang",
        "see what the devices do (`nvidia-smi`, py-spy dump); VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS if it was only slow",
        "worker-hangs",
    ),
)

LOG: Final = LogRules(_PHASES, _PROGRESS, NOTES, (*_FAILURES, *HOST_FAILURES), (*_FATAL, *HOST_FATAL), _STOPPED, _ANSWERING)
