"""Failures that an engine shares with every other on its machine: memory, disk, driver, NCCL, ports, Python, model folders."""

from typing import Final

from outrider.engines.log_rules import LineRule, LogFailure

# after one of these the process is gone, whatever its own log says
HOST_FATAL: Final = (
    LineRule("error: ", r"^[\w. -]+: error: (?:argument |unrecognized arguments|the following arguments|ambiguous option)"),
    LineRule("ddress already in use", r"^(?:ERROR:\s+)?\[Errno \d+\] error while attempting to bind"),
    LineRule("Killed", r"^(?:/\S+: line \d+:\s+\d+ )?Killed\b"),
    LineRule("oom_kill event", r"^slurmstepd: error: Detected \d+ oom_kill event"),
    LineRule("Fatal Python error: ", r"^Fatal Python error: "),
    LineRule("core dumped", r"(?:Segmentation fault|Aborted|Bus error) \(core dumped\)"),
)

HOST_FAILURES: Final = (
    LogFailure(r"(?i)address already in use", "its port is taken", "stop what listens there, or choose another port", "port-taken"),
    LogFailure(
        r"error: unrecognized arguments: (.+)",
        "this version does not know the arguments {0}",
        "leave them out, or another version",
        "unknown-argument",
    ),
    LogFailure(
        r"error: ((?:argument|the following arguments|ambiguous option).+)", "it refuses an argument: {0}", "its --help", "bad-argument"
    ),
    LogFailure(
        r"No space left on device|Disk quota exceeded",
        "no space is left on a disk",
        "free the disk of the model cache, of the compile cache, or of /dev/shm: the frame says which",
        "disk-full",
    ),
    LogFailure(
        r"(?:CUDA driver version is insufficient|NVIDIA driver on your system is too old|forward compatibility was attempted|"
        r"system has unsupported display driver|CUDA_ERROR_COMPAT_NOT_SUPPORTED|Failed to initialize NVML: Driver)",
        "the NVIDIA driver does not fit the CUDA that the engine was built for",
        "a newer driver, or an engine built for the CUDA that `nvidia-smi` shows",
        "cuda-driver",
    ),
    LogFailure(
        r"no kernel image is available for execution|not compatible with the current PyTorch installation|"
        r"PTX was compiled with an unsupported toolchain",
        "it has no code for this GPU",
        "an engine built for this GPU's compute capability",
        "cuda-architecture",
    ),
    LogFailure(
        r"No CUDA GPUs are available|Found no NVIDIA driver|Failed to infer device type|no CUDA-capable device is detected|"
        r"invalid device ordinal",
        "it finds no GPU, or too few",
        "see `nvidia-smi` and CUDA_VISIBLE_DEVICES; in a container --gpus all",
        "no-gpu",
    ),
    LogFailure(
        r"((?:NCCL|nccl)\w* ?[Ee]rror.*|ncclUnhandledCudaError.*|ncclSystemError.*|ncclInternalError.*|ncclRemoteError.*)",
        "the devices do not reach each other: {0}",
        "run with NCCL_DEBUG=INFO; NCCL_SOCKET_IFNAME for the right network, enough /dev/shm (--ipc=host or --shm-size in a container)",
        "nccl",
    ),
    LogFailure(
        r"(?:Watchdog caught collective operation timeout.*|DistStoreError: .*[Tt]imed out.*|wait timeout after \d+ms.*|"
        r"The client socket has timed out after.*)",
        "its processes waited for each other in vain",
        "another of them failed or hangs: see its log; the same version and arguments on each node, ports open between them",
        "collective-timeout",
    ),
    LogFailure(
        r"(?:401 Client Error|403 Client Error|GatedRepoError|Cannot access gated repo|Access to model .+ is restricted)",
        "the hub does not hand out the model: it is gated, or the token is missing",
        "accept its licence on the hub and set HF_TOKEN, or give a local folder",
        "gated-model",
    ),
    LogFailure(
        r"Invalid repository ID or local directory specified: (.+?)\.?$|"
        r"(?:Repo id must be in the form .*: '(?=/)|Can't load the configuration of '|Incorrect path_or_model_id: '|"
        r"No such file or directory: '(?=[^']*(?:config\.json|safetensors)))([^']*)",
        "there is no model at {0}",
        "check the path; its config.json must be readable",
        "missing-model",
    ),
    LogFailure(
        r"RepositoryNotFoundError|404 Client Error",
        "the hub has no model of that name, or does not show it without a token",
        "check the name; HF_TOKEN for a private one",
        "missing-model",
    ),
    LogFailure(
        r"We couldn't connect to '?https?://(\S+?)'?(?:\s|$)|LocalEntryNotFoundError|Cannot find an appropriate cached snapshot",
        "the hub cannot be reached, and the model is not in the cache",
        "download it where there is a network, and give its folder",
        "hub-unreachable",
    ),
    LogFailure(
        r"requires you to execute the (?:configuration|tokenizer|modeling) file|contains custom code which must be executed|"
        r"(?:argument|option) `trust_remote_code",
        "the model brings code of its own, which it was not allowed to run",
        "read that code, then --trust-remote-code",
        "remote-code",
    ),
    LogFailure(
        r"Couldn't instantiate the backend tokenizer|Can't load tokenizer for '",
        "the folder has no tokenizer that can be read",
        "copy tokenizer.json and tokenizer_config.json of the target into it, or name another with --tokenizer (--tokenizer-path)",
        "tokenizer",
    ),
    LogFailure(
        r"(?:does not recognize this architecture|model type `(\w+)` but Transformers)",
        "its transformers does not know the model's type",
        "a newer transformers in the engine's environment, if the engine allows it, or a newer engine",
        "unknown-model-type",
    ),
    LogFailure(
        r"(?:SafetensorError|safetensors_rust)\b.*?: (.+)|(?:MetadataIncompleteBuffer|HeaderTooLarge|InvalidHeader\w*)",
        "a weight file is broken",
        "download or copy it again; compare its size with the original",
        "broken-weights",
    ),
    LogFailure(
        r"(?:ImportError|ModuleNotFoundError): (.+)",
        "it cannot be imported: {0}",
        "its environment is incomplete or mixed: `outrider engine add` makes a fresh one",
        "missing-module",
    ),
    LogFailure(
        r"CUDA error: an illegal memory access|CUBLAS_STATUS|device-side assert triggered|CUDA error: (?:unspecified|misaligned)",
        "a kernel failed on the device",
        "CUDA_LAUNCH_BLOCKING=1 shows which; often the drafter reads past its vocabulary or states: `outrider preflight`",
        "cuda-kernel",
    ),
    LogFailure(
        r"^(?:/\S+: line \d+:\s+\d+ )?Killed\b|oom_kill event",
        "it was killed, as is done where the machine runs out of memory",
        "see `dmesg`; more memory for the container or job, or fewer weights at once",
        "killed",
    ),
    LogFailure(
        r"(Fatal Python error: .+|(?:Segmentation fault|Aborted|Bus error)) ?(?:\(core dumped\))?",
        "its native code crashed: {0}",
        "a bus error is often a full /dev/shm; otherwise another version of the engine",
        "crashed",
    ),
)
