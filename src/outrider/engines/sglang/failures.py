"""What SGLang's log says when it fails. Lines are matched without process, time and rank.

Its launcher kills itself with all its children once one of them has failed, so an exit code tells nothing.
"""

from typing import Final

from outrider.engines.engine import LogFailure

# after one of these it serves no more, though its process may live on for a while
FATAL: Final = (
    r"^\w+ hit an exception: ",
    r"^Received sigquit from a child process",
    r"^SIGQUIT received\.",
    r"^Initialization failed\. Please see the error messages above",
    r"scheduler died during initialization",
    r"^Rank \d+ scheduler is dead",
    r"^Subprocess \S+ \(pid=\d+\) crashed with exit code",
)

_FREE_MEMORY: Final = "give less to the cache (--mem-fraction-static), serve fewer requests at once, or use more devices (--tp-size)"

FAILURES: Final = (
    LogFailure(r"(?i)address already in use", "its port is taken", "stop what listens there, or choose another port"),
    LogFailure(
        r"error: unrecognized arguments: (.+)", "this version does not know the arguments {0}", "leave them out, or another version"
    ),
    LogFailure(
        r"Unknown speculative algorithm name: (.+)|--speculative-algorithm: invalid choice",
        "this version does not know the algorithm",
        "`outrider preflight` names the algorithms of each version",
    ),
    LogFailure(
        r"Pipeline parallelism (?:is not compatible|currently only supports)",
        "it does not draft over pipeline stages",
        "one stage (--pp-size 1), and tensor parallelism instead",
    ),
    LogFailure(
        r"(?:Cannot find model module\. |Model architectures \[)'(\w+)'",
        "it does not know the architecture {0}",
        "a version that does, or export in a layout that it reads: it does not know vLLM's names of drafters",
    ),
    LogFailure(
        r"(?:'|Model )(\w+)(?:' object has no attribute '| does not implement )(?:set_eagle3_layers_to_capture|get_embed_and_head)",
        "its class {0} for this target cannot hand out what the drafter reads",
        "a version or engine whose class can",
    ),
    LogFailure(
        r"object has no attribute 'draft_vocab_size'",
        "the drafter's config does not say how large its vocabulary is",
        "write draft_vocab_size into it; null takes the target's head",
    ),
    LogFailure(r"EAGLE3 currently only supports 1 layer", "it builds drafters of one layer only", "SGLang 0.5.12 or later, or one layer"),
    LogFailure(
        r"context_length \((\d+)\) is greater than the derived context_length \((\d+)\)",
        "it is to serve {0} tokens, and a model's config stops at {1}: the drafter's, if the target's is longer",
        "max_position_embeddings of the target in the drafter's config, or a shorter --context-length",
    ),
    LogFailure(
        r"Attempted to load weight \((.+?)\) into parameter \((.+)\)",
        "a tensor has shape {0}, its config asks for {1}",
        "`outrider preflight` names the tensor; config and weights are of different drafters",
    ),
    LogFailure(
        r"mat1 and mat2 shapes cannot be multiplied \((\w+) and (\w+)\)",
        "states of shape {0} meet weights of shape {1}",
        "often the drafter is made for another number or width of target states: `outrider preflight`",
    ),
    LogFailure(
        r"Not enough memory\. Please try to increase --mem-fraction-static", "out of memory: none is left for the KV cache", _FREE_MEMORY
    ),
    LogFailure(r"(Capture \w+ (?:cuda )?graph failed: .*out of memory.*)", "out of memory: {0}", _FREE_MEMORY),
    LogFailure(r"OutOfMemoryError: (.+)", "out of memory: {0}", _FREE_MEMORY),
    LogFailure(
        r"(?:ImportError|ModuleNotFoundError): (.+)",
        "it cannot be imported: {0}",
        "its environment is incomplete or mixed: `outrider engine add` makes a fresh one",
    ),
    LogFailure(
        r"(?:Repo id must be in the form .*: '(?=/)|Can't load the configuration of ')([^']+)'",
        "there is no model at {0}",
        "check the path; its config.json must be readable",
    ),
    LogFailure(
        r"Subprocess \S+ \(pid=\d+\) crashed with exit code (-?\d+)|scheduler died during initialization \(exit code: (?:-?\d+)\)",
        "one of its processes died",
        "-9: killed, often for want of memory, see dmesg; -6 or -11: native code crashed",
    ),
)
