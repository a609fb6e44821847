"""Faults of engine versions that pass for a bad drafter, or that end a start in ways no other check looks at: a table.

known_faults.json holds the rows. `seen` says whether the fault was read in the engine's own source, or only in the thread
that is linked.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, Literal

from packaging.specifiers import SpecifierSet
from pydantic import ConfigDict, TypeAdapter

from outrider.core.results import Finding, Frozen, Verdict
from outrider.preflight.check import Check, Subject, finding
from outrider.preflight.conditions import Condition, holds
from outrider.preflight.versions import version_of

_ID = "known_faults"
_TABLE: Final = Path(__file__).with_name("known_faults.json")


class KnownFault(Frozen):
    """One row.

    Attributes:
        versions: that have the fault, as a specifier; empty for all.
        condition: whom it concerns.
        link: to the issue or change that tells of it; empty if none is known.
        place: in the engine's source.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    engine: Literal["vllm", "sglang"]
    versions: str
    condition: Condition
    seen: Literal["source", "thread"]
    verdict: Literal["warn", "fail"]
    title: str
    effect: str
    fix: str
    link: str
    place: str


@cache
def known_faults() -> tuple[KnownFault, ...]:
    """Every row."""
    return tuple(TypeAdapter(list[KnownFault]).validate_json(_TABLE.read_bytes()))


def faults_of(subject: Subject) -> Iterator[KnownFault]:
    """The faults that this engine version has and that this target, drafter and launch meet."""
    version = version_of(subject.facts)
    for fault in known_faults():
        if fault.engine != subject.facts.engine or version not in SpecifierSet(fault.versions, prereleases=True):
            continue
        if holds(fault.condition, subject):
            yield fault


def _run(subject: Subject) -> Finding:
    found = sorted(faults_of(subject), key=lambda fault: fault.verdict)  # `fail` before `warn`
    known = [fault for fault in known_faults() if fault.engine == subject.facts.engine]
    if not found:
        title = f"none of the {len(known)} known faults of {subject.facts.engine} concerns this" if known else "no faults are known of it"
        return finding(_ID, "pass", title, f"{_TABLE.parent.name}/{_TABLE.name}")
    verdict: Verdict = found[0].verdict
    return finding(
        _ID,
        verdict,
        "; ".join(fault.title for fault in found),
        "; ".join(fault.link or fault.place for fault in found),
        found=", ".join(f"{fault.id} ({fault.engine} {fault.versions or 'all'})" for fault in found),
        effect="; ".join(fault.effect for fault in found),
        fix="; ".join(dict.fromkeys(fault.fix for fault in found)),
    )


CHECK = Check(id=_ID, order=160, run=_run)
