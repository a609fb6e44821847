"""One target and drafter against every engine version whose facts are kept: which one to deploy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from outrider.core.errors import InputError, from_os_error
from outrider.core.results import MatrixRow
from outrider.engines.facts import EngineFacts
from outrider.engines.known import facts_of_version, known_versions
from outrider.preflight.check import Subject
from outrider.preflight.method import method_of
from outrider.preflight.serve_args import ServeArgs, completed, parsed
from outrider.preflight.stage import judged, subject_of


def matrix(
    target_path: Path, drafter: Path | Mapping[str, Any], engines: Iterable[str], arguments: Sequence[str], method: str | None
) -> list[MatrixRow]:
    """Every known version of these engines, oldest first; target and drafter are read once.

    Raises:
        InputError: a file or an argument that cannot be read, or engines of no known version.
    """
    versions = [(engine, version) for engine in engines for version in known_versions(engine)]
    if not versions:
        raise InputError("no facts of its versions are kept", fix="--engine vllm or sglang, or none for both")
    try:
        subject = subject_of(target_path, drafter, facts_of_version(*versions[0]), arguments, method)
        given = parsed(arguments)
        return [_row(subject, facts_of_version(engine, version), given, method) for engine, version in versions]
    except OSError as error:
        raise from_os_error(error) from None


def _row(subject: Subject, facts: EngineFacts, given: ServeArgs, chosen: str | None) -> MatrixRow:
    arguments = completed(given, facts)
    method, source = method_of(facts.engine, subject.algorithm, chosen, arguments)
    subject = replace(subject, facts=facts, arguments=arguments, method=method, method_source=source)
    result = judged(subject)
    failed = [finding for finding in result.findings if finding.verdict == "fail"]
    return MatrixRow(
        engine=facts.engine,
        version=facts.version,
        runner=result.engine.runner,
        verdict=result.verdict,
        failing=tuple(finding.id for finding in failed),
        title=failed[0].title if failed else "",
        warning=tuple(finding.id for finding in result.findings if finding.verdict == "warn"),
    )


def first_without_failure(rows: Iterable[MatrixRow]) -> dict[str, str]:
    """For each engine the first version after the last one that fails; an engine whose newest version fails is left out."""
    found: dict[str, str] = {}
    for row in rows:
        if row.verdict == "fail":
            found.pop(row.engine, None)
        else:
            found.setdefault(row.engine, row.version)
    return found
