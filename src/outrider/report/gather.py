"""Everything that a report shows, read from whatever a run folder holds so far."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from outrider.core.errors import InputError
from outrider.core.files import read_json, read_jsonl
from outrider.core.names import METRICS_FILE, STAGES
from outrider.core.record import RunFolder
from outrider.core.results import (
    Acceptance,
    DiagnoseResult,
    ExportResult,
    ExtractResult,
    MeasureResult,
    PreflightResult,
    ReplayResult,
    SetDiagnosis,
    SetMeasurement,
    SynthesizeResult,
    TrainResult,
)
from outrider.report.findings import Checked, checked
from outrider.report.provenance import versions
from outrider.report.stages import StageReport, describe
from outrider.report.verdict import Verdict, cautions, judge

R = TypeVar("R", bound=BaseModel)


@dataclass(frozen=True)
class StageResults:
    """The typed result of each stage; None where the stage has not run.

    Attributes:
        preflight: of the planned drafter.
        preflight_export: of the folder that was made.
    """

    preflight: PreflightResult | None
    synthesize: SynthesizeResult | None
    extract: ExtractResult | None
    train: TrainResult | None
    export: ExportResult | None
    preflight_export: PreflightResult | None
    measure: MeasureResult | None
    replay: ReplayResult | None
    diagnose: DiagnoseResult | None

    def of(self, stage: str) -> BaseModel | None:
        """The result of a stage by its name."""
        result: BaseModel | None = getattr(self, stage.replace("-", "_"))
        return result


@dataclass(frozen=True)
class SetReport:
    """What is known of one prompt set; None where the stage that would tell has not run or did not have the set."""

    name: str
    measured: SetMeasurement | None
    replayed: Acceptance | None
    diagnosis: SetDiagnosis | None
    num_shared_prompts: int | None

    @property
    def engine_acceptance(self) -> Acceptance | None:
        """The engine's counts, corrected by its own rule; None if it was not measured or keeps none."""
        return self.measured.drafted.acceptance if self.measured else None


@dataclass(frozen=True)
class TrainingCurve:
    """The trainer's log, by optimizer step.

    Attributes:
        loss: (step, training loss).
        held_out_loss: (step, loss on held-out documents).
        held_out_accuracy_at: for each training-time-test step, (step, accuracy in [0, 1]).
        problem: why there is no curve or only the beginning of it; empty if it is whole.
    """

    loss: tuple[tuple[int, float], ...] = ()
    held_out_loss: tuple[tuple[int, float], ...] = ()
    held_out_accuracy_at: tuple[tuple[tuple[int, float], ...], ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class ReportData:
    """A run as a report shows it.

    Attributes:
        sets: the prompt sets, the run's own workload first.
        preflights: those that have run, with their findings sorted.
        config: the resolved configuration; None if the run folder holds none.
        versions: of the environment that makes the report.
    """

    run_name: str
    verdict: Verdict
    cautions: tuple[str, ...]
    results: StageResults
    sets: tuple[SetReport, ...]
    preflights: tuple[Checked, ...]
    stages: tuple[StageReport, ...]
    curve: TrainingCurve
    config: dict[str, Any] | None
    versions: dict[str, str]


def gather(run: RunFolder) -> ReportData:
    """Read all that the run folder holds; a stage that has not run is None, never 0.

    Raises:
        InputError: a file is there and cannot be read.
    """
    results = StageResults(
        preflight=_result(run, "preflight", PreflightResult),
        synthesize=_result(run, "synthesize", SynthesizeResult),
        extract=_result(run, "extract", ExtractResult),
        train=_result(run, "train", TrainResult),
        export=_result(run, "export", ExportResult),
        preflight_export=_result(run, "preflight-export", PreflightResult),
        measure=_result(run, "measure", MeasureResult),
        replay=_result(run, "replay", ReplayResult),
        diagnose=_result(run, "diagnose", DiagnoseResult),
    )
    return ReportData(
        run_name=run.path.resolve().name,
        verdict=judge(results.measure),
        cautions=cautions(results.measure, results.synthesize),
        results=results,
        sets=_sets(results),
        preflights=tuple(_preflights(results)),
        stages=tuple(_stage(run, name, results.of(name)) for name in STAGES if name != "report"),
        curve=_training_curve(run.path / "train" / METRICS_FILE),
        config=_config(run.path / "run.json"),
        versions=versions(),
    )


def _result(run: RunFolder, name: str, result_type: type[R]) -> R | None:
    return run.result(name, result_type) if run.has(name) else None


def _stage(run: RunFolder, name: str, result: BaseModel | None) -> StageReport:
    if result is None:
        return StageReport(name)
    record = run.record(name)
    return describe(name, result, wall_s=_finite(record.wall_s), inputs_digest=record.inputs_digest)


def _sets(results: StageResults) -> tuple[SetReport, ...]:
    measured = results.measure.sets if results.measure else {}
    replayed = results.replay.sets if results.replay else {}
    shared = results.synthesize.shared_ngrams if results.synthesize else {}
    diagnosed = results.diagnose.sets if results.diagnose else {}

    def of(name: str) -> SetReport:
        counted = replayed.get(name)
        return SetReport(name, measured.get(name), counted.total if counted else None, diagnosed.get(name), shared.get(name))

    return tuple(of(name) for name in dict.fromkeys([*measured, *replayed, *shared]))


def _preflights(results: StageResults) -> Iterator[Checked]:
    for subject, result in (("planned drafter", results.preflight), ("exported folder", results.preflight_export)):
        if result is not None:
            yield checked(subject, result)


def _config(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    config = read_json(path, "the run's configuration")
    if not isinstance(config, dict):
        raise InputError("the run's configuration is not a JSON object", evidence=str(path))
    return config


def _training_curve(path: Path) -> TrainingCurve:
    """Read the trainer's log up to its first unreadable line; a step logged twice counts as its later line says."""
    if not path.exists():
        return TrainingCurve(problem="There is no training log.")
    loss: dict[int, float] = {}
    held_out_loss: dict[int, float] = {}
    accuracy_at: dict[int, dict[int, float]] = {}
    problem = ""
    try:
        for _, line in read_jsonl(path, "the training log"):
            step = line.get("step")
            if not isinstance(step, int):
                continue
            _keep(loss, step, line.get("loss"))
            _keep(held_out_loss, step, line.get("held_out_loss"))
            accuracies = line.get("held_out_accuracy_at")
            for k, accuracy in enumerate(accuracies if isinstance(accuracies, list) else ()):
                _keep(accuracy_at.setdefault(k, {}), step, accuracy)
    except InputError as error:
        problem = f"Only the beginning of the training log is shown: {error.what}."
    return TrainingCurve(
        loss=_by_step(loss),
        held_out_loss=_by_step(held_out_loss),
        held_out_accuracy_at=tuple(_by_step(accuracy_at[k]) for k in sorted(accuracy_at)),
        problem=problem,
    )


def _keep(values: dict[int, float], step: int, value: object) -> None:
    if isinstance(value, (int, float)):
        values[step] = float(value)


def _by_step(values: dict[int, float]) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(values.items()))


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
