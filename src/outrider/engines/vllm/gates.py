"""What vLLM decides from configs alone: the list of target types, the methods, the keys of its speculative config.

Read are config/speculative.py (config/__init__.py, config.py before 0.11) and transformers_utils/config.py.
"""

import ast
from collections.abc import Iterator
from typing import Final

from outrider.engines.facts import Listed
from outrider.engines.vllm.source import Source, assigned, names, place, strings

CONFIGS: Final = ("config/speculative.py", "config/__init__.py", "config.py")
_CONFIG_CLASSES: Final = "transformers_utils/config.py"


def config_file(source: Source) -> str:
    """The file that holds SpeculativeConfig."""
    return next((path for path in CONFIGS if source.find(path, "SpeculativeConfig")), CONFIGS[0])


def target_types(source: Source) -> tuple[Listed | None, str]:
    """The list of target types, and where it is or is not; a list without names if it cannot be told."""
    path = config_file(source)
    config = source.find(path, "SpeculativeConfig")
    function = source.find(path, "_verify_args", config) if config else None
    if not isinstance(function, ast.FunctionDef) or "eagle3" not in source.text(path):
        return Listed((), f"no _verify_args that knows eagle3 in {', '.join(f'vllm/{path}' for path in CONFIGS)}"), path
    gate = next((node for node in ast.walk(function) if isinstance(node, ast.If) and _is_gate(node.test)), None)
    if gate is None:
        return None, f"{path}:{function.lineno} _verify_args without a list of target types"
    return _listed(function, gate.test, path), f"{path}:{function.lineno} _verify_args"


def _is_gate(test: ast.expr) -> bool:
    """`self.method == "eagle3" and ... self.target_model_config.hf_text_config.model_type ...`"""
    nodes = list(ast.walk(test))
    return any(isinstance(n, ast.Constant) and n.value == "eagle3" for n in nodes) and "model_type" in names(test)


def _listed(function: ast.FunctionDef, test: ast.expr, path: str) -> Listed:
    """`not any(x in ...model_type for x in NAMES)`, or `"llama" not in ...model_type`."""
    lists = {name: value for name, value in assigned(function).items() if strings(value)}
    methods = _gated_methods(test)
    for node in ast.walk(test):
        if isinstance(node, ast.comprehension) and isinstance(node.iter, ast.Name) and node.iter.id in lists:
            return Listed(strings(lists[node.iter.id]), place(path, lists[node.iter.id]), methods)
        if isinstance(node, ast.comprehension) and strings(node.iter):
            return Listed(strings(node.iter), place(path, test), methods)
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotIn) and strings(node.left):
            return Listed(strings(node.left), place(path, node), methods)
    return Listed((), f"{place(path, test)}: a condition on the target's model_type that is not understood", methods)


def _gated_methods(test: ast.expr) -> tuple[str, ...]:
    """`self.method == "eagle3"`, or `self.method in ("eagle3", …)`."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "method":
            return strings(node.comparators[0])
    return ("eagle3",)


def methods(source: Source) -> tuple[tuple[str, ...], str]:
    """The methods of speculation, those of literals within the literal too, and where they stand."""
    path = config_file(source)
    literals = assigned(source.tree(path))
    if "SpeculativeMethod" not in literals:
        return (), f"no SpeculativeMethod in vllm/{path}"
    return tuple(_literal(literals, "SpeculativeMethod")), place(path, literals["SpeculativeMethod"])


def mtp_methods(source: Source) -> frozenset[str]:
    """Names of methods that are but older words for `mtp`."""
    return frozenset(_literal(assigned(source.tree(config_file(source))), "MTPModelTypes"))


def _literal(literals: dict[str, ast.expr], name: str, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    value = literals.get(name)
    if not isinstance(value, ast.Subscript) or name in seen:
        return
    for part in getattr(value.slice, "elts", [value.slice]):
        if isinstance(part, ast.Name):
            yield from _literal(literals, part.id, seen | {name})
        else:
            yield from strings(part)


def speculative_keys(source: Source) -> tuple[str, ...]:
    """The fields of SpeculativeConfig."""
    found = source.find(config_file(source), "SpeculativeConfig")
    fields = [node.target for node in found.body if isinstance(node, ast.AnnAssign)] if found else []
    return tuple(target.id for target in fields if isinstance(target, ast.Name) and not target.id.startswith("_"))


def config_types(source: Source) -> tuple[str, ...]:
    """The model_types whose config class vLLM brings itself."""
    tables = assigned(source.tree(_CONFIG_CLASSES))
    return tuple(dict.fromkeys(_keys(tables.get("_CONFIG_REGISTRY"), tables)))


def _keys(table: ast.expr | None, tables: dict[str, ast.expr]) -> Iterator[str]:
    """The keys of `{"a": A, **OTHER}`, or of `LazyConfigDict(a="A", **{"b": "B"})`."""
    if isinstance(table, ast.Name):
        yield from _keys(tables.get(table.id), {name: value for name, value in tables.items() if name != table.id})
    elif isinstance(table, ast.Dict):
        for key, value in zip(table.keys, table.values, strict=True):
            yield from strings(key) if key else _keys(value, tables)
    elif isinstance(table, ast.Call):
        for keyword in table.keywords:
            yield from [keyword.arg] if keyword.arg else _keys(keyword.value, tables)
