"""What SGLang's command line takes: algorithms, arguments of speculation, attention back-ends, pipelines."""

import ast
import re
from collections.abc import Iterator
from typing import Final, Literal

from outrider.engines.sglang.source import Source, at, strings

_ARGUMENTS: Final = "server_args.py"
_GROUPS: Final = "arg_groups"
_ALGORITHMS: Final = "speculative/spec_info.py"
_REGISTRY: Final = "speculative/spec_registry.py"
_NONE: Final = "NONE"
# names that are taken beside the members of the enumeration
_RESERVED: Final = r"^_RESERVED_\w+\b[^=\n]*= frozenset\(\s*\{([^}]*)\}"
# one field of the class that holds the arguments, up to the next line that begins at its depth
_FIELD: Final = r"^    (?P<name>\w+): A\[(?P<rest>(?:.*\n)(?:^(?:\s*$|     .*|    \].*)\n)*)"


def argument_files(source: Source) -> list[str]:
    """The files that define arguments and what they refuse."""
    return [path for path in (_ARGUMENTS, *source.paths(_GROUPS)) if source.text(path)]


def methods(source: Source) -> tuple[tuple[str, ...], str]:
    """The algorithms in lower case, and where they stand.

    Up to 0.5.11 the argument lists its choices; later every member of the enumeration is taken, and the names that are
    reserved beside it.
    """
    for path, match in source.search(argument_files(source), r"\"--speculative-algorithm\",\s*type=str,\s*choices=(\[[^\]]*\])"):
        return tuple(name.lower() for name in re.findall(r"\w+", match[1])), source.place(path, match.start())
    for node in source.tree(_ALGORITHMS).body:
        if isinstance(node, ast.ClassDef) and node.name == "SpeculativeAlgorithm":
            names = [str(member.targets[0].id) for member in _members(node) if isinstance(member.targets[0], ast.Name)]
            reserved = [name for _, match in source.search([_REGISTRY], _RESERVED) for name in re.findall(r"\w+", match[1])]
            found = [name.lower() for name in dict.fromkeys([*names, *reserved]) if name != _NONE]
            return tuple(found), at(_ALGORITHMS, node.lineno)
    return (), f"no algorithms in sglang/srt/{_ARGUMENTS} and sglang/srt/{_ALGORITHMS}"


def _members(node: ast.ClassDef) -> Iterator[ast.Assign]:
    for statement in node.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            yield statement


def speculative_keys(source: Source) -> tuple[str, ...]:
    """Arguments that begin with --speculative-, without that, with `_`; in the class of fields an argument needs no flag."""
    files = argument_files(source)
    flags = {match[1].replace("-", "_") for _, match in source.search(files, r"\"--speculative-([\w-]+)\"")}
    fields = {
        match["name"].removeprefix("speculative_")
        for _, match in source.search(files, _FIELD)
        if match["name"].startswith("speculative_") and "no_cli=True" not in match["rest"]
    }
    return tuple(sorted(flags | fields))


def attention_backends(source: Source) -> tuple[str, ...]:
    """The choices of --attention-backend, in the order of the source."""
    for _, match in source.search(argument_files(source), r"^ATTENTION_BACKEND_CHOICES = (\[[^\]]*\])"):
        return tuple(strings(ast.parse(match[1])))
    return ()


def pipeline(source: Source) -> tuple[Literal["none", "listed", "all", "unknown"], str]:
    """Whether EAGLE-3 is taken over several pipeline stages, and where that is said.

    Up to 0.5.20 no speculation is; later EAGLE is under conditions, EAGLE-3 is not. A place that says neither is unknown.
    """
    found = source.search(
        argument_files(source), r"speculative_algorithm is None\b(?:[^\n]*\n){1,4}?[^\n]*\"Pipeline parallelism is not compatible"
    )
    only_eagle = source.search(
        argument_files(source),
        r"speculative_algorithm\.upper\(\) == \"EAGLE\"(?:[^\n]*\n){1,4}?[^\n]*\"Pipeline parallelism currently only",
    )
    for path, match in (*found, *only_eagle):
        return "none", source.place(path, match.start())
    return "unknown", "what is refused over several pipeline stages could not be read"
