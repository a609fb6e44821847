"""What vLLM's log says when it fails. Lines are matched without process, level, time and place."""

from typing import Final

from outrider.engines.engine import LogFailure

# after one of these it serves no more, though the process may live on, or end with exit code 0
FATAL: Final = (
    r"^EngineCore failed to start",
    r"^EngineCore encountered a fatal error",
    r"^WorkerProc failed to start",
    r"^Worker proc \S+ died unexpectedly",
    r"Engine core initialization failed",
)

_KV_CACHE_FIX = "give the cache less (VLLM_CPU_KVCACHE_SPACE in GiB on a CPU, --gpu-memory-utilization on a GPU), or serve shorter requests"

FAILURES: Final = (
    LogFailure(r"Address already in use", "its port is taken", "stop what listens there, or choose another port"),
    LogFailure(
        r"There is no module or parameter named '([^']+)'",
        "the drafter or target holds a tensor that it does not know: {0}",
        "`outrider preflight` names the tensors that this version reads; export again for it",
    ),
    LogFailure(
        r"Tried to load weights of size (.+?)\s?to a parameter of size (.+)",
        "a tensor has shape {0}, its config asks for {1}",
        "`outrider preflight` names the tensor; config and weights are of different drafters",
    ),
    LogFailure(
        r"Model architectures \[(.+?)\] are not supported for now",
        "it does not know the architecture {0}",
        "a version that does, or export in a layout that it reads",
    ),
    LogFailure(
        r"[Ee]agle3 is only supported for (.+?) models\. Got (.+)",
        "it does not accept EAGLE-3 for this target: {1}",
        "vLLM 0.22.0 or later has no such list",
    ),
    LogFailure(
        r"Model does not support EAGLE3 interface",
        "its class for this target cannot hand out the states that the drafter reads",
        "a version or engine whose class can",
    ),
    LogFailure(
        r"Available memory on node \d+ \((.+?)\).*less than requested memory for kv \((.+?)\)",
        "out of memory: {1} asked for the KV cache, {0} there",
        _KV_CACHE_FIX,
    ),
    LogFailure(r"No available memory for the cache blocks", "out of memory: none is left for the KV cache", _KV_CACHE_FIX),
    LogFailure(
        r"Free memory on device .*? is less than desired (.+)",
        "out of memory: less is free on the device than it wants ({0})",
        "end what else uses the device, or lower --gpu-memory-utilization",
    ),
    LogFailure(
        r"(?:OutOfMemoryError: |(?=Failed to load model - not enough GPU memory))(.+)",
        "out of memory: {0}",
        "more devices (--tensor-parallel-size), a smaller dtype, a smaller --max-model-len or --max-num-seqs",
    ),
    LogFailure(
        r"Worker proc (\S+) died unexpectedly \(exit code: (-?\d+|None)\)",  # None: vLLM asked too early
        "its worker {0} died with exit code {1}",
        "-9: killed, often for want of memory, see dmesg; -6 or -11: native code crashed, often on states of another width than "
        "the drafter reads: `outrider preflight`",
    ),
    LogFailure(
        r"(?:ImportError|ModuleNotFoundError): (.+)",
        "it cannot be imported: {0}",
        "its environment is incomplete or mixed: `outrider engine add` makes a fresh one",
    ),
    LogFailure(
        r"Invalid repository ID or local directory specified: (.+?)\.?$",
        "there is no model at {0}",
        "check the path; its config.json must be readable",
    ),
)
