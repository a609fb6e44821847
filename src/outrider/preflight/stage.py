"""The stage: read what is there, run every check, in order."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import outrider.preflight.checks as checks
from outrider.core.errors import FindingFailed, InputError, from_os_error
from outrider.core.plugins import load_plugin, plugin_ids
from outrider.core.results import CheckedEngine, Finding, PreflightResult, Verdict
from outrider.engines.facts import EngineFacts
from outrider.engines.known import Standing
from outrider.preflight.check import Check, Subject
from outrider.preflight.method import algorithm_of, method_of
from outrider.preflight.reading import read_headers, read_object, resolved_folder
from outrider.preflight.serve_args import completed, parsed

_WORST_FIRST: Final[tuple[Verdict, ...]] = ("fail", "warn", "unknown", "pass")


def preflight(
    target_path: Path,
    drafter: Path | Mapping[str, Any],
    facts: EngineFacts,
    arguments: Sequence[str] = (),
    method: str | None = None,
    standing: Standing = "exact",
) -> PreflightResult:
    """Whether an engine would serve a target with a drafter; nothing is loaded, nothing is started.

    Args:
        target_path: its folder; config.json is enough.
        drafter: its folder, or the config of one that is planned.
        facts: of the engine's version.
        arguments: the engine's own, of the launch that is meant.
        method: of speculation, in the engine's words; None for the one that follows from arguments and drafter.
        standing: whether the facts are of this very version.

    Raises:
        InputError: a file or an argument that cannot be read.
    """
    try:
        return judged(subject_of(target_path, drafter, facts, arguments, method, standing))
    except OSError as error:
        raise from_os_error(error) from None


def judged(subject: Subject) -> PreflightResult:
    """Run every check on a subject."""
    findings = tuple(_told(check, subject) for check in all_checks())
    facts = subject.facts
    engine = CheckedEngine(name=facts.engine, version=facts.version, runner=subject.runner, source=facts.source)
    return PreflightResult(verdict=worst(findings), engine=engine, findings=findings)


def with_finding(result: PreflightResult, found: Finding) -> PreflightResult:
    """A result and one finding more."""
    findings = (*result.findings, found)
    return result.model_copy(update={"findings": findings, "verdict": worst(findings)})


def worst(findings: Iterable[Finding]) -> Verdict:
    """The verdict on all of them."""
    given = {finding.verdict for finding in findings}
    return next(verdict for verdict in _WORST_FIRST if verdict in given)


def _told(check: Check, subject: Subject) -> Finding:
    """What a check finds; of a version outside the known ones nothing is told that depends on it."""
    found = check.run(subject)
    if not check.of_version or subject.standing in ("exact", "between") or found.verdict == "unknown":
        return found
    return found.model_copy(update={"verdict": "unknown", "title": f"the nearest known version would {found.verdict}: {found.title}"})


def require(result: PreflightResult) -> None:
    """Refuse to go on where a check failed.

    Raises:
        FindingFailed: the first check that failed; it names how many others did.
    """
    failed = [finding for finding in result.findings if finding.verdict == "fail"]
    if not failed:
        return
    first, others = failed[0], [finding.id for finding in failed[1:]]
    evidence = [f"found {first.found}"] * bool(first.found) + [f"expected {first.expected}"] * bool(first.expected) + [first.evidence]
    raise FindingFailed(
        f"preflight {first.id}: {first.title}" + (f" (and {len(others)} more failed: {', '.join(others)})" if others else ""),
        evidence="; ".join(evidence),
        effect=first.effect,
        fix=first.fix,
    )


@cache
def all_checks() -> tuple[Check, ...]:
    """Every check, in the order of its finding."""
    loaded = [load_plugin(checks, check_id, "CHECK", Check) for check_id in plugin_ids(checks)]
    return tuple(sorted(loaded, key=lambda check: check.order))


def subject_of(
    target_path: Path,
    drafter: Path | Mapping[str, Any],
    facts: EngineFacts,
    arguments: Sequence[str] = (),
    method: str | None = None,
    standing: Standing = "exact",
) -> Subject:
    """Read a target and a drafter; each may be a folder of a Hugging Face cache.

    Raises:
        InputError: a file that cannot be read.
    """
    _require_folder(target_path, "target", "`outrider target import SRC DIR` makes one from a GGUF file or a Hugging Face folder")
    target_path = resolved_folder(target_path)
    target_config = read_object(target_path / "config.json", "the target's config")
    target_tensors, _ = read_headers(target_path)
    drafter_config: Mapping[str, Any]
    if isinstance(drafter, Path):
        _require_folder(drafter, "drafter", "name its folder, or `eagle3` for one that is to be trained")
        drafter_path = resolved_folder(drafter)
        drafter_config = read_object(drafter_path / "config.json", "the drafter's config")
        drafter_tensors, unread = read_headers(drafter_path)
    else:
        drafter_path, drafter_config, drafter_tensors = None, drafter, None
        unread = "the drafter is only planned: it has no tensors yet"
    serve_args, algorithm = completed(parsed(arguments), facts), algorithm_of(drafter_config)
    method, source = method_of(facts.engine, algorithm, method, serve_args)
    return Subject(
        target_path=target_path,
        target_config=target_config,
        target_tensors=target_tensors,
        drafter_path=drafter_path,
        drafter_config=drafter_config,
        drafter_tensors=drafter_tensors,
        drafter_unread=unread,
        facts=facts,
        arguments=serve_args,
        algorithm=algorithm,
        method=method,
        method_source=source,
        standing=standing,
    )


def _require_folder(path: Path, what: str, fix: str) -> None:
    if not path.is_dir():
        raise InputError(f"no {what} at {path}", evidence="not a folder", fix=fix)
