"""What SGLang knows of models' configs: types that it brings a class for, and targets that take images or sound."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from outrider.engines.sglang.classes import Classes
from outrider.engines.sglang.drafters import CONFIG
from outrider.engines.sglang.source import Source, strings

_REGISTRY: Final = "_CONFIG_REGISTRY"
_FILES: Final = ("utils/hf_transformers/common.py", "utils/hf_transformers_utils.py", "hf_transformers_utils.py")
_TYPE: Final = re.compile(r"^    model_type(?:: \w+)? = \"([^\"]+)\"", re.MULTILINE)


def config_types(source: Source) -> tuple[str, ...]:
    """The model_types of its registry, sorted; aliases that are put in later included."""
    path = next((path for path in _FILES if _REGISTRY in source.text(path)), None)
    if path is None:
        return ()
    configs, tree = Classes(source, "configs"), source.tree(path)
    names = {name for value in _registered(tree) for name in _names(value)}
    lists = {name for name in names if name.isupper()}
    names |= {name for _, text in _assigned(source, lists) for name in re.findall(r"\w+", text)}
    found = {model_type for name in names if (model_type := _type_of(configs, name))}
    return tuple(sorted(found | set(_put_in_later(tree))))


def _registered(tree: ast.Module) -> Iterator[ast.expr]:
    """What is assigned to the registry, or given to its `update`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == _REGISTRY for target in targets):
                yield node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == f"{_REGISTRY}.update":
            yield from node.args


def _names(value: ast.expr) -> Iterator[str]:
    return (node.id for node in ast.walk(value) if isinstance(node, ast.Name) and node.id[0].isupper())


def _assigned(source: Source, names: set[str]) -> Iterator[tuple[str, str]]:
    for name in sorted(names):
        for _, match in source.search(source.paths("configs"), rf"^{name} = \(([^)]*)\)"):
            yield name, match[1]


def _put_in_later(tree: ast.Module) -> Iterator[str]:
    """`_CONFIG_REGISTRY["type"] = ...`"""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            target = node.targets[0]
            if ast.unparse(target.value) == _REGISTRY:
                yield from strings(target.slice)


def _type_of(configs: Classes, name: str) -> str | None:
    text = configs.named(name)
    for owner in configs.lineage(text) if text else ():
        if match := _TYPE.search(owner.body):
            return match[1]
    return None


def multimodal_classes(source: Source) -> frozenset[str]:
    """The architectures that are served as taking images or sound."""
    for node in source.tree(CONFIG).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "multimodal_model_archs":
            return frozenset(strings(node.value))
    return frozenset()
