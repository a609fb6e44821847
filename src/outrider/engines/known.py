"""Facts of engines that are not installed: one JSON file a released version, made by `tools/engine_facts.py`.

ENGINE/versions/X.Y.Z.json, beside the plug-in of the engine
"""

import json
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from packaging.version import Version
from pydantic import TypeAdapter

from outrider.core.errors import InputError
from outrider.engines.facts import EngineFacts

_FOLDER = Path(__file__).parent
Standing = Literal["exact", "between", "newer", "older"]


@dataclass(frozen=True)
class Known:
    """What is known of a version.

    Attributes:
        standing: whether there are facts of this very version, or it lies between, behind or before all known ones.
        facts: under the name of this version, even where they are those of the nearest one.
    """

    standing: Standing
    facts: EngineFacts


def known_versions(engine: str) -> list[str]:
    """The versions of an engine whose facts are kept, oldest first; none for an engine without any."""
    return sorted((path.stem for path in (_FOLDER / engine / "versions").glob("*.json")), key=Version)


@cache
def facts_of_version(engine: str, version: str) -> EngineFacts:
    """The facts that are kept of a version."""
    return facts_from_json((_FOLDER / engine / "versions" / f"{version}.json").read_bytes())


def known_facts(engine: str, version: str) -> Known:
    """The facts of a version, or of the nearest: of two neighbours the older one, since a version adds to it.

    Raises:
        InputError: no version, or an engine of which no facts are kept.
    """
    versions = known_versions(engine)
    if not versions:
        raise InputError(f"no facts of {engine} are kept", fix=f"name an installed one: --engine {engine} --engine-python PATH")
    try:
        wanted = Version(version.split("+")[0])
    except ValueError:  # of which packaging's own error is one; a number may be too long to be read
        raise InputError(f"{version!r} is no version", fix=f"e.g. {engine}=={versions[-1]}") from None
    older = [v for v in versions if Version(v) <= wanted]
    nearest = older[-1] if older else versions[0]
    if Version(nearest) == wanted:
        return Known("exact", facts_of_version(engine, nearest))
    facts = facts_of_version(engine, nearest)
    source = f"facts of {engine} {nearest}, the nearest version whose facts are kept; known are {versions[0]} to {versions[-1]}"
    standing: Standing = "older" if not older else "newer" if nearest == versions[-1] else "between"
    return Known(standing, replace(facts, version=version, source=source))


def facts_from_json(data: bytes) -> EngineFacts:
    """Read a facts file."""
    facts: EngineFacts = _adapter().validate_json(data)
    return facts


def facts_to_json(facts: EngineFacts) -> bytes:
    """A facts file: keys in the order of the classes, sets sorted, so that equal facts are equal bytes."""
    return (json.dumps(asdict(facts), indent=1, ensure_ascii=False, default=sorted) + "\n").encode()


@cache
def _adapter() -> TypeAdapter[EngineFacts]:
    return TypeAdapter(EngineFacts)
