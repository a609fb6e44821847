"""Findings in the terminal: what passed in one line each, everything else with all its parts."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from outrider.core.results import Finding, MatrixRow, PreflightResult, Verdict
from outrider.core.terminal import visible
from outrider.preflight.matrix import first_without_failure

_STYLES: Final[dict[Verdict, str]] = {"pass": "green", "warn": "yellow", "fail": "bold red", "unknown": "cyan"}
_WORDS: Final[dict[Verdict, str]] = {"pass": "pass", "warn": "WARN", "fail": "FAIL", "unknown": "unknown"}
_PARTS: Final = ("found", "expected", "evidence", "effect", "fix")


def print_preflight(result: PreflightResult, console: Console) -> None:
    """Print every finding in order, then the verdict."""
    width = max(len(finding.id) for finding in result.findings)
    for finding in result.findings:
        for line in _lines(finding, width):
            console.print(line)
    engine = result.engine
    runner = f", {engine.runner} runner" if engine.runner else ""
    counts = Counter(finding.verdict for finding in result.findings)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("fail", "warn", "unknown", "pass") if counts[verdict])
    console.print(_text(f"{engine.name} {engine.version}{runner}: {result.verdict} ({told})", _STYLES[result.verdict]))
    console.print(_text(f"facts read in {engine.source}", "dim"))


def print_matrix(rows: Sequence[MatrixRow], console: Console) -> None:
    """Print a line for each version, then the first one of each engine from which on nothing fails."""
    for row in rows:
        line = _text(f"{_WORDS[row.verdict]:<8}", _STYLES[row.verdict]).append_text(_text(f"{row.engine + ' ' + row.version:<24}"))
        line.append_text(_text(f"{row.runner or '':<3} "))
        more = f" (and {', '.join(row.failing[1:])})" if len(row.failing) > 1 else ""
        told = f"{row.failing[0]}: {row.title}{more}" if row.failing else ", ".join(row.warning)
        console.print(line.append_text(_text(told)))
    for engine in dict.fromkeys(row.engine for row in rows):
        first = first_without_failure(rows).get(engine)
        console.print(_text(f"{engine}: nothing fails from {first} on" if first else f"{engine}: the newest known version fails", "bold"))


def _lines(finding: Finding, width: int) -> list[Text]:
    first = _text(f"{_WORDS[finding.verdict]:<8}", _STYLES[finding.verdict]).append_text(_text(f"{finding.id:<{width}}  {finding.title}"))
    if finding.verdict == "pass":
        return [first]
    parts = [(name, getattr(finding, name)) for name in _PARTS]
    return [first, *(_text(f"  {name:<9} {value}") for name, value in parts if value)]


def _text(text: str, style: str = "") -> Text:
    """Plain text: neither markup nor control characters of a path act on the terminal."""
    return Text(visible(text), style=style, overflow="fold")
