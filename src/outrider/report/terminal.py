"""A run's report in the terminal: readable at 80 columns, and when it is piped into a file."""

from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.core.results import Cause, DiagnoseResult, SetDiagnosis, Verdict
from outrider.report.figures import NO_DATA, bounds, duration, number, signed, size, times, visible
from outrider.report.findings import Checked, details, engine_of, tally
from outrider.report.gather import ReportData, SetReport
from outrider.report.stages import StageReport

_STYLES: Final = {"pays": "bold green", "does not pay": "bold red", "undecided": "bold yellow", "not measured": "bold"}
_CAUSE_STYLES: Final[dict[Cause, str]] = {
    "as expected": "green",
    "training": "yellow",
    "regime": "yellow",
    "undecided": "yellow",
    "integration": "bold red",
    "invalid": "bold red",
}
_FINDING_STYLES: Final[dict[Verdict, str]] = {"fail": "bold red", "warn": "yellow", "unknown": "", "pass": "green"}


def print_report(data: ReportData, console: Console) -> None:
    """Print the verdict and the diagnosis, then a table for each prompt set, then what the preflights found, then the stages."""
    console.print(_text(data.verdict.sentence, _STYLES[data.verdict.kind]))
    if data.results.diagnose:
        print_diagnosis(data.results.diagnose, console)
    else:
        console.print(_text("diagnosis: the stage diagnose has not run"))
    if data.verdict.conditions:
        console.print(_text(data.verdict.conditions))
    for caution in data.cautions:
        console.print(_text(f"caution: {caution}", "yellow"))
    for prompt_set in data.sets:
        if prompt_set.measured is None and prompt_set.replayed is None:
            continue
        console.print()
        console.print(_text(prompt_set.name, "bold"))
        console.print(_set_table(prompt_set, data))
    for check in data.preflights:
        console.print()
        for text in _findings(check):
            console.print(text)
    console.print()
    console.print(_stage_table(data.stages))


def print_diagnosis(found: DiagnoseResult, console: Console) -> None:
    """Print the cause with its reason, then what to do next."""
    for text in _diagnosis("diagnosis", found):
        console.print(text)


def print_set_diagnoses(found: DiagnoseResult, console: Console) -> None:
    """Print the diagnosis of each prompt set."""
    for name, of_set in found.sets.items():
        for text in _diagnosis(name, of_set):
            console.print(text)


def _diagnosis(heading: str, found: DiagnoseResult | SetDiagnosis) -> Iterator[Text]:
    yield _text(f"{heading}: {found.cause}; {found.reason}", _CAUSE_STYLES[found.cause])
    if found.next_test:
        yield _text(f"next: {found.next_test}")


def _findings(check: Checked) -> Iterator[Text]:
    """What fails or warns with all that is known of it; what is unknown in a line; what passed as a count."""
    yield _text(f"preflight of the {check.subject} ({engine_of(check.result)}): {tally(check.result)}", "bold")
    for finding in check.open:
        yield _text(f"{finding.verdict.upper():<7} {finding.id}  {finding.title}", _FINDING_STYLES[finding.verdict])
        yield from (_text(f"  {name:<9} {value}") for name, value in details(finding))
    for finding in check.unknown:
        yield _text(f"UNKNOWN {finding.id}  {finding.title}")


def _text(text: str, style: str = "") -> Text:
    """Plain text: neither markup nor control characters of a name act on the terminal."""
    return Text(visible(text), style=style, overflow="fold")


def _set_table(prompt_set: SetReport, data: ReportData) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("", width=29, overflow="fold")
    table.add_column("engine", justify="right", width=13, overflow="fold")
    table.add_column("interval", width=14, overflow="fold")
    table.add_column("replay", justify="right", width=13, overflow="fold")
    engine_missing = "has not run" if data.results.measure is None else "not measured"
    replay_missing = "has not run" if data.results.replay is None else "not replayed"
    for row in (*_acceptance_rows(prompt_set, engine_missing, replay_missing), *_speed_rows(prompt_set)):
        table.add_row(*map(_text, row))
    return table


def _acceptance_rows(prompt_set: SetReport, engine_missing: str, replay_missing: str) -> list[tuple[str, str, str, str]]:
    measured, engine, replay = prompt_set.measured, prompt_set.engine_acceptance, prompt_set.replayed
    length, rate, interval = engine_missing, engine_missing, ""
    if measured is not None:
        length, interval = number(measured.acceptance_length), bounds(measured.acceptance_length_interval)
        rate = number(engine.acceptance_rate, 3) if engine else NO_DATA
    replay_length = number(replay.acceptance_length) if replay else replay_missing
    replay_rate = number(replay.acceptance_rate, 3) if replay else replay_missing
    rows = [
        ("acceptance length", length, interval, replay_length),
        *_difference_rows(prompt_set.diagnosis),
        ("acceptance rate", rate, "", replay_rate),
    ]
    engine_at = engine.acceptance_at if engine else ()
    replay_at = replay.acceptance_at if replay else ()
    for k in range(max(len(engine_at), len(replay_at))):
        at_engine, at_replay = (number(values[k], 3) if k < len(values) else "" for values in (engine_at, replay_at))
        rows.append((f"  accepted at position {k + 1}", at_engine, "", at_replay))
    return rows


def _difference_rows(found: SetDiagnosis | None) -> list[tuple[str, str, str, str]]:
    if found is None:
        return []
    difference = found.difference
    rows = [("engine minus replay", signed(difference.value), bounds(difference), "")] if difference else []
    return [*rows, ("diagnosis", found.cause, "", "")]


def _speed_rows(prompt_set: SetReport) -> list[tuple[str, ...]]:
    measured = prompt_set.measured
    if measured is None:
        return []
    speedup = times(measured.speedup.value) if measured.speedup else NO_DATA
    return [
        ("output tokens/s, with drafter", number(measured.drafted.tok_per_s, 1)),
        ("output tokens/s, without", number(measured.plain.tok_per_s, 1)),
        ("speedup", speedup, bounds(measured.speedup) or measured.speedup_missing or ""),
        ("identical outputs", f"{measured.num_identical:,}/{measured.num_prompts:,}"),
        ("distinct answers", f"{measured.num_distinct_answers:,}"),
    ]


def _stage_table(stages: tuple[StageReport, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("stage", no_wrap=True)
    for heading in ("time", "tokens", "size"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for stage in stages:
        if stage.made is None:
            table.add_row(stage.name, "", "", "", "has not run")
            continue
        tokens = "" if stage.made.num_tokens is None else f"{stage.made.num_tokens:,}"
        num_bytes = "" if stage.made.num_bytes is None else size(stage.made.num_bytes)
        table.add_row(stage.name, duration(stage.wall_s), tokens, num_bytes, _text("\n".join(stage.made.facts)))
    return table
