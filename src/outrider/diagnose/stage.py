"""The stage: acceptance in the engine beside acceptance by replay, on the same answers, and what follows from both.

Replay needs no engine, so it says what the drafter can do. An engine that accepts less on the very same tokens serves it
wrongly; one that accepts as much and is still not faster has a drafter too weak, or a verify step too dear.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from outrider.core.results import (
    Acceptance,
    Cause,
    Counted,
    DiagnoseResult,
    Interval,
    MeasureResult,
    ReplayResult,
    SetDiagnosis,
    SetMeasurement,
)
from outrider.core.statistics import bootstrap

TOLERANCE: Final = 0.05
"""Tokens a step: what differs by less is one thing. Rounding flips a near-tie here and there; a fault costs tenths."""

MIN_PROMPTS: Final = 6
"""Fewer prompts tell nothing: that all n differences lie on one side by chance has probability 2 / 2**n, 6 % at n = 5,
and a bootstrap of so few is too narrow: of equal sides at 3 prompts it accused one in seven."""

GOOD_ACCEPTANCE_AT: Final = 0.8
"""How often a good drafter's next token is accepted behind accepted ones: what well-trained drafters reach on their own ground."""

FIRST_POSITION_GAP: Final = 0.05
"""If position 1 is accepted less often by more than this share, the fault lies before any draft is fed back."""

_TOO_MANY_TIMES: Final = 100
"""The prompts times this are no measurement to ask for."""


@dataclass(frozen=True)
class _Compared:
    """Both sides, over the same answers.

    Attributes:
        num_prompts: that both sides know one by one; 0 if a side knows the set as a whole alone.
        difference: engine minus replay, acceptance length; None if it has no interval.
    """

    engine: Acceptance
    replay: Acceptance
    num_prompts: int
    difference: Interval | None

    @property
    def words(self) -> str:
        """Both lengths, and their difference where it has an interval."""
        both = f"acceptance length {_written(self.engine)} in the engine and {_written(self.replay)} by replay"
        d = self.difference
        return f"{both} on the same {self.num_prompts:,} answers, difference {d.value:+.3f} [{d.low:+.3f}, {d.high:+.3f}]" if d else both


@dataclass(frozen=True)
class _Found:
    cause: Cause
    reason: str
    next_test: str = ""


def diagnose(measure: MeasureResult, replay: ReplayResult) -> DiagnoseResult:
    """What the numbers of each measured set show, and of all of them: the first set's, unless another's integration is at fault.

    Args:
        measure: the measurement, its first set the run's own workload.
        replay: of the answers that the drafting server gave in it.
    """
    if not measure.sets:
        return DiagnoseResult(cause="undecided", reason="the measurement holds no prompt set", next_test="measure one", sets={})
    sets = {name: _of_set(measure, measured, replay, replay.sets.get(name)) for name, measured in measure.sets.items()}
    spoken = next((name for name, found in sets.items() if found.cause == "integration"), next(iter(sets)))
    found = sets[spoken]
    return DiagnoseResult(cause=found.cause, reason=f"on {spoken}, {found.reason}", next_test=found.next_test, sets=sets)


def _of_set(measure: MeasureResult, measured: SetMeasurement, replay: ReplayResult, replayed: Counted | None) -> SetDiagnosis:
    engine = measured.drafted.acceptance or Acceptance()
    compared = None
    found = _in_the_way(measure, measured, replay, replayed)
    if found is None and replayed is not None:
        compared = _compared(measured, replayed)
        found = _by_rule(measure, measured, compared)
        engine = compared.engine
    assert found is not None, "a set without replay has something in the way"
    return SetDiagnosis(
        cause=found.cause,
        reason=found.reason,
        next_test=found.next_test,
        engine_length=engine.acceptance_length,
        replay_length=compared.replay.acceptance_length if compared else None,
        difference=compared.difference if compared else None,
        num_verify_steps=min(engine.num_verify_steps, compared.replay.num_verify_steps) if compared else 0,
    )


