"""Run folders as the stages leave them, made from typed results."""

import json
import math
import random
from pathlib import Path

from pydantic import BaseModel

from outrider.core.config import MeasureSection, RunConfig, TargetSection
from outrider.core.files import write_json
from outrider.core.names import METRICS_FILE
from outrider.core.record import RunFolder
from outrider.core.results import (
    Acceptance,
    AnswerSet,
    ArmResult,
    Cause,
    CheckedEngine,
    Counted,
    DiagnoseResult,
    ExportResult,
    ExtractResult,
    Finding,
    Interval,
    MeasureResult,
    OutputFile,
    PreflightResult,
    ReplayResult,
    SetDiagnosis,
    SetMeasurement,
    StoreSummary,
    SynthesizeResult,
    TrainResult,
)


def counts(steps: int, *accepted_at: int) -> Acceptance:
    """Counts of full proposals."""
    return Acceptance(
        num_verify_steps=steps, num_draft_tokens=steps * len(accepted_at), num_accepted_tokens=sum(accepted_at), accepted_at=accepted_at
    )


def measurement(
    speedup: tuple[float, float, float] | None,
    *,
    acceptance: Acceptance | None = None,
    num_prompts: int = 80,
    num_identical: int = 80,
    num_distinct: int = 79,
) -> SetMeasurement:
    """One set: (value, low, high) of its speedup, or None with a reason; its acceptance length ± 0.1."""
    acceptance = acceptance or counts(4820, 3374, 1928, 1012)
    length = acceptance.acceptance_length
    assert length is not None
    drafted = ArmResult(
        output_tokens=11134,
        wall_s=181.6,
        tok_per_s=61.31,
        acceptance=acceptance,
        by_prompt={},
        raw_counters={"spec_decode_num_drafts": 4831.0, "spec_decode_num_accepted_tokens": 6340.0},
    )
    plain = ArmResult(output_tokens=11134, wall_s=257.8, tok_per_s=43.19, acceptance=None, by_prompt={}, raw_counters={})
    value, low, high = speedup or (0, 0, 0)
    return SetMeasurement(
        plain=plain,
        drafted=drafted,
        acceptance_length=length,
        acceptance_length_interval=Interval(value=length, low=length - 0.1, high=length + 0.1),
        speedup=Interval(value=value, low=low, high=high) if speedup else None,
        speedup_missing=None if speedup else "the plain arm was not run",
        num_prompts=num_prompts,
        num_identical=num_identical,
        first_difference={f"prompt-{i}": 17 + i for i in range(num_prompts - num_identical)},
        num_distinct_answers=num_distinct,
    )


def measured(sets: dict[str, SetMeasurement], temperature: float = 0.0) -> MeasureResult:
    """A measurement of these sets in the reference engine."""
    first = next(iter(sets.values()), None)
    return MeasureResult(
        engine="reference",
        engine_version="0.1.0",
        num_speculative_tokens=3,
        temperature=temperature,
        max_tokens=256,
        acceptance_length=first.acceptance_length if first else None,
        speedup=first.speedup.value if first and first.speedup else None,
        sets=sets,
    )


def replayed(sets: dict[str, Acceptance], missing: str = "") -> ReplayResult:
    """Replay of these sets."""
    counted = {name: Counted(total=total, by_prompt={}) for name, total in sets.items()}
    return ReplayResult(num_speculative_tokens=3, sets=counted, missing=missing)


def set_diagnosis(cause: Cause, difference: tuple[float, float, float] | None, next_test: str = "") -> SetDiagnosis:
    """One set: (value, low, high) of engine minus replay."""
    value, low, high = difference or (0, 0, 0)
    return SetDiagnosis(
        cause=cause,
        reason=f"the reason of {cause} with its numbers",
        next_test=next_test,
        engine_length=2.31,
        replay_length=2.33,
        difference=Interval(value=value, low=low, high=high) if difference else None,
        num_verify_steps=4790,
    )


def diagnosed(sets: dict[str, SetDiagnosis]) -> DiagnoseResult:
    """The diagnosis of these sets; the first speaks."""
    name, first = next(iter(sets.items()))
    return DiagnoseResult(cause=first.cause, reason=f"on {name}, {first.reason}", next_test=first.next_test, sets=sets)


def preflight(*findings: Finding, runner: str | None = "V1") -> PreflightResult:
    """Findings on an engine, and two dozen checks that passed."""
    passed = tuple(Finding(id=f"check-{i}", verdict="pass", title=f"property {i} is right", evidence="config.json") for i in range(24))
    worst = next((v for v in ("fail", "warn", "unknown") if any(f.verdict == v for f in findings)), "pass")
    engine = CheckedEngine(name="vllm", version="0.16.0", runner=runner, source="the facts file of this version")
    return PreflightResult.model_validate({"verdict": worst, "engine": engine, "findings": (*passed[:9], *findings, *passed[9:])})


