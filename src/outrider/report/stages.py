"""What each stage made, in a few words."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from outrider.core.results import ExportResult, ExtractResult, MeasureResult, OutputFile, ReplayResult, SynthesizeResult, TrainResult
from outrider.report.figures import counted, number


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


def _synthesize(result: SynthesizeResult) -> Made:
    sets = (result.training, *result.measurement.values())
    facts = [
        f"{counted(result.training.num_rows, 'answer')} to train on, {result.training.num_distinct_answers:,} of them distinct, "
        f"{result.training.num_finished:,} finished"
    ]
    facts += [f"{name}: {counted(answers.num_rows, 'answer')}" for name, answers in result.measurement.items()]
    rejected = sum(answers.num_rejected_prompts for answers in sets)
    if rejected:
        facts.append(f"{counted(rejected, 'prompt')} rejected")
    files = tuple(answers.file for answers in sets)
    return Made(tuple(facts), sum(answers.num_answer_tokens for answers in sets), sum(file.num_bytes for file in files), files)


def _extract(result: ExtractResult) -> Made:
    stores = (result.training, *result.measurement.values())
    facts = [
        f"{counted(result.training.num_documents, 'document')} to train on, {result.training.num_supervised_tokens:,} supervised tokens",
        *(f"{name}: {counted(store.num_documents, 'document')}" for name, store in result.measurement.items()),
        f"auxiliary layers {', '.join(map(str, result.aux_layers)) or 'none'}",
    ]
    return Made(
        tuple(facts),
        sum(store.num_tokens for store in stores),
        sum(store.num_bytes for store in stores),
        tuple(store.manifest for store in stores),
    )


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


def _replay(result: ReplayResult) -> Made:
    facts = (
        f"K = {result.num_speculative_tokens}",
        *(f"{name}: {counted(counts.num_verify_steps, 'verify step')}" for name, counts in result.sets.items()),
    )
    return Made(facts)


def _measure(result: MeasureResult) -> Made:
    facts = (
        f"{result.engine} {result.engine_version}, K = {result.num_speculative_tokens}",
        *(f"{name}: {counted(measured.num_prompts, 'prompt')}" for name, measured in result.sets.items()),
    )
    return Made(facts, sum(m.plain.output_tokens + m.drafted.output_tokens for m in result.sets.values()))


_DESCRIPTIONS: Final[dict[str, Callable[[Any], Made]]] = {
    "synthesize": _synthesize,
    "extract": _extract,
    "train": _train,
    "export": _export,
    "replay": _replay,
    "measure": _measure,
}
