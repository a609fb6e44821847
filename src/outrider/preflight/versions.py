"""In which known versions something holds: what a fix names."""

from collections.abc import Callable, Iterator
from typing import Final

from packaging.version import InvalidVersion, Version

from outrider.core.errors import InputError
from outrider.engines.facts import EngineFacts
from outrider.engines.known import facts_of_version, known_versions

_ENGINES: Final = ("vllm", "sglang")


def version_of(facts: EngineFacts) -> Version:
    """The version of an engine, to be compared.

    Raises:
        InputError: what the engine calls its version is none.
    """
    try:
        return Version(facts.version)
    except InvalidVersion:
        raise InputError(f"{facts.engine} is of no version that can be read", evidence=f"{facts.source}: {facts.version!r}") from None


def versions_where(facts: EngineFacts, holds: Callable[[EngineFacts], bool]) -> str:
    """The versions of an engine in which something holds, those behind the given one first; empty if there are none."""
    return _span(facts.engine, holds, version_of(facts))


def elsewhere(facts: EngineFacts, holds: Callable[[EngineFacts], bool]) -> str:
    """The same of every engine: its own versions, then those of others; empty if there are none."""
    others = (_span(engine, holds, None) for engine in _ENGINES if engine != facts.engine)
    return ", or ".join(span for span in (versions_where(facts, holds), *others) if span)


def _span(engine: str, holds: Callable[[EngineFacts], bool], behind: Version | None) -> str:
    """`vllm 0.18.0 or later`, `vllm 0.18.0 to 0.20.2`, or, where no later version is any good, `vllm 0.17.1 or earlier`."""
    known = known_versions(engine)
    good = [version for version in known if holds(facts_of_version(engine, version))]
    later = [version for version in good if behind is None or Version(version) > behind]
    if not later:
        return f"{engine} {good[-1]} or earlier" if good else ""
    *_, last = _run(known[known.index(later[0]) :], good)
    if last == known[-1]:
        return f"{engine} {later[0]} or later"
    return f"{engine} {later[0]}" if last == later[0] else f"{engine} {later[0]} to {last}"


def _run(known: list[str], good: list[str]) -> Iterator[str]:
    for version in known:
        if version not in good:
            return
        yield version
