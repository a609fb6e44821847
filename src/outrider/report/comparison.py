"""The table that compares prompt sets: one row a quantity, one column a set."""

from dataclasses import dataclass

from outrider.core.results import Acceptance
from outrider.report.figures import NO_DATA, bounds, number, signed, times
from outrider.report.gather import ReportData, SetReport


@dataclass(frozen=True)
class Cell:
    """A written value; `note` is smaller, below it: an interval, a reason. `missing` values are words, not numbers."""

    text: str
    note: str = ""
    missing: bool = False


@dataclass(frozen=True)
class Row:
    """One quantity over all sets. `term` is its entry in the glossary, empty for none."""

    label: str
    term: str
    cells: tuple[Cell, ...]


def compare(data: ReportData) -> tuple[Row, ...]:
    """The rows, in the order in which a reader asks for them."""
    sets = data.sets
    unmeasured = Cell("not run" if data.results.measure is None else "not measured", missing=True)
    unreplayed = Cell("not run" if data.results.replay is None else "not replayed", missing=True)
    undiagnosed = Cell("not run" if data.results.diagnose is None else NO_DATA, missing=True)
    unchecked = Cell("not run" if data.results.synthesize is None else NO_DATA, missing=True)

    def row(label: str, term: str, cells: list[Cell]) -> Row:
        return Row(label, term, tuple(cells))

    return (
        row("Speedup", "speedup", [_speedup(s, unmeasured) for s in sets]),
        row("Output tokens/s, with drafter", "output tokens/s", [_speed(s, "drafted", unmeasured) for s in sets]),
        row("Output tokens/s, without", "output tokens/s", [_speed(s, "plain", unmeasured) for s in sets]),
        row("Acceptance length, engine", "acceptance length", [_length(s, unmeasured) for s in sets]),
        row("Acceptance length, replay", "acceptance length", [_replay_length(s.replayed, unreplayed) for s in sets]),
        row("Engine minus replay", "engine minus replay", [_difference(s, undiagnosed) for s in sets]),
        row("Diagnosis", "diagnosis", [Cell(s.diagnosis.cause) if s.diagnosis else undiagnosed for s in sets]),
        row("Acceptance rate, engine", "acceptance rate", [_engine_rate(s, unmeasured) for s in sets]),
        row("Acceptance rate, replay", "acceptance rate", [_rate(s.replayed) if s.replayed else unreplayed for s in sets]),
        row("Identical outputs", "identical outputs", [_identical(s, unmeasured) for s in sets]),
        row("Distinct answers", "distinct answers", [_distinct(s, unmeasured) for s in sets]),
        row("Prompts shared with training", "shared with training", [_shared(s, unchecked) for s in sets]),
    )


def _written(text: str, note: str = "") -> Cell:
    return Cell(text, note, missing=text == NO_DATA)


def _speedup(prompt_set: SetReport, missing: Cell) -> Cell:
    measured = prompt_set.measured
    if measured is None:
        return missing
    if measured.speedup is None:
        return Cell(NO_DATA, measured.speedup_missing or "", missing=True)
    return _written(times(measured.speedup.value), bounds(measured.speedup))


def _speed(prompt_set: SetReport, arm: str, missing: Cell) -> Cell:
    if prompt_set.measured is None:
        return missing
    return _written(number({"drafted": prompt_set.measured.drafted, "plain": prompt_set.measured.plain}[arm].tok_per_s, 1))


def _length(prompt_set: SetReport, missing: Cell) -> Cell:
    measured = prompt_set.measured
    return _written(number(measured.acceptance_length), bounds(measured.acceptance_length_interval)) if measured else missing


def _replay_length(replayed: Acceptance | None, missing: Cell) -> Cell:
    return _written(number(replayed.acceptance_length)) if replayed else missing


def _difference(prompt_set: SetReport, missing: Cell) -> Cell:
    if prompt_set.diagnosis is None:
        return missing
    difference = prompt_set.diagnosis.difference
    return _written(signed(difference.value), bounds(difference)) if difference else Cell(NO_DATA, missing=True)


def _engine_rate(prompt_set: SetReport, missing: Cell) -> Cell:
    if prompt_set.measured is None:
        return missing
    return _rate(prompt_set.engine_acceptance) if prompt_set.engine_acceptance else Cell(NO_DATA, missing=True)


def _rate(counts: Acceptance) -> Cell:
    return _written(number(counts.acceptance_rate, 3))


def _identical(prompt_set: SetReport, missing: Cell) -> Cell:
    measured = prompt_set.measured
    if measured is None:
        return missing
    first = min(measured.first_difference.values(), default=None)
    return Cell(f"{measured.num_identical:,}/{measured.num_prompts:,}", "" if first is None else f"first at token {first:,}")


def _distinct(prompt_set: SetReport, missing: Cell) -> Cell:
    return Cell(f"{prompt_set.measured.num_distinct_answers:,}") if prompt_set.measured else missing


def _shared(prompt_set: SetReport, missing: Cell) -> Cell:
    return missing if prompt_set.num_shared_prompts is None else Cell(f"{prompt_set.num_shared_prompts:,}")