def _in_the_way(measure: MeasureResult, measured: SetMeasurement, replay: ReplayResult, replayed: Counted | None) -> _Found | None:
    """What makes the comparison meaningless or impossible."""
    acceptance, counters = measured.drafted.acceptance, measured.drafted.raw_counters
    if acceptance is None or not acceptance.num_draft_tokens:
        shown = ", ".join(f"{name} {value:g}" for name, value in counters.items()) or "none"
        next_test = "look in its log whether it loaded the drafter; measure prompts whose answers have more than one token"
        return _Found("invalid", f"the drafting server has proposed no token (its counters: {shown})", next_test)
    if measure.temperature > 0:
        sampled = f"the answers were sampled at temperature {measure.temperature:g}, and replay is of greedy decoding"
        return _Found("undecided", sampled, "measure at temperature 0")
    if replay.missing:
        return _Found("undecided", f"there is no replay to compare with: {replay.missing}", "measure at temperature 0, and replay that")
    if replay.num_speculative_tokens != measure.num_speculative_tokens:
        differ = f"replay proposed {replay.num_speculative_tokens} tokens a step and the engine {measure.num_speculative_tokens}"
        return _Found("invalid", differ, f"replay with K = {measure.num_speculative_tokens}")
    if replayed is None:
        return _Found("undecided", "replay does not have this set", "replay the answers of this measurement")
    return None


def _compared(measured: SetMeasurement, replayed: Counted) -> _Compared:
    ours, theirs = measured.drafted.by_prompt, replayed.by_prompt
    pairs = [(ours[prompt], theirs[prompt]) for prompt in ours if prompt in theirs]
    if not pairs:
        return _Compared(measured.drafted.acceptance or Acceptance(), replayed.total, 0, None)
    interval = bootstrap([_counts(*pair) for pair in pairs], _difference) if len(pairs) >= MIN_PROMPTS else None
    return _Compared(_sum(ours for ours, _ in pairs), _sum(theirs for _, theirs in pairs), len(pairs), interval)


def _sum(counts: Iterable[Acceptance]) -> Acceptance:
    return sum(counts, Acceptance())


def _counts(engine: Acceptance, replay: Acceptance) -> tuple[int, int, int, int]:
    """Accepted tokens and verify steps of both sides: plain numbers, because a resampled result is a slow one."""
    return engine.num_accepted_tokens, engine.num_verify_steps, replay.num_accepted_tokens, replay.num_verify_steps


def _difference(prompts: Sequence[tuple[int, int, int, int]]) -> float | None:
    """Acceptance length, engine minus replay; the bonus tokens cancel out."""
    accepted, steps, replay_accepted, replay_steps = map(sum, zip(*prompts, strict=True))
    return accepted / steps - replay_accepted / replay_steps if steps and replay_steps else None


def _by_rule(measure: MeasureResult, measured: SetMeasurement, compared: _Compared) -> _Found:
    difference = compared.difference
    if difference is None:
        return _without_interval(measured, compared)
    if difference.high < -TOLERANCE:
        return _Found("integration", f"the engine accepts less than the drafter's own numbers allow: {compared.words}", _suspects(compared))
    if difference.low > TOLERANCE:
        return _Found(
            "invalid",
            f"the engine counts more than the drafter can have right: {compared.words}",
            "check that the server drafts a chain and not a tree, and that replay took the drafter that was served",
        )
    if difference.low < -TOLERANCE or difference.high > TOLERANCE:
        cut = f"the difference cannot be told from the tolerance of {TOLERANCE:g}: {compared.words}"
        return _Found("undecided", cut, _more_prompts(difference, compared.num_prompts))
    return _without_fault(measure, measured, compared)


def _without_interval(measured: SetMeasurement, compared: _Compared) -> _Found:
    if compared.num_prompts >= MIN_PROMPTS:
        reason = f"one side has verify steps and the other has none ({compared.words}), so they are not of the same answers"
        return _Found("invalid", reason, "replay the answers of this measurement")
    if compared.num_prompts:
        reason = f"{compared.words}, but both know {compared.num_prompts} prompts in common, too few for an interval"
        return _Found("undecided", reason, f"measure at least {MIN_PROMPTS} prompts, better 40")
    if measured.drafted.by_prompt:
        return _Found("undecided", f"{compared.words}, but they have no prompt in common", "replay the answers of this measurement")
    reason = f"{compared.words}, but the engine's counts are of the whole set, and without counts of each prompt there is no interval"
    return _Found("undecided", reason, "measure at concurrency 1, where the counts of each prompt are known")