FAIL = Finding(
    id="target-allowed",
    verdict="fail",
    title="vLLM 0.16.0 does not accept method eagle3 for target type kimi_k2",
    found='text_config.model_type = "kimi_k2"',
    expected="llama, qwen, minicpm, gpt_oss",
    evidence="vllm/config/speculative.py:689",
    effect="the server exits seconds after start with ValueError",
    fix="vLLM 0.18.0 or later",
)
WARN = Finding(
    id="rope-equal",
    verdict="warn",
    title="target and drafter rotate by different theta",
    found="theta 500,000",
    expected="theta 10,000",
    evidence="target/config.json and drafter/config.json",
    effect="late positions are accepted less often",
    fix="export the drafter again with the target's rope_theta",
)
UNKNOWN = Finding(
    id="weights-fit", verdict="unknown", title="the drafter's tensors could not be read", evidence="drafter/model.safetensors: no such file"
)


def full_results(first_set: str = "workload", second_set: str = "outside") -> dict[str, BaseModel]:
    """A result for every stage before the report."""

    def file(path: str, num_bytes: int) -> OutputFile:
        return OutputFile(path=path, num_bytes=num_bytes, sha256=f"{num_bytes:064x}")

    def answers(path: str, rows: int) -> AnswerSet:
        return AnswerSet(
            file=file(path, rows * 1811),
            num_rows=rows,
            num_answer_tokens=rows * 214,
            num_distinct_answers=rows - 3,
            num_finished=rows - 9,
            num_rejected_prompts=2,
        )

    def store(path: str, documents: int) -> StoreSummary:
        return StoreSummary(
            manifest=file(path, 4096),
            shards=(),
            num_documents=documents,
            num_tokens=documents * 290,
            num_supervised_tokens=documents * 214,
            num_bytes=documents * 290 * 4616,
        )

    return {
        "preflight": preflight(WARN, UNKNOWN, runner=None),
        "synthesize": SynthesizeResult(
            training=answers("training.jsonl", 4000), shared_ngrams={first_set: 0, second_set: 3}, template_hash="ab" * 32
        ),
        "extract": ExtractResult(training=store("training/manifest.json", 4000), aux_layers=(3, 15, 27)),
        "train": TrainResult(
            checkpoint=file("checkpoint.safetensors", 86_123_456),
            num_steps=1200,
            num_trained_tokens=3_480_000,
            held_out_loss=5.412,
            accuracy_at=(0.702, 0.575, 0.481, 0.414),
            vocab_coverage=0.9931,
            draft_vocab_size=16000,
            tok_per_s=1873.4,
        ),
        "export": ExportResult(
            weights=file("model.safetensors", 43_061_248),
            config=file("config.json", 1203),
            layer_names="midlayer",
            engines=("vllm", "sglang"),
        ),
        "preflight-export": preflight(UNKNOWN),
        "measure": measured(
            {
                first_set: measurement((1.42, 1.31, 1.55), num_identical=78),
                second_set: measurement((0.97, 0.91, 1.04), acceptance=counts(6080, 2700, 1110, 371)),
            }
        ),
        "replay": replayed({first_set: counts(4790, 3401, 1940, 1030), second_set: counts(6120, 2754, 1102, 367)}),
        "diagnose": diagnosed(
            {
                first_set: set_diagnosis("as expected", (-0.02, -0.04, 0.01)),
                second_set: set_diagnosis("undecided", (-0.03, -0.11, 0.05), "measure about 190 prompts (80 now)"),
            }
        ),
    }


def write_run(path: Path, results: dict[str, BaseModel], config: RunConfig | None = None, *, log: bool = False) -> RunFolder:
    """A run folder with the results of these stages, written as the stages write them."""
    run = RunFolder(path)
    if config is not None:
        write_json(path / "run.json", config.model_dump(mode="json"))
    for name, result in results.items():
        run.stage(name, {"seed": 7}, type(result), lambda folder, result=result: result)  # type: ignore[misc]
    if log:
        (path / "train").mkdir(exist_ok=True)
        (path / "train" / METRICS_FILE).write_text("".join(json.dumps(line) + "\n" for line in training_log()), encoding="utf-8")
    return run


def config_of(**measure_prompts: str) -> RunConfig:
    """A configuration with these measurement sets."""
    prompts = {name: Path(path) for name, path in measure_prompts.items()}
    return RunConfig(target=TargetSection(path=Path("/models/target")), measure=MeasureSection(prompts=prompts))


def training_log(num_steps: int = 1200) -> list[dict[str, object]]:
    """Lines of a training that goes well, with an evaluation every 240 steps."""
    noise = random.Random(0)
    lines: list[dict[str, object]] = []
    for step in range(1, num_steps + 1):
        loss = 5.2 + 12 * math.exp(-step / 140) + noise.gauss(0, 0.12)
        rate = 5e-4 * min(1.0, step / 60)
        lines.append({"step": step, "loss": loss, "learning_rate": rate, "tok_per_s": 1873.4, "accuracy_at": [0.5, 0.4]})
        if step % 240 == 0:
            reached = 1 - math.exp(-step / 300)
            lines.append(
                {
                    "step": step,
                    "held_out_loss": 5.41 + 12 * math.exp(-step / 140),
                    "held_out_accuracy_at": [round(top * reached, 4) for top in (0.71, 0.58, 0.49, 0.42)],
                }
            )
    return lines
