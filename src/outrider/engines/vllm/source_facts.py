"""What an installed vLLM accepts, read from its source files: nothing of it is imported.

Read are, with the names that vLLM 0.9.2 to 0.32.0 use:
- config/speculative.py (config/__init__.py, config.py before 0.11): the list of target types in `_verify_args`,
  which 0.22.0 dropped;
- model_executor/models/registry.py: which architecture is served by which class;
- model_executor/models/interfaces.py, and the class lines of the model files: who inherits from SupportsEagle3;
- transformers_utils/configs/eagle.py: that a drafter X is looked up as Eagle3X;
- model_executor/models/llama_eagle3.py: whether the map of draft tokens is there for a whole vocabulary too;
- config/vllm.py, v1/worker/cpu_worker.py and the triton that is installed: the model runner.
"""

import ast
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outrider.engines.environment import Environment
from outrider.engines.facts import EngineFacts, Listed
from outrider.engines.vllm.classes import Classes

_INTERFACE: Final = "SupportsEagle3"
_MODELS: Final = "model_executor/models"
_REGISTRY: Final = f"{_MODELS}/registry.py"
_CONFIGS: Final = ("config/speculative.py", "config/__init__.py", "config.py")
_TARGET_TABLES: Final = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS", "_TRANSFORMERS_BACKEND_MODELS")
_DRAFTER_TABLE: Final = "_SPECULATIVE_DECODING_MODELS"


@dataclass(frozen=True)
class _Served:
    """The class that a registry names for an architecture, and its module."""

    module: str
    name: str


@dataclass(frozen=True)
class _Interface:
    """Which target classes hand out aux states.

    Attributes:
        targets: those whose text tells either way.
    """

    targets: dict[str, str]
    classes: frozenset[str]
    evidence: str


class _Source:
    """The files of one installed vLLM."""

    def __init__(self, packages: Path) -> None:
        self.packages, self.root = packages, packages / "vllm"

    def text(self, path: str) -> str:
        """A file's text, empty if it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def tree(self, path: str) -> ast.Module:
        """A file's syntax tree, without statements if it cannot be read."""
        try:
            return ast.parse(self.text(path))
        except (SyntaxError, ValueError, RecursionError):
            return ast.Module([], [])


def facts_of(environment: Environment) -> EngineFacts:
    """The gates of the vLLM that an environment holds; what cannot be read is empty, and its evidence says so."""
    source = _Source(environment.packages)
    target_types, place = _target_types(source)
    tables, lines = _registry(source)
    served = {arch: made for table in _TARGET_TABLES for arch, made in tables.get(table, {}).items()}
    interface = _interface(source, served)
    read = [place, f"{_REGISTRY}:{lines[_DRAFTER_TABLE]}" if _DRAFTER_TABLE in lines else f"no {_DRAFTER_TABLE} in {_REGISTRY}"]
    return EngineFacts(
        engine="vllm",
        version=environment.version,
        source=f"{source.root}: {', '.join(read)}",
        runner=_runner(source, environment),
        target_types=target_types,
        drafters=_renamed(source, tables.get(_DRAFTER_TABLE, {})),
        drafters_evidence=f"vllm/{read[1]}",
        targets=interface.targets,
        interface_classes=interface.classes,
        interface_evidence=interface.evidence,
        refuses_full_d2t=_refuses_full_d2t(source),
        drops_duplicate_layers=any("in self.aux_hidden_state_layers" in source.text(f"{_MODELS}/{f}.py") for f in ("interfaces", "llama")),
    )


def _target_types(source: _Source) -> tuple[Listed | None, str]:
    """The list of target types, and where it is or is not; a list without names if it cannot be told."""
    for path in _CONFIGS:
        for function in ast.walk(source.tree(path)):
            if not isinstance(function, ast.FunctionDef) or function.name != "_verify_args" or "eagle3" not in source.text(path):
                continue
            gate = next((node for node in ast.walk(function) if isinstance(node, ast.If) and _is_gate(node.test)), None)
            if gate is None:
                return None, f"{path}:{function.lineno} _verify_args without a list of target types"
            listed = _listed(function, gate.test, path)
            return listed, f"{path}:{function.lineno} _verify_args"
    return Listed((), f"no _verify_args that knows eagle3 in {', '.join(f'vllm/{path}' for path in _CONFIGS)}"), _CONFIGS[0]


def _is_gate(test: ast.expr) -> bool:
    """`self.method == "eagle3" and ... self.target_model_config.hf_text_config.model_type ...`"""
    nodes = list(ast.walk(test))
    return any(isinstance(n, ast.Constant) and n.value == "eagle3" for n in nodes) and any(
        isinstance(n, ast.Attribute) and n.attr == "model_type" for n in nodes
    )


