"""The text of an installed SGLang, read file by file and never imported."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = "sglang/srt"


class Source:
    """The files below `sglang/srt`, each read once.

    Args:
        packages: the folder that holds the package.
    """

    def __init__(self, packages: Path) -> None:
        self.packages = packages
        self._root = packages / _PACKAGE
        self._texts: dict[str, str] = {}

    def text(self, path: str) -> str:
        """A file's text, empty if it cannot be read."""
        if path not in self._texts:
            try:
                self._texts[path] = (self._root / path).read_text(encoding="utf-8-sig", errors="replace")
            except OSError:
                self._texts[path] = ""
        return self._texts[path]

    def tree(self, path: str) -> ast.Module:
        """A file's syntax tree, without statements if it cannot be read."""
        return parsed(self.text(path))

    def paths(self, folder: str) -> list[str]:
        """The Python files below a folder, sorted."""
        return sorted(path.relative_to(self._root).as_posix() for path in (self._root / folder).rglob("*.py"))

    def search(self, paths: list[str], pattern: str) -> Iterator[tuple[str, re.Match[str]]]:
        """Every match of a pattern, `^` and `$` at lines, with the file that it is in."""
        compiled = re.compile(pattern, re.MULTILINE)
        for path in paths:
            for match in compiled.finditer(self.text(path)):
                yield path, match

    def place(self, path: str, offset: int) -> str:
        """File and line, as evidence gives them."""
        return at(path, self.text(path).count("\n", 0, offset) + 1)


def at(path: str, line: int) -> str:
    """File and line, as evidence gives them."""
    return f"{_PACKAGE}/{path}:{line}"


def parsed(text: str) -> ast.Module:
    """The syntax tree of a text, without statements if it is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def strings(node: ast.AST) -> list[str]:
    """The string constants below a node, in the order of the source."""
    found = [n for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [str(n.value) for n in sorted(found, key=lambda n: (n.lineno, n.col_offset))]
