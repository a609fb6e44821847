"""A run's report as one self-contained HTML page: no outside requests, no JavaScript."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from outrider.core.files import write_atomically
from outrider.core.results import Cause
from outrider.report import figures, findings
from outrider.report.charts import Bars, Line, bar_chart, interval_chart, line_chart
from outrider.report.comparison import compare
from outrider.report.gather import ReportData, SetReport, TrainingCurve
from outrider.report.glossary import GLOSSARY
from outrider.report.provenance import REPEAT_COMMAND, as_toml

_VERDICT_CLASS: Final = {"pays": "good", "does not pay": "bad", "undecided": "open", "not measured": "none"}
_CAUSE_CLASS: Final[dict[Cause, str]] = {
    "as expected": "good",
    "training": "open",
    "regime": "open",
    "undecided": "open",
    "integration": "bad",
    "invalid": "bad",
}


def write_page(data: ReportData, path: Path) -> None:
    """Write the page, whole or not at all."""
    write_atomically(path, render(data).encode("utf-8"))


def render(data: ReportData) -> str:
    """The page as HTML text. Everything that comes from the run is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.get_template("page.html.j2").render(
        data=data,
        verdict_class=_VERDICT_CLASS[data.verdict.kind],
        cause_class=_CAUSE_CLASS,
        comparison=compare(data),
        speedup_chart=_speedup_chart(data.sets),
        acceptance_charts=[(s, _acceptance_chart(s)) for s in data.sets if s.engine_acceptance or s.replayed],
        training_charts=list(_training_charts(data.curve)),
        num_undrawn=_num_not_finite(data.curve),
        glossary=GLOSSARY,
        anchor=anchor,
        figures=figures,
        findings=findings,
        total_s=sum(stage.wall_s for stage in data.stages if stage.wall_s is not None),
        config_text=None if data.config is None else as_toml(data.config),
        repeat_command=REPEAT_COMMAND,
    )
    return figures.visible(page)


def anchor(term: str) -> str:
    """The id of a term's entry in the glossary."""
    return "term-" + "".join(c if c.isalnum() else "-" for c in term.lower())


def _speedup_chart(sets: tuple[SetReport, ...]) -> Markup | None:
    rows = [(s.name, s.measured.speedup) for s in sets if s.measured is not None and s.measured.speedup is not None]
    if not rows:
        return None
    described = "; ".join(f"{name}: {figures.with_bounds(figures.times(interval.value), interval)}" for name, interval in rows)
    return Markup(interval_chart("Speedup, 95 % interval", described, x_label="speedup (×)", rows=rows, reference=1.0))


def _acceptance_chart(prompt_set: SetReport) -> Markup:
    counted = (("engine", prompt_set.engine_acceptance), ("replay", prompt_set.replayed))
    series = [Bars(name, counts.acceptance_at) for name, counts in counted if counts is not None]
    num_positions = max(len(bars.values) for bars in series)
    described = "; ".join(f"{bars.name}: {', '.join(figures.number(v, 3) for v in bars.values if v is not None)}" for bars in series)
    groups = [str(k + 1) for k in range(num_positions)]
    title = f"Acceptance at each position, {prompt_set.name}"
    return Markup(bar_chart(title, described, x_label="position", y_label="share of verify steps", groups=groups, series=series))


def _training_charts(curve: TrainingCurve) -> Iterator[Markup]:
    losses = [Line("training", curve.loss), Line("held-out", curve.held_out_loss, marked=True)]
    losses = [line for line in losses if line.points]
    if losses:
        yield Markup(line_chart("Loss", _line_words(losses), x_label="optimizer step", y_label="loss (nats)", lines=losses))
    accuracies = [Line(f"step {s + 1}", points, marked=True) for s, points in enumerate(curve.held_out_accuracy_at) if points]
    if accuracies:
        title = "Held-out accuracy at each training-time-test step"
        yield Markup(line_chart(title, _line_words(accuracies), x_label="optimizer step", y_label="accuracy (share)", lines=accuracies))


def _line_words(lines: list[Line]) -> str:
    """What a line chart shows, for those who do not see it: the last value of each line."""
    return "; ".join(f"{line.name} ends at {figures.number(line.points[-1][1], 3)}" for line in lines)


def _num_not_finite(curve: TrainingCurve) -> int:
    series = (curve.loss, curve.held_out_loss, *curve.held_out_accuracy_at)
    return sum(not math.isfinite(value) for points in series for _, value in points)
