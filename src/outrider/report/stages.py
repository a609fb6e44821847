"""What each stage made, in a few words."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from outrider.core.results import (
    DiagnoseResult,
    ExportResult,
    ExtractResult,
    MeasureResult,
    OutputFile,
    PreflightResult,
    ReplayResult,
    SynthesizeResult,
    TrainResult,
)
from outrider.report.figures import counted, number
from outrider.report.findings import engine_of, tally


@dataclass(frozen=True)
class Made:
    """What a stage made. Tokens and bytes are None where the stage makes none."""

    facts: tuple[str, ...]
    num_tokens: int | None = None
    num_bytes: int | None = None
    files: tuple[OutputFile, ...] = ()


@dataclass(frozen=True)
class StageReport:
    """One stage; `made` is None if it has not run."""

    name: str
    made: Made | None = None
    wall_s: float | None = None
    inputs_digest: str = ""


def describe(name: str, result: Any, *, wall_s: float | None, inputs_digest: str) -> StageReport:
    """The report of a stage that has run."""
    return StageReport(name, _DESCRIPTIONS[name](result), wall_s, inputs_digest)


def _preflight(result: PreflightResult) -> Made:
    return Made((engine_of(result), tally(result)))


def _synthesize(result: SynthesizeResult) -> Made:
    answers = result.training
    facts = [
        f"{counted(answers.num_rows, 'answer')} to train on, {answers.num_distinct_answers:,} of them distinct, "
        f"{answers.num_finished:,} finished"
    ]
    if answers.num_rejected_prompts:
        facts.append(f"{counted(answers.num_rejected_prompts, 'prompt')} rejected")
    return Made(tuple(facts), answers.num_answer_tokens, answers.file.num_bytes, (answers.file,))


def _extract(result: ExtractResult) -> Made:
    store = result.training
    facts = (
        f"{counted(store.num_documents, 'document')} to train on, {store.num_supervised_tokens:,} supervised tokens",
        f"auxiliary layers {', '.join(map(str, result.aux_layers)) or 'none'}",
    )
    return Made(facts, store.num_tokens, store.num_bytes, (store.manifest,))


def _train(result: TrainResult) -> Made:
    accuracy = ", ".join(number(value) for value in result.accuracy_at)
    facts = (
        f"{counted(result.num_steps, 'step')}, {result.tok_per_s:,.0f} tokens/s",
        f"held-out loss {number(result.held_out_loss, 3)}",
        f"held-out accuracy {accuracy or 'no data'}",
        f"draft vocabulary {result.draft_vocab_size:,}, coverage {number(result.vocab_coverage, 4)}",
    )
    return Made(facts, result.num_trained_tokens, result.checkpoint.num_bytes, (result.checkpoint,))


def _export(result: ExportResult) -> Made:
    facts = (f"layer names {result.layer_names}", f"for {', '.join(result.engines) or 'no engine in particular'}")
    return Made(facts, None, result.weights.num_bytes + result.config.num_bytes, (result.weights, result.config))


def _measure(result: MeasureResult) -> Made:
    facts = (
        f"{result.engine} {result.engine_version}, K = {result.num_speculative_tokens}",
        *(f"{name}: {counted(measured.num_prompts, 'prompt')}" for name, measured in result.sets.items()),
    )
    return Made(facts, sum(m.plain.output_tokens + m.drafted.output_tokens for m in result.sets.values()))


def _replay(result: ReplayResult) -> Made:
    if result.missing:
        return Made((f"no replay: {result.missing}",))
    steps = (f"{name}: {counted(replayed.total.num_verify_steps, 'verify step')}" for name, replayed in result.sets.items())
    return Made((f"K = {result.num_speculative_tokens}", *steps))


def _diagnose(result: DiagnoseResult) -> Made:
    return Made(tuple(f"{name}: {found.cause}" for name, found in result.sets.items()) or (result.cause,))


_DESCRIPTIONS: Final[dict[str, Callable[[Any], Made]]] = {
    "preflight": _preflight,
    "synthesize": _synthesize,
    "extract": _extract,
    "train": _train,
    "export": _export,
    "preflight-export": _preflight,
    "measure": _measure,
    "replay": _replay,
    "diagnose": _diagnose,
}
