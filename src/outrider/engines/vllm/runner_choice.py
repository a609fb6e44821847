"""Which launches of a vLLM take its second model runner: config/vllm.py, v1/worker/cpu_worker.py, and the Triton beside it."""

import ast
import os
from collections.abc import Mapping
from typing import Final, Literal

from outrider.engines.environment import Environment
from outrider.engines.facts import RunnerChoice
from outrider.engines.vllm.gates import CONFIGS, methods, mtp_methods
from outrider.engines.vllm.source import Source, assigned, called, names, place, strings

_CONFIG: Final = "config/vllm.py"
_CHOOSES: Final = "use_v2_model_runner"
_IS_DEFAULT: Final = "_is_default_v2_model_runner_model"
_UNSUPPORTED: Final = "_get_v2_model_runner_unsupported_features"
_CPU_WORKER: Final = "v1/worker/cpu_worker.py"
_Need = Literal["dense", "unquantised"]
# what the source says that a target must not be
_NEEDS: Final[Mapping[str, _Need]] = {"is_moe": "dense", "is_quantized": "unquantised"}


def runner(source: Source, environment: Environment) -> str | None:
    """`V1` where the second runner is not chosen by itself or cannot run; None where the launch decides."""
    if os.environ.get("VLLM_USE_V2_MODEL_RUNNER"):
        return None
    config = source.text(_CONFIG) or source.text(source.first(*CONFIGS[1:]))
    if config and f"def {_CHOOSES}" not in config:
        return "V1"
    triton = environment.packages / "triton"
    if config and not triton.is_dir():
        return "V1"
    worker = source.text(_CPU_WORKER)
    is_cpu_build = "cpu" in environment.distribution or "cpu" in environment.version
    if is_cpu_build and worker and (_CHOOSES not in worker or not (triton / "backends" / "cpu").is_dir()):
        return "V1"
    return None


def runner_choice(source: Source) -> RunnerChoice | None:
    """The rule of a version that has one; None for a version in which only a variable chooses."""
    chooses = source.find(_CONFIG, _CHOOSES)
    if not isinstance(chooses, ast.FunctionDef):
        return None
    asks = any(called(node) == _IS_DEFAULT for node in ast.walk(chooses))
    is_default = source.find(_CONFIG, _IS_DEFAULT) if asks else None
    listed = _listed(source, is_default) if is_default else ()
    needs, others = _conditions(is_default) if is_default else ((), "none")
    return RunnerChoice(
        listed=listed,
        listed_needs=needs,
        others=others if asks else "all",
        not_methods=_not_methods(source),
        needs_triton="HAS_TRITON" in names(chooses),
        evidence=place(_CONFIG, chooses),
    )


def _listed(source: Source, function: ast.AST) -> tuple[str, ...]:
    """The architectures of the constant that a function looks into, itself or through a function that returns it."""
    constants = {name: strings(value) for name, value in assigned(source.tree(_CONFIG)).items() if strings(value)}
    for name in sorted(names(function)):
        if name in constants:
            return constants[name]
        inner = source.find(_CONFIG, name) if name.startswith("default_") else None
        if inner is not None:
            return _listed(source, inner)
    return ()


def _conditions(function: ast.AST) -> tuple[tuple[_Need, ...], Literal["none", "dense"]]:
    """What the last line of `_is_default_v2_model_runner_model` asks for beside the list, or instead of it."""
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
    last = max(returned, key=lambda node: node.lineno)
    refused = {name for node in ast.walk(last) if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) for name in names(node)}
    if isinstance(last, ast.BoolOp) and isinstance(last.op, ast.Or):
        return (), "dense" if "is_moe" in refused else "none"
    return tuple(need for attribute, need in _NEEDS.items() if attribute in refused), "none"


def _not_methods(source: Source) -> tuple[str, ...]:
    """The methods that `_get_v2_model_runner_unsupported_features` names, or does not name where it names the others."""
    function = source.find(_CONFIG, _UNSUPPORTED)
    refused: set[str] = set()
    known, _ = methods(source)
    aliases = mtp_methods(source)
    for node in ast.walk(function) if function else ():
        if isinstance(node, ast.If) and _tells_of_method(node):
            assert isinstance(node.test, ast.Compare)
            told = set(strings(node.test.comparators[0]))
            if isinstance(node.test.ops[0], ast.NotIn):
                refused |= {name for name in known if name not in told and not (name in aliases and "mtp" in told)}
            else:
                refused |= told
    return tuple(name for name in known if name in refused)


def _tells_of_method(node: ast.If) -> bool:
    """`if speculative_config.method in (…): unsupported.append(…)`."""
    test = node.test
    is_test = isinstance(test, ast.Compare) and isinstance(test.left, ast.Attribute) and test.left.attr == "method"
    return is_test and any(isinstance(inner, ast.Expr) and called(inner.value) == "append" for inner in node.body)
