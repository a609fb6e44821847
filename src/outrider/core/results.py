"""What stages hand to each other: frozen, typed, written to disk as JSON; and the one definition of every number."""

from collections.abc import Collection, Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

Verdict = Literal["pass", "warn", "fail", "unknown"]
Cause = Literal["as expected", "training", "integration", "regime", "invalid", "undecided"]


class Frozen(BaseModel):
    """Base of on-disk records: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Acceptance(Frozen):
    """Raw counts of speculative decoding, and every ratio derived from them.

    Drafts past the stop (end of sequence or the token limit) are not counted.

    Attributes:
        num_verify_steps: target passes over a proposal.
        num_draft_tokens: tokens proposed.
        num_accepted_tokens: proposed tokens that the target kept.
        accepted_at: for each position k, in how many verify steps position k was kept.
    """

    num_verify_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_at: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if sum(self.accepted_at) != self.num_accepted_tokens or self.num_accepted_tokens > self.num_draft_tokens:
            raise ValueError(f"counters contradict each other: {self!r}")
        return self

    @classmethod
    def of_step(
        cls, num_accepted: int, emitted: Sequence[int], *, num_drafted: int, room: int, stop_ids: Collection[int]
    ) -> tuple[Self, list[int]]:
        """Count one verify step, drafts past the stop left out.

        Args:
            num_accepted: how many of the drafted tokens the target kept.
            emitted: the kept tokens and the target's own one behind them.
            num_drafted: K.
            room: how many tokens the answer may still have.
            stop_ids: ids that end an answer.

        Returns:
            The step's counts, and the tokens that belong to the answer.
        """
        kept = list(emitted[:room])
        stop = next((i for i, token in enumerate(kept) if token in stop_ids), None)
        counted = min(num_drafted, room)
        if stop is not None:
            kept = kept[: stop + 1]
            counted = min(counted, len(kept))
        accepted = min(num_accepted, counted)
        positions = tuple(int(k < accepted) for k in range(num_drafted))
        return cls(num_verify_steps=1, num_draft_tokens=counted, num_accepted_tokens=accepted, accepted_at=positions), kept

    @property
    def acceptance_length(self) -> float | None:
        """Tokens gained per verify step, bonus token included: 1 + accepted / verify steps. None without steps."""
        return 1 + self.num_accepted_tokens / self.num_verify_steps if self.num_verify_steps else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / proposed, in [0, 1]. None without proposals."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def acceptance_at(self) -> tuple[float, ...]:
        """P(position k accepted), unconditional. Empty without steps."""
        return tuple(n / self.num_verify_steps for n in self.accepted_at) if self.num_verify_steps else ()

    def __add__(self, other: "Acceptance") -> "Acceptance":
        return self._combined(other, +1)

    def __sub__(self, other: "Acceptance") -> "Acceptance":
        return self._combined(other, -1)

    def _combined(self, other: "Acceptance", sign: int) -> "Acceptance":
        width = max(len(self.accepted_at), len(other.accepted_at))
        mine = self.accepted_at + (0,) * (width - len(self.accepted_at))
        theirs = other.accepted_at + (0,) * (width - len(other.accepted_at))
        return Acceptance(
            num_verify_steps=self.num_verify_steps + sign * other.num_verify_steps,
            num_draft_tokens=self.num_draft_tokens + sign * other.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens + sign * other.num_accepted_tokens,
            accepted_at=tuple(a + sign * b for a, b in zip(mine, theirs, strict=True)),
        )


class Interval(Frozen):
    """A value with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


class OutputFile(Frozen):
    """A file a stage made: path relative to the stage's folder, size and SHA-256."""

    path: str
    num_bytes: int
    sha256: str


class AnswerSet(Frozen):
    """One file of answers and what it holds."""

    file: OutputFile
    num_rows: int
    num_answer_tokens: int
    num_distinct_answers: int
    num_finished: int
    num_rejected_prompts: int = 0


class SynthesizeResult(Frozen):
    """The target's own answers to train on.

    Attributes:
        shared_ngrams: for each measurement set, how many of its prompts share an 8-gram with a training prompt.
    """

    training: AnswerSet
    shared_ngrams: dict[str, int]
    template_hash: str


class StoreSummary(Frozen):
    """One store of hidden states."""

    manifest: OutputFile
    shards: tuple[OutputFile, ...]
    num_documents: int
    num_tokens: int
    num_supervised_tokens: int
    num_bytes: int


class ExtractResult(Frozen):
    """The store to train on. `aux_layers` counts layers run."""

    training: StoreSummary
    aux_layers: tuple[int, ...]


