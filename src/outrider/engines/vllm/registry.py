"""Which class of vLLM serves which architecture, and which of them carry the interfaces that drafting needs.

Read are model_executor/models/registry.py, model_executor/models/interfaces.py, the class lines of the model files, and
transformers_utils/configs/eagle.py, by which a drafter X is looked up as Eagle3X.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from outrider.engines.vllm.classes import Classes
from outrider.engines.vllm.pipeline import Served, pipeline_classes
from outrider.engines.vllm.source import Source, strings

MODELS: Final = "model_executor/models"
_REGISTRY: Final = f"{MODELS}/registry.py"
_INTERFACES: Final = f"{MODELS}/interfaces.py"
_TARGET_TABLES: Final = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS", "_TRANSFORMERS_BACKEND_MODELS")
_DRAFTER_TABLE: Final = "_SPECULATIVE_DECODING_MODELS"
_INTERFACE: Final = "SupportsEagle3"
# what the runner calls on the target's class; before 0.10.1 there was no interface beside it
_METHOD: Final = "set_aux_hidden_state_layers"
_MULTIMODAL: Final = frozenset({"SupportsMultiModal"})


@dataclass(frozen=True)
class Registered:
    """What the registry and the classes behind it tell.

    Attributes:
        drafters: as a drafter's config may name them for method eagle3.
        registered: every architecture of the drafters' table.
        targets: those whose text tells whether they carry the interface.
        interface_classes: see `EngineFacts`; empty if it could not be read.
        multimodal_classes: see `EngineFacts`.
        pipeline_classes: see `EngineFacts`.
    """

    drafters: Mapping[str, str]
    registered: Mapping[str, str]
    registered_evidence: str
    targets: Mapping[str, str]
    interface_classes: frozenset[str]
    interface_evidence: str
    multimodal_classes: frozenset[str]
    pipeline_classes: frozenset[str]


def registered(source: Source) -> Registered:
    """What the registry of a vLLM tells."""
    tables, lines = _tables(source)
    served = {arch: made for table in _TARGET_TABLES for arch, made in tables.get(table, {}).items()}
    drafters = {arch: made.name for arch, made in tables.get(_DRAFTER_TABLE, {}).items()}
    classes = Classes(source.packages, "vllm")
    told, interface, evidence = _interface(source, classes, served)
    return Registered(
        drafters=_renamed(source, drafters),
        registered=drafters,
        registered_evidence=f"vllm/{_REGISTRY}:{lines[_DRAFTER_TABLE]}" if drafters else f"no {_DRAFTER_TABLE} in vllm/{_REGISTRY}",
        targets=told,
        interface_classes=interface,
        interface_evidence=evidence,
        multimodal_classes=frozenset(made.name for made in served.values() if classes.inherits(made.module, made.name, _MULTIMODAL)),
        pipeline_classes=pipeline_classes(source, classes, {arch: made for arch, made in served.items() if made.name in interface}, served),
    )


def _tables(source: Source) -> tuple[dict[str, dict[str, Served]], dict[str, int]]:
    """Each table of the registry, and the line where it begins."""
    tables: dict[str, dict[str, Served]] = {}
    lines: dict[str, int] = {}
    for node in source.tree(_REGISTRY).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            tables[target.id] = dict(_rows(node.value))
            lines[target.id] = node.lineno
    return tables, lines


def _rows(table: ast.Dict) -> Iterator[tuple[str, Served]]:
    """`"Architecture": ("module", "Class")`, the module below model_executor.models unless it is a whole name."""
    for key, value in zip(table.keys, table.values, strict=True):
        row = strings(value) if isinstance(value, ast.Tuple) else ()
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and len(row) == 2:
            module = row[0] if row[0].startswith("vllm.") else f"vllm.{MODELS.replace('/', '.')}.{row[0]}"
            yield key.value, Served(module, row[1])


def _renamed(source: Source, drafters: Mapping[str, str]) -> dict[str, str]:
    """Architectures as a drafter's config may name them, for method eagle3: X is looked up as Eagle3X."""
    direct = {arch: name for arch, name in drafters.items() if arch.startswith("Eagle3") or arch.endswith("Eagle3")}
    if 'f"Eagle3{arch}"' not in source.text("transformers_utils/configs/eagle.py"):
        return direct
    return {arch.removeprefix("Eagle3"): name for arch, name in direct.items() if arch.startswith("Eagle3")} | direct


def _interface(source: Source, classes: Classes, served: Mapping[str, Served]) -> tuple[dict[str, str], frozenset[str], str]:
    """The targets whose text tells either way, the classes among them that carry the interface, and how that was read."""
    ancestors, what = _interface_roots(source)
    if not ancestors or not served:
        missing = what if not ancestors else f"no tables of target models in vllm/{_REGISTRY}"
        return {arch: made.name for arch, made in served.items()}, frozenset(), missing
    answers = {arch: classes.inherits(made.module, made.name, ancestors) for arch, made in served.items()}
    by_name: dict[str, set[bool | None]] = {}
    for arch, made in served.items():
        by_name.setdefault(made.name, set()).add(answers[arch])
    told = {arch: made.name for arch, made in served.items() if None not in by_name[made.name] and len(by_name[made.name]) == 1}
    yes = frozenset(name for name in told.values() if True in by_name[name])
    untold = sorted(set(served) - set(told))
    evidence = f"{what}: {len(yes)} of {len(set(told.values()))} target classes inherit from it"
    return told, yes, evidence + (f"; not told by the source: {', '.join(untold)}" if untold else "")


def _interface_roots(source: Source) -> tuple[frozenset[str], str]:
    """The classes from which one that carries the interface inherits: the interface, or whatever defines its method."""
    line = _line_of(source.text(_INTERFACES), rf"class {_INTERFACE}\b")
    if line is not None:
        return frozenset({_INTERFACE}), f"vllm/{_INTERFACES}:{line} {_INTERFACE}"
    found: dict[str, str] = {}
    for path in sorted((source.root / MODELS).glob("*.py")):
        relative = f"{MODELS}/{path.name}"
        if f"def {_METHOD}" in source.text(relative):
            for node in source.tree(relative).body:
                method = source.find(relative, _METHOD, node) if isinstance(node, ast.ClassDef) else None
                if isinstance(node, ast.ClassDef) and method:
                    found[node.name] = f"vllm/{relative}:{method.lineno} {node.name}.{_METHOD}"
    return frozenset(found), ", ".join(found.values()) or f"no class {_INTERFACE} in vllm/{_INTERFACES}, no method {_METHOD}"


def _line_of(text: str, pattern: str) -> int | None:
    match = re.search(pattern, text)
    return text.count("\n", 0, match.start()) + 1 if match else None