def _suspects(compared: _Compared) -> str:
    """Where to look first: before the first draft, or between drafts."""
    engine_at, replay_at = compared.engine.acceptance_at, compared.replay.acceptance_at
    first, replayed = engine_at[0] if engine_at else 0.0, replay_at[0] if replay_at else 0.0
    at_first = f"position 1 is accepted in {first:.2f} of the steps, by replay in {replayed:.2f}"
    if replayed - first > FIRST_POSITION_GAP:
        return f"{at_first}: check what the engine feeds the drafter (layer indices, layer names, norms, vocabulary map; see preflight)"
    return f"{at_first}: check what goes from one draft to the next (the drafter's own state, positions and RoPE, its cache)"


def _more_prompts(difference: Interval, num_prompts: int) -> str:
    """How many prompts would lift the interval off the tolerance, were the difference to stay: its width goes with 1 / sqrt(n)."""
    value, low, high = difference.value, difference.low, difference.high
    if abs(value) <= TOLERANCE:  # to lie within, each end must come in
        arms = [(value - low, value + TOLERANCE), (high - value, TOLERANCE - value)]
    elif value < 0:  # to lie without, the end towards zero must
        arms = [(high - value, -TOLERANCE - value)]
    else:
        arms = [(value - low, value - TOLERANCE)]
    times = max((arm / room) ** 2 if room > 0 else math.inf for arm, room in arms)
    if times > _TOO_MANY_TIMES:
        return (
            f"more prompts will hardly tell: the difference lies at the tolerance; compare drafts of single answers ({num_prompts:,} now)"
        )
    return f"measure about {math.ceil(times * num_prompts):,} prompts ({num_prompts:,} now): the interval narrows with the square root"


def _without_fault(measure: MeasureResult, measured: SetMeasurement, compared: _Compared) -> _Found:
    """The engine serves the drafter as it is: whether it pays is then a matter of drafter and regime."""
    speedup, length = measured.speedup, measured.acceptance_length
    served = f"the engine serves the drafter as replay says: {compared.words}"
    if speedup is None or length is None or not (speedup.value > 0 and math.isfinite(speedup.value + speedup.low + speedup.high)):
        missing = measured.speedup_missing or "the speedup is no number"
        return _Found("as expected", f"{served}; whether it pays is not known: {missing}", "measure so that the speedup has an interval")
    speed = f"speedup {speedup.value:.2f}× [{speedup.low:.2f}, {speedup.high:.2f}]"
    if speedup.high >= 1:
        next_test = "" if speedup.low > 1 else f"measure more prompts ({measured.num_prompts:,} now): the speedup's interval holds 1"
        return _Found("as expected", f"{served}; {speed}", next_test)
    break_even, good = length / speedup.value, sum(GOOD_ACCEPTANCE_AT**k for k in range(measure.num_speculative_tokens + 1))
    needed = f"{served}; {speed}, so {length:.2f} would have to be about {break_even:.2f} to break even (prefill included)"
    if break_even > good:
        smaller = f"a smaller K than {measure.num_speculative_tokens}, " if measure.num_speculative_tokens > 1 else ""
        next_test = f"measure {smaller}a lower concurrency, or another engine or attention back-end"
        return _Found("regime", f"{needed}, more than a good drafter's {good:.2f} at this K: the step is too dear here", next_test)
    next_test = f"train on more or closer answers, or longer, until replay says more than {break_even:.2f}"
    return _Found("training", f"{needed}, which a good drafter passes at this K ({good:.2f})", next_test)


def _written(counts: Acceptance) -> str:
    length = counts.acceptance_length
    return "unknown" if length is None else f"{length:.2f}"
