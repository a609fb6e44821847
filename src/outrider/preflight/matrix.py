"""One target and drafter against every engine version whose facts are kept: which one to deploy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from outrider.core.errors import from_os_error
from outrider.core.results import MatrixRow
from outrider.engines.known import facts_of_version, known_versions
from outrider.preflight.check import Subject
from outrider.preflight.method import method_of
from outrider.preflight.stage import judged, subject_of


def matrix(
    target_path: Path, drafter: Path | Mapping[str, Any], engines: Iterable[str], arguments: Sequence[str], method: str | None
) -> list[MatrixRow]:
    """Every known version of these engines, oldest first; target and drafter are read once.

    Raises:
        InputError: a file or an argument that cannot be read.
    """
    versions = [(engine, version) for engine in engines for version in known_versions(engine)]
    if not versions:
        return []
    try:
        subject = subject_of(target_path, drafter, facts_of_version(*versions[0]), arguments, method)
        return [_row(subject, engine, version, method) for engine, version in versions]
    except OSError as error:
        raise from_os_error(error) from None


def _row(subject: Subject, engine: str, version: str, chosen: str | None) -> MatrixRow:
    method, source = method_of(engine, subject.algorithm, chosen, subject.arguments)
    subject = replace(subject, facts=facts_of_version(engine, version), method=method, method_source=source)
    result = judged(subject)
    failed = [finding for finding in result.findings if finding.verdict == "fail"]
    return MatrixRow(
        engine=engine,
        version=version,
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