class TrainResult(Frozen):
    """The trained drafter's checkpoint and its last held-out figures.

    Attributes:
        accuracy_at: held-out accuracy of the drafter at each training-time-test step.
        vocab_coverage: share of held-out answer tokens that the draft vocabulary holds.
        num_trained_tokens: tokens of documents read, all epochs.
    """

    checkpoint: OutputFile
    num_steps: int
    num_trained_tokens: int
    held_out_loss: float | None
    accuracy_at: tuple[float, ...]
    vocab_coverage: float | None
    draft_vocab_size: int
    tok_per_s: float


class ExportResult(Frozen):
    """The folder that engines load."""

    weights: OutputFile
    config: OutputFile
    layer_names: str
    engines: tuple[str, ...]


class Counted(Frozen):
    """Acceptance over a prompt set, and over each prompt's own answer where that is known."""

    total: Acceptance
    by_prompt: dict[str, Acceptance]


class ReplayResult(Frozen):
    """Acceptance by replay on the answers that the drafting server gave, for each measurement set.

    Attributes:
        missing: why there is none; empty if there is.
    """

    num_speculative_tokens: int
    sets: dict[str, Counted]
    missing: str = ""


class ArmResult(Frozen):
    """One arm of a measurement: a server with or without a drafter, over the prompts of one set.

    Attributes:
        acceptance: corrected by the engine's own rule, so that drafts past the stop are not counted.
        by_prompt: the same for each prompt's answer; empty where the engine does not tell.
        raw_counters: what the engine counted, by its own names, uncorrected.
    """

    output_tokens: int
    wall_s: float
    tok_per_s: float
    acceptance: Acceptance | None
    by_prompt: dict[str, Acceptance]
    raw_counters: dict[str, float]


class SetMeasurement(Frozen):
    """One prompt set, measured with and without the drafter.

    Attributes:
        speedup: output tokens/s with ÷ without; None with the reason in `speedup_missing`.
        num_identical: prompts whose outputs are equal token for token in both arms.
        first_difference: for each prompt that differs, the first differing position.
    """

    plain: ArmResult
    drafted: ArmResult
    acceptance_length: float | None
    acceptance_length_interval: Interval | None
    speedup: Interval | None
    speedup_missing: str | None
    num_prompts: int
    num_identical: int
    first_difference: dict[str, int]
    num_distinct_answers: int


class MeasureResult(Frozen):
    """The measurement: the first set is the run's own workload, whose two numbers stand at the top level.

    Attributes:
        arms_in_turns: whether both servers ran side by side and were asked in turns; else each arm was one start, and
            intervals hold for prompts, not for starts.
    """

    engine: str
    engine_version: str
    num_speculative_tokens: int
    temperature: float
    max_tokens: int
    acceptance_length: float | None
    speedup: float | None
    sets: dict[str, SetMeasurement]
    arms_in_turns: bool = True


class Finding(Frozen):
    """What one check found.

    Attributes:
        id: of the check.
        title: what is right or wrong, with the values.
        found: what is there; expected: what should be.
        evidence: the file and line, header or reply that shows it.
        effect: what would happen; fix: what to do. Both empty for a pass.
    """

    id: str
    verdict: Verdict
    title: str
    found: str = ""
    expected: str = ""
    evidence: str = ""
    effect: str = ""
    fix: str = ""


class CheckedEngine(Frozen):
    """The engine that a preflight was about.

    Attributes:
        runner: the model runner that a launch would take, where the engine has several.
        source: where its facts were read.
    """

    name: str
    version: str
    runner: str | None
    source: str


class PreflightResult(Frozen):
    """All findings on one target, drafter and engine; `verdict` is the worst of them (fail, warn, unknown, pass)."""

    verdict: Verdict
    engine: CheckedEngine
    findings: tuple[Finding, ...]


class MatrixRow(Frozen):
    """One engine version of a preflight matrix.

    Attributes:
        failing: ids of the checks that failed, in the order in which the engine meets them.
        title: of the first of them; empty without any.
        warning: ids of the checks that warn.
    """

    engine: str
    version: str
    runner: str | None
    verdict: Verdict
    failing: tuple[str, ...]
    title: str
    warning: tuple[str, ...] = ()


class SetDiagnosis(Frozen):
    """One prompt set: acceptance in the engine beside acceptance by replay on the same answers.

    Attributes:
        difference: engine minus replay, acceptance length, with its interval over prompts; None if it cannot be told.
        num_verify_steps: the fewer of both.
        reason: one sentence with the numbers.
        next_test: what to do or measure next; empty if nothing is open.
    """

    cause: Cause
    reason: str
    next_test: str
    engine_length: float | None
    replay_length: float | None
    difference: Interval | None
    num_verify_steps: int


class DiagnoseResult(Frozen):
    """The verdict: that of the first set, unless another set shows an integration fault."""

    cause: Cause
    reason: str
    next_test: str
    sets: dict[str, SetDiagnosis]


class ReportResult(Frozen):
    """The page that was written."""

    page: OutputFile
