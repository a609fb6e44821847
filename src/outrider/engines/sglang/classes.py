"""The classes of SGLang's model and config files: their bases, their methods, and what a file registers.

Only the lines that begin a class, a method or an import are looked for; a parse of all model files would take longer than
all else.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from outrider.engines.sglang.source import Source

_CLASS: Final = re.compile(r"^class[ \t]+(\w+)[ \t]*(?:\(([^)]*)\))?[ \t]*:", re.MULTILINE)
_METHOD: Final = re.compile(r"^    (?:async )?def[ \t]+(\w+)", re.MULTILINE)
_IMPORT: Final = re.compile(r"^[ \t]*from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n(]+)", re.MULTILINE)
_ENTRY: Final = re.compile(r"^EntryClass\b[^=\n]*=\s*(\[[^\]]*\]|\w+)", re.MULTILINE)
_COMMENT: Final = re.compile(r"#[^\n]*")
# the next line that belongs to the module itself: the class has ended
_OUTSIDE: Final = re.compile(r"^[^\s#)]", re.MULTILINE)
# the next line that belongs to the class itself: the method has ended
_BESIDE: Final = re.compile(r"^    [^\s#)]", re.MULTILINE)
_SRT: Final = "sglang.srt."


@dataclass(frozen=True)
class Method:
    """A method as it is written.

    Attributes:
        owner: the class that defines it.
        offset: where it begins in its file.
    """

    owner: "ClassText"
    text: str
    offset: int


@dataclass(frozen=True)
class ClassText:
    """A class as it is written.

    Attributes:
        path: its file.
        bases: last parts of their names.
        body: its text, from its first line on.
        offset: where it begins in its file.
    """

    path: str
    name: str
    bases: tuple[str, ...]
    body: str
    offset: int

    def method(self, name: str) -> Method | None:
        """A method that it defines itself."""
        for match in _METHOD.finditer(self.body):
            if match[1] == name:
                beside = _BESIDE.search(self.body, match.end())
                return Method(self, self.body[match.start() : beside.start() if beside else len(self.body)], self.offset + match.start())
        return None


@dataclass
class _File:
    classes: dict[str, ClassText] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    entries: tuple[str, ...] = ()


class Classes:
    """The classes of the files below one folder of `sglang/srt`."""

    def __init__(self, source: Source, folder: str) -> None:
        self._files = {path: _read(path, source.text(path)) for path in source.paths(folder)}

    def registered(self) -> dict[str, ClassText]:
        """The classes that the files register as EntryClass, by name."""
        found: dict[str, ClassText] = {}
        for path, file in self._files.items():
            for name in file.entries:
                if text := self.find(path, name):
                    found[name] = text
        return found

    def named(self, name: str) -> ClassText | None:
        """A class by its name alone, in whichever file."""
        return next((file.classes[name] for file in self._files.values() if name in file.classes), None)

    def find(self, path: str, name: str, *, defined_here: bool = True) -> ClassText | None:
        """What a name means in a file: a class of it, unless only imported ones are asked for, or one that it imports."""
        file = self._files.get(path)
        if file is None:
            return None
        if defined_here and name in file.classes:
            return file.classes[name]
        module, original = file.imports.get(name, ("", ""))
        return next((text for p in _candidates(module) if (text := self.find(p, original))), None) if module else None

    def lineage(self, text: ClassText) -> Iterator[ClassText]:
        """A class and what it inherits from, as far as the files tell, in the order in which methods are looked up."""
        yield text
        for base in text.bases:
            # `class A(A)` inherits from the A that was imported
            if parent := self.find(text.path, base, defined_here=base != text.name):
                yield from self.lineage(parent)

    def method(self, text: ClassText, name: str) -> Method | None:
        """A method of a class, inherited ones included."""
        return next((method for owner in self.lineage(text) if (method := owner.method(name))), None)


def _candidates(module: str) -> tuple[str, str]:
    base = module.replace(".", "/")
    return f"{base}.py", f"{base}/__init__.py"


def _read(path: str, text: str) -> _File:
    entry = _ENTRY.search(text)
    return _File(
        classes={found.name: found for found in _classes(path, text)},
        imports=_imports(path, text),
        entries=tuple(re.findall(r"\w+", _COMMENT.sub("", entry[1]))) if entry else (),
    )


def _classes(path: str, text: str) -> Iterator[ClassText]:
    for match in _CLASS.finditer(text):
        outside = _OUTSIDE.search(text, match.end())
        bases = [part.split("[")[0].strip().rpartition(".")[2] for part in _COMMENT.sub("", match[2] or "").split(",") if "=" not in part]
        body = text[match.start() : outside.start() if outside else len(text)]
        yield ClassText(path, match[1], tuple(base for base in bases if base.isidentifier()), body, match.start())


def _imports(path: str, text: str) -> dict[str, tuple[str, str]]:
    """Local name → module below sglang.srt and the name there."""
    found: dict[str, tuple[str, str]] = {}
    for module, names in _IMPORT.findall(_COMMENT.sub("", text)):
        inside = _inside(module, path)
        if inside is None:
            continue
        for part in names.strip("() \t\n").split(","):
            original, _, local = (word.strip() for word in part.partition(" as "))
            if original.isidentifier():
                found[local or original] = (inside, original)
    return found


def _inside(module: str, path: str) -> str | None:
    """A module's name below sglang.srt, None for one from elsewhere."""
    if module.startswith(_SRT):
        return module.removeprefix(_SRT)
    if not module.startswith("."):
        return None
    name = module.lstrip(".")
    parts = path.split("/")[: -(len(module) - len(name))]
    return ".".join([*parts, name] if name else parts)