def _listed(function: ast.FunctionDef, test: ast.expr, path: str) -> Listed:
    """`not any(x in ...model_type for x in NAMES)`, or `"llama" not in ...model_type`."""
    lists = {
        node.targets[0].id: node
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.List | ast.Tuple | ast.Set)
    }
    for node in ast.walk(test):
        if isinstance(node, ast.comprehension) and isinstance(node.iter, ast.Name) and node.iter.id in lists:
            assigned = lists[node.iter.id]
            return Listed(tuple(_strings(assigned.value)), f"vllm/{path}:{assigned.lineno}")
        if isinstance(node, ast.comprehension) and (names := tuple(_strings(node.iter))):
            return Listed(names, f"vllm/{path}:{test.lineno}")
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotIn) and (names := tuple(_strings(node.left))):
            return Listed(names, f"vllm/{path}:{node.lineno}")
    return Listed((), f"vllm/{path}:{test.lineno}: a condition on the target's model_type that is not understood")


def _strings(node: ast.expr) -> Iterator[str]:
    for part in getattr(node, "elts", [node]):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _registry(source: _Source) -> tuple[dict[str, dict[str, _Served]], dict[str, int]]:
    """Each table of the registry, and the line where it begins."""
    tables: dict[str, dict[str, _Served]] = {}
    lines: dict[str, int] = {}
    for node in source.tree(_REGISTRY).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            tables[target.id] = dict(_rows(node.value))
            lines[target.id] = node.lineno
    return tables, lines


def _rows(table: ast.Dict) -> Iterator[tuple[str, _Served]]:
    """`"Architecture": ("module", "Class")`, the module below model_executor.models unless it is a whole name."""
    for key, value in zip(table.keys, table.values, strict=True):
        row = tuple(_strings(value)) if isinstance(value, ast.Tuple) else ()
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and len(row) == 2:
            module = row[0] if row[0].startswith("vllm.") else f"vllm.{_MODELS.replace('/', '.')}.{row[0]}"
            yield key.value, _Served(module, row[1])


def _renamed(source: _Source, registered: Mapping[str, _Served]) -> dict[str, str]:
    """Architectures as a drafter's config may name them, for method eagle3: X is looked up as Eagle3X."""
    direct = {arch: made.name for arch, made in registered.items() if arch.startswith("Eagle3") or arch.endswith("Eagle3")}
    if 'f"Eagle3{arch}"' not in source.text("transformers_utils/configs/eagle.py"):
        return direct
    return {arch.removeprefix("Eagle3"): name for arch, name in direct.items() if arch.startswith("Eagle3")} | direct


def _interface(source: _Source, served: Mapping[str, _Served]) -> _Interface:
    path = f"{_MODELS}/interfaces.py"
    line = _line_of(source.text(path), rf"class {_INTERFACE}\b")
    if line is None or not served:
        missing = f"no class {_INTERFACE} in vllm/{path}" if line is None else f"no tables of target models in vllm/{_REGISTRY}"
        return _Interface({arch: made.name for arch, made in served.items()}, frozenset(), missing)
    classes = Classes(source.packages, "vllm", _INTERFACE)
    answers = {arch: classes.inherits(made.module, made.name) for arch, made in served.items()}
    by_name: dict[str, set[bool | None]] = {}
    for arch, made in served.items():
        by_name.setdefault(made.name, set()).add(answers[arch])
    told = {arch: made.name for arch, made in served.items() if None not in by_name[made.name] and len(by_name[made.name]) == 1}
    yes = frozenset(name for name in told.values() if True in by_name[name])
    untold = sorted(set(served) - set(told))
    evidence = f"vllm/{path}:{line} {_INTERFACE}: {len(yes)} of {len(set(told.values()))} target classes inherit from it"
    return _Interface(told, yes, evidence + (f"; not told by the source: {', '.join(untold)}" if untold else ""))


def _line_of(text: str, pattern: str) -> int | None:
    match = re.search(pattern, text)
    return text.count("\n", 0, match.start()) + 1 if match else None


def _refuses_full_d2t(source: _Source) -> bool:
    """Whether the parameter that takes d2t is made under a condition on the draft vocabulary's size (0.30.0 on)."""
    for node in ast.walk(source.tree(f"{_MODELS}/llama_eagle3.py")):
        if isinstance(node, ast.If) and any(isinstance(n, ast.Attribute) and n.attr == "draft_vocab_size" for n in ast.walk(node.test)):
            made = [target for statement in node.body if isinstance(statement, ast.Assign) for target in statement.targets]
            if any(isinstance(target, ast.Attribute) and target.attr == "draft_id_to_target_id" for target in made):
                return True
    return False


def _runner(source: _Source, environment: Environment) -> str | None:
    """`V1` where the second runner is not chosen by itself or cannot run; None where the launch decides."""
    if os.environ.get("VLLM_USE_V2_MODEL_RUNNER"):
        return None
    config = source.text("config/vllm.py") or source.text(_CONFIGS[1])
    if config and "def use_v2_model_runner" not in config:
        return "V1"
    triton = source.packages / "triton"
    if config and not triton.is_dir():
        return "V1"
    worker = source.text("v1/worker/cpu_worker.py")
    is_cpu_build = "cpu" in environment.distribution or "cpu" in environment.version
    if is_cpu_build and worker and ("use_v2_model_runner" not in worker or not (triton / "backends" / "cpu").is_dir()):
        return "V1"
    return None
