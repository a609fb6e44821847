"""Which classes of an installed vLLM inherit from one of its interfaces, by the text of its files.

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
class _Module:
    """What one file says of its names.

    Attributes:
        bases: class → its bases as written.
        origins: imported name → where from, several where the import depends on the platform.
        aliases: name → the names it is assigned from.
    """

    bases: dict[str, tuple[str, ...]]
    origins: dict[str, tuple[_Origin, ...]]
    aliases: dict[str, tuple[str, ...]]


class Classes:
    """The classes below one package.

    Args:
        packages: the folder that holds the package.
        package: its name.
        interface: the class that is asked for.
    """

    def __init__(self, packages: Path, package: str, interface: str) -> None:
        self._packages, self._package, self._interface = packages, package, interface
        self._modules: dict[str, _Module | None] = {}
        self._known: dict[tuple[str, str], bool | None] = {}

    def inherits(self, module: str, name: str) -> bool | None:
        """Whether a class inherits from the interface; None if its text does not tell, or tells by platform."""
        if name == self._interface:
            return True
        key = (module, name)
        if key not in self._known:
            self._known[key] = None  # a circle tells nothing
            self._known[key] = self._look(module, name)
        return self._known[key]

    def _look(self, module: str, name: str) -> bool | None:
        found = self._module(module)
        if found is None:
            return None
        if name in found.bases:
            return _any(self._base_inherits(module, base) for base in found.bases[name])
        if name in found.origins:
            return _agreed(self._origin_inherits(origin) for origin in found.origins[name])
        if name in found.aliases:
            return _agreed(self.inherits(module, other) for other in found.aliases[name])
        return None

    def _base_inherits(self, module: str, base: str) -> bool | None:
        root, _, rest = base.partition(".")
        if rest.rpartition(".")[2] == self._interface:
            return True
        if not rest:
            return self.inherits(module, root) if self._names(module, root) else None
        origins = (self._module(module) or _EMPTY).origins.get(root, ())
        return None if any(self._is_ours(origin.module) for origin in origins) else False

    def _names(self, module: str, name: str) -> bool:
        found = self._module(module) or _EMPTY
        return name == self._interface or name in found.bases or name in found.origins or name in found.aliases

    def _origin_inherits(self, origin: _Origin) -> bool | None:
        return self.inherits(origin.module, origin.name) if self._is_ours(origin.module) else False

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
                return _Module(dict(_bases(text)), _origins(text, package), _aliases(text))
        return None


_EMPTY: Final = _Module({}, {}, {})


def _bases(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Class → bases, of classes at the top level; one inside a condition stands in for nothing that matters here."""
    for indent, name, arguments in _CLASS.findall(text):
        if not indent:
            yield name, _base_names(arguments)


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
