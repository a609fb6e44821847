"""The files of a vLLM, and the few questions that are asked of any Python source."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Definition = ast.FunctionDef | ast.ClassDef


@dataclass(frozen=True, eq=False)
class Source:
    """The files of one vLLM, installed or unpacked; paths are relative to its package.

    Attributes:
        packages: the folder that holds the package.
    """

    packages: Path
    _trees: dict[str, ast.Module] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The package's folder."""
        return self.packages / "vllm"

    def text(self, path: str) -> str:
        """A file's text, empty if it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def tree(self, path: str) -> ast.Module:
        """A file's syntax tree, without statements if it cannot be read."""
        if path not in self._trees:
            try:
                self._trees[path] = ast.parse(self.text(path))
            except (SyntaxError, ValueError, RecursionError):
                self._trees[path] = ast.Module([], [])
        return self._trees[path]

    def first(self, *paths: str) -> str:
        """The first of some files that is there; the first of all if none is."""
        return next((path for path in paths if (self.root / path).is_file()), paths[0])

    def find(self, path: str, name: str, within: ast.AST | None = None) -> Definition | None:
        """A class or function of a file, wherever it stands; the first of that name."""
        return next((node for node in definitions(within or self.tree(path)) if node.name == name), None)


def place(path: str, node: ast.AST) -> str:
    """Evidence: `vllm/path.py:LINE`."""
    return f"vllm/{path}:{getattr(node, 'lineno', 1)}"


def definitions(node: ast.AST) -> Iterator[Definition]:
    """The classes and functions below a node, the outer ones first."""
    return (inner for inner in ast.walk(node) if isinstance(inner, Definition))


def strings(node: ast.AST | None) -> tuple[str, ...]:
    """The strings that a list, tuple, set, call of `frozenset` and the like, or a single constant, holds at its top."""
    if isinstance(node, ast.Call) and len(node.args) == 1:
        return strings(node.args[0])
    parts = getattr(node, "elts", [node])
    return tuple(part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))


def assigned(tree: ast.AST) -> dict[str, ast.expr]:
    """Name → what it is assigned at the top of a module, class or function; of several assignments the last."""
    found: dict[str, ast.expr] = {}
    for node in getattr(tree, "body", []):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            found.update({target.id: node.value for target in targets if isinstance(target, ast.Name)})
    return found


def names(node: ast.AST) -> set[str]:
    """Every name and attribute that stands below a node."""
    return {n.id if isinstance(n, ast.Name) else n.attr for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute)}


def dotted(node: ast.expr) -> str:
    """`a.b.c` as written, and any other expression as Python writes it."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ast.unparse(node)


def called(node: ast.AST) -> str:
    """The name of what a call calls, without what it is a member of; empty for anything else."""
    function = node.func if isinstance(node, ast.Call) else None
    return function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""


def key_read(node: ast.AST) -> tuple[str, str] | None:
    """`getattr(X, "key", …)`, `hasattr(X, "key")`, `X.get("key", …)` or `X["key"]`: X as written, and the key."""
    holder: ast.expr | None = None
    key: ast.expr | None = None
    if isinstance(node, ast.Call) and called(node) in ("getattr", "hasattr") and len(node.args) > 1:
        holder, key = node.args[0], node.args[1]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        holder, key = node.func.value, node.args[0]
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        holder, key = node.value, node.slice
    if holder is None or not isinstance(key, ast.Constant) or not isinstance(key.value, str):
        return None
    return dotted(holder), key.value
