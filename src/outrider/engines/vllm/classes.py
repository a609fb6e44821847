"""Which classes of a vLLM inherit from others, by the text of its files.

Of a file only the imports and the first lines of its classes are read: the whole tree is some 13 MB, and a parse of it
would take longer than all else.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_IMPORT: Final = re.compile(r"^[ \t]*from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n(]+)", re.MULTILINE)
_CLASS: Final = re.compile(r"^([ \t]*)class[ \t]+(\w+)[ \t]*(?:\(((?:[^()]|\([^()]*\))*)\))?[ \t]*:", re.MULTILINE)
_ALIAS: Final = re.compile(r"^[ \t]*(\w+)[ \t]*=[ \t]*([A-Z]\w*)[ \t]*$", re.MULTILINE)
_COMMENT: Final = re.compile(r"#[^\n]*")


@dataclass(frozen=True)
class _Origin:
    """Where an imported name comes from."""

    module: str
    name: str


@dataclass(frozen=True)
class Written:
    """A class as it is written.

    Attributes:
        text: its lines, without comments.
        bases: as written.
    """

    module: str
    text: str
    bases: tuple[str, ...]


@dataclass(frozen=True)
class _Module:
    """What one file says of its names.

    Attributes:
        text: without comments.
        bases: class → its bases as written.
        origins: imported name → where from, several where the import depends on the platform.
        aliases: name → the names it is assigned from.
    """

    text: str
    bases: dict[str, tuple[str, ...]]
    origins: dict[str, tuple[_Origin, ...]]
    aliases: dict[str, tuple[str, ...]]


class Classes:
    """The classes below one package.

    Args:
        packages: the folder that holds the package.
        package: its name.
    """

    def __init__(self, packages: Path, package: str) -> None:
        self._packages, self._package = packages, package
        self._modules: dict[str, _Module | None] = {}
        self._known: dict[tuple[str, str, frozenset[str]], bool | None] = {}
        self._written: dict[tuple[str, str], tuple[Written, ...]] = {}

    def inherits(self, module: str, name: str, ancestors: frozenset[str]) -> bool | None:
        """Whether a class is or inherits from one of some others; None if its text does not tell, or tells by platform."""
        if name in ancestors:
            return True
        key = (module, name, ancestors)
        if key not in self._known:
            self._known[key] = None  # a circle tells nothing
            self._known[key] = self._look(module, name, ancestors)
        return self._known[key]

    def written(self, module: str, name: str) -> tuple[Written, ...]:
        """The text of a class; several where it depends on the platform, none where it cannot be found."""
        key = (module, name)
        if key not in self._written:
            self._written[key] = ()  # a circle leads nowhere
            self._written[key] = self._texts(module, name)
        return self._written[key]

    def _texts(self, module: str, name: str) -> tuple[Written, ...]:
        found = self._module(module)
        if found is None:
            return ()
        if name in found.bases:
            return (Written(module, _body(found.text, name), found.bases[name]),)
        origins = found.origins.get(name) or tuple(_Origin(module, other) for other in found.aliases.get(name, ()))
        return tuple(text for origin in origins if self._is_ours(origin.module) for text in self.written(origin.module, origin.name))

    def _look(self, module: str, name: str, ancestors: frozenset[str]) -> bool | None:
        found = self._module(module)
        if found is None:
            return None
        if name in found.bases:
            return _any(self._base_inherits(module, base, ancestors) for base in found.bases[name])
        if name in found.origins:
            return _agreed(self._origin_inherits(origin, ancestors) for origin in found.origins[name])
        if name in found.aliases:
            return _agreed(self.inherits(module, other, ancestors) for other in found.aliases[name])
        return None

    def _base_inherits(self, module: str, base: str, ancestors: frozenset[str]) -> bool | None:
        root, _, rest = base.partition(".")
        if rest.rpartition(".")[2] in ancestors:
            return True
        found = self._module(module) or _EMPTY
        if not rest:
            is_named = root in ancestors or root in found.bases or root in found.origins or root in found.aliases
            return self.inherits(module, root, ancestors) if is_named else None
        return None if any(self._is_ours(origin.module) for origin in found.origins.get(root, ())) else False

    def _origin_inherits(self, origin: _Origin, ancestors: frozenset[str]) -> bool | None:
        return self.inherits(origin.module, origin.name, ancestors) if self._is_ours(origin.module) else False

    def _is_ours(self, module: str) -> bool:
        return module == self._package or module.startswith(self._package + ".")

    def _module(self, name: str) -> _Module | None:
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> _Module | None:
        base = self._packages.joinpath(*name.split("."))
        for path, package in ((base.with_name(base.name + ".py"), name.rpartition(".")[0]), (base / "__init__.py", name)):
            if path.is_file():
                text = _COMMENT.sub("", path.read_text(encoding="utf-8", errors="replace"))
                return _Module(text, dict(_bases(text)), _origins(text, package), _aliases(text))
        return None


_EMPTY: Final = _Module("", {}, {}, {})


def _bases(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Class → bases, of classes at the top level; one inside a condition stands in for nothing that matters here."""
    for indent, name, arguments in _CLASS.findall(text):
        if not indent:
            yield name, _base_names(arguments)


def _body(text: str, name: str) -> str:
    """The lines of a class at the top level, up to the next line that begins at the margin."""
    begin = next(match.start() for match in _CLASS.finditer(text) if not match[1] and match[2] == name)
    head = next(match.end() for match in _CLASS.finditer(text, begin))
    end = re.search(r"^[^\s)]", text[head:], re.MULTILINE)
    return text[begin : head + end.start() if end else len(text)]


def _base_names(arguments: str) -> tuple[str, ...]:
    try:
        call = ast.parse(f"f({arguments})", mode="eval").body
    except SyntaxError:
        return ("?",)
    assert isinstance(call, ast.Call)
    plain = [base.value if isinstance(base, ast.Subscript) else base for base in call.args]
    return tuple(ast.unparse(base) if isinstance(base, ast.Name | ast.Attribute) else "?" for base in plain)


def _origins(text: str, package: str) -> dict[str, tuple[_Origin, ...]]:
    found: dict[str, tuple[_Origin, ...]] = {}
    for module, names in _IMPORT.findall(text):
        for part in names.strip("() \t\n").split(","):
            original, _, local = (word.strip() for word in part.partition(" as "))
            if original.isidentifier():
                origin = _Origin(_absolute(module, package), original)
                found[local or original] = (*found.get(local or original, ()), origin)
    return found


def _absolute(module: str, package: str) -> str:
    """`..a.b` as seen from `package`."""
    name = module.lstrip(".")
    dots = len(module) - len(name)
    if not dots:
        return name
    parts = package.split(".")
    above = ".".join(parts[: len(parts) - (dots - 1)])
    return f"{above}.{name}" if name else above


def _aliases(text: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name, other in _ALIAS.findall(text):
        found[name] = (*found.get(name, ()), other)
    return found


def _any(answers: Iterator[bool | None]) -> bool | None:
    """Whether any is true; None if none is and one cannot be told."""
    told = list(answers)
    return True if True in told else None if None in told else False


def _agreed(answers: Iterator[bool | None]) -> bool | None:
    """What all say; None if they differ."""
    told = set(answers)
    return told.pop() if len(told) == 1 else None
