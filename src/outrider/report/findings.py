"""A preflight's findings, in the order in which a reader needs them."""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.results import Finding, PreflightResult, Verdict

_WORST_FIRST: tuple[Verdict, ...] = ("fail", "warn", "unknown", "pass")


@dataclass(frozen=True)
class Checked:
    """One preflight.

    Attributes:
        subject: what was checked.
        open: what fails, then what warns.
        unknown: checks that could not be made.
        passed: the rest.
    """

    subject: str
    result: PreflightResult
    open: tuple[Finding, ...]
    unknown: tuple[Finding, ...]
    passed: tuple[Finding, ...]


def checked(subject: str, result: PreflightResult) -> Checked:
    """Sort a preflight's findings."""
    fails, warns, unknown, passed = (_with(result.findings, verdict) for verdict in _WORST_FIRST)
    return Checked(subject, result, fails + warns, unknown, passed)


def details(finding: Finding) -> tuple[tuple[str, str], ...]:
    """What is known of a finding beside its title, by name."""
    parts = ("found", "expected", "evidence", "effect", "fix")
    return tuple((name, text) for name in parts if (text := getattr(finding, name)))


def engine_of(result: PreflightResult) -> str:
    """The engine that was checked against: vllm 0.16.0, V1 runner."""
    engine = result.engine
    return f"{engine.name} {engine.version}" + (f", {engine.runner} runner" if engine.runner else "")


def tally(result: PreflightResult) -> str:
    """How many checks ended how: 1 fail, 23 pass."""
    counts = ((len(_with(result.findings, verdict)), verdict) for verdict in _WORST_FIRST)
    return ", ".join(f"{count} {verdict}" for count, verdict in counts if count) or "no check"


def _with(findings: Sequence[Finding], verdict: Verdict) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.verdict == verdict)
