"""The verdict's rules on counts made for them, each beside a sound counterpart; and how often chance alone accuses an engine."""

import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.results import Acceptance, ArmResult, Counted, DiagnoseResult, Interval, MeasureResult, ReplayResult, SetMeasurement
from outrider.diagnose.stage import GOOD_ACCEPTANCE_AT, MIN_PROMPTS, TOLERANCE, diagnose

K = 3
Counts = dict[str, Acceptance]
Speedup = tuple[float, float, float] | None
FASTER = (1.4, 1.3, 1.5)


def _counts(steps: int, *accepted_at: int) -> Acceptance:
    return Acceptance(
        num_verify_steps=steps, num_draft_tokens=steps * K, num_accepted_tokens=sum(accepted_at), accepted_at=accepted_at or (0,) * K
    )


def _prompts(num_prompts: int, accepted_at: tuple[int, ...] = (70, 40, 20), steps: int = 100, jitter: int = 0) -> Counts:
    """Prompts of about these counts; `jitter` moves position 1 up and down in turns."""
    first, *rest = accepted_at
    return {f"p{i}": _counts(steps, first + (jitter if i % 2 else -jitter), *rest) for i in range(num_prompts)}


def _total(by_prompt: Counts) -> Acceptance:
    return sum(by_prompt.values(), Acceptance())


def _measured(by_prompt: Counts, speedup: Speedup = FASTER, *, total: Acceptance | None = None) -> SetMeasurement:
    acceptance = total or _total(by_prompt)
    arm = ArmResult(
        output_tokens=100, wall_s=1.0, tok_per_s=100.0, acceptance=acceptance, by_prompt=by_prompt, raw_counters={"drafts": 7.0}
    )
    plain = ArmResult(output_tokens=100, wall_s=1.0, tok_per_s=100.0, acceptance=None, by_prompt={}, raw_counters={})
    value, low, high = speedup or (0.0, 0.0, 0.0)
    return SetMeasurement(
        plain=plain,
        drafted=arm,
        acceptance_length=acceptance.acceptance_length,
        acceptance_length_interval=None,
        speedup=Interval(value=value, low=low, high=high) if speedup else None,
        speedup_missing=None if speedup else "each arm was one start",
        num_prompts=len(by_prompt),
        num_identical=len(by_prompt),
        first_difference={},
        num_distinct_answers=len(by_prompt),
    )


def _measure(sets: dict[str, SetMeasurement], *, temperature: float = 0.0, k: int = K) -> MeasureResult:
    return MeasureResult(
        engine="reference",
        engine_version="1",
        num_speculative_tokens=k,
        temperature=temperature,
        max_tokens=256,
        acceptance_length=None,
        speedup=None,
        sets=sets,
    )


def _replay(sets: dict[str, Counts], *, k: int = K, missing: str = "") -> ReplayResult:
    counted = {name: Counted(total=_total(by_prompt), by_prompt=by_prompt) for name, by_prompt in sets.items()}
    return ReplayResult(num_speculative_tokens=k, sets=counted, missing=missing)


def _one(engine: Counts, replay: Counts, speedup: Speedup = FASTER) -> DiagnoseResult:
    return diagnose(_measure({"mine": _measured(engine, speedup)}), _replay({"mine": replay}))


# -- the difference ----------------------------------------------------------------------------------------------------


def test_equal_counts_and_a_speedup_are_as_expected() -> None:
    found = _one(_prompts(20, jitter=9), _prompts(20, jitter=9))
    assert (found.cause, found.next_test) == ("as expected", "")
    mine = found.sets["mine"]
    assert mine.engine_length == mine.replay_length == pytest.approx(2.3)
    assert mine.difference == Interval(value=0, low=0, high=0)
    assert mine.num_verify_steps == 2000
    assert found.reason == (
        "on mine, the engine serves the drafter as replay says: acceptance length 2.30 in the engine and 2.30 by replay "
        "on the same 20 answers, difference +0.000 [+0.000, +0.000]; speedup 1.40× [1.30, 1.50]"
    )


def test_an_engine_that_accepts_less_is_at_fault() -> None:
    found = _one(_prompts(20, (20, 5, 1), jitter=5), _prompts(20, jitter=5), FASTER)
    assert found.cause == "integration"
    assert "accepts less than the drafter's own numbers allow" in found.reason and "1.26 in the engine and 2.30 by replay" in found.reason
    difference = found.sets["mine"].difference
    assert difference is not None and difference.value == pytest.approx(-1.04) and difference.high < -TOLERANCE


@pytest.mark.parametrize(
    ("accepted_at", "suspect", "cleared"),
    [((40, 30, 19), "what the engine feeds the drafter", "one draft to the next"), ((70, 2, 0), "one draft to the next", "feeds")],
)
def test_the_next_test_of_an_integration_follows_the_first_position(accepted_at: tuple[int, ...], suspect: str, cleared: str) -> None:
    found = _one(_prompts(20, accepted_at), _prompts(20))
    assert found.cause == "integration"
    assert suspect in found.next_test and cleared not in found.next_test


def test_an_engine_that_accepts_more_counts_wrongly() -> None:
    found = _one(_prompts(20, (90, 70, 50)), _prompts(20))
    assert found.cause == "invalid" and "2.30 by replay" in found.reason and "chain" in found.next_test


@pytest.mark.parametrize(("first", "cause"), [(64, "integration"), (66, "as expected"), (74, "as expected"), (76, "invalid")])
def test_the_tolerance_is_the_border(first: int, cause: str) -> None:
    """Every prompt differs alike, so the interval is a point on one side of the border."""
    assert _one(_prompts(20, (first, 40, 20)), _prompts(20)).cause == cause


def _asked(found: DiagnoseResult) -> int:
    return int(found.next_test.split("about ")[1].split(" prompts")[0].replace(",", ""))


def test_an_interval_across_the_border_is_undecided_and_more_prompts_decide() -> None:
    few = _one(_prompts(12, jitter=12), _prompts(12))
    assert few.cause == "undecided"
    difference, asked = few.sets["mine"].difference, _asked(few)
    assert difference is not None
    assert asked == pytest.approx(12 * (max(-difference.low, difference.high) / TOLERANCE) ** 2, abs=1)
    assert _one(_prompts(2 * asked, jitter=12), _prompts(2 * asked)).cause == "as expected"


@pytest.mark.parametrize("first", [67, 73])
def test_one_end_across_the_border_is_enough(first: int) -> None:
    found = _one(_prompts(40, (first, 40, 20), jitter=9), _prompts(40))
    difference = found.sets["mine"].difference
    assert difference is not None and (difference.low < -TOLERANCE) != (difference.high > TOLERANCE)
    assert found.cause == "undecided"


def test_an_interval_half_outside_asks_for_prompts_too() -> None:
    few = _one(_prompts(12, (55, 40, 20), jitter=25), _prompts(12))
    assert few.cause == "undecided"
    asked = _asked(few)
    assert _one(_prompts(2 * asked, (55, 40, 20), jitter=25), _prompts(2 * asked)).cause == "integration"


def test_a_difference_at_the_border_asks_for_no_endless_measurement() -> None:
    found = _one(_prompts(12, (65, 40, 20), jitter=20), _prompts(12))
    assert found.cause == "undecided" and "will hardly tell" in found.next_test


@pytest.mark.parametrize(("num_prompts", "cause"), [(MIN_PROMPTS - 1, "undecided"), (MIN_PROMPTS, "integration")])
def test_few_prompts_accuse_nobody(num_prompts: int, cause: str) -> None:
    found = _one(_prompts(num_prompts, (20, 5, 1)), _prompts(num_prompts))
    assert found.cause == cause
    assert (found.sets["mine"].difference is None) == (cause == "undecided")


def test_only_prompts_that_both_know_are_compared() -> None:
    engine = _prompts(20) | {f"engine's {i}": _counts(100, 5, 0, 0) for i in range(9)}
    found = _one(engine, _prompts(20) | {f"replay's {i}": _counts(100, 99, 99, 99) for i in range(9)})
    assert found.cause == "as expected"
    assert found.sets["mine"].engine_length == found.sets["mine"].replay_length == pytest.approx(2.3)


# -- what stands in the way --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [None, Acceptance()])
def test_a_server_that_has_not_speculated_is_invalid(total: Acceptance | None) -> None:
    silent = _measured({})
    silent = silent.model_copy(update={"drafted": silent.drafted.model_copy(update={"acceptance": total}), "acceptance_length": None})
    found = diagnose(_measure({"mine": silent}), _replay({"mine": _prompts(20)}))
    assert found.cause == "invalid" and "drafts 7" in found.reason
    assert found.sets["mine"].engine_length is None and found.sets["mine"].num_verify_steps == 0


def test_sampled_answers_cannot_be_told_by_replay() -> None:
    sound = _prompts(20)
    found = diagnose(_measure({"mine": _measured(sound)}, temperature=0.7), _replay({}, missing="the answers were sampled"))
    assert found.cause == "undecided" and "temperature 0.7" in found.reason
    assert found.next_test == "measure at temperature 0"
    assert found.sets["mine"].engine_length == pytest.approx(2.3)
    assert found.sets["mine"].replay_length is None and found.sets["mine"].difference is None


def test_a_missing_replay_gives_its_reason() -> None:
    found = diagnose(_measure({"mine": _measured(_prompts(20))}), _replay({}, missing="no states could be made"))
    assert found.cause == "undecided" and "no states could be made" in found.reason


def test_another_k_makes_the_comparison_invalid() -> None:
    found = diagnose(_measure({"mine": _measured(_prompts(20))}), _replay({"mine": _prompts(20)}, k=5))
    assert found.cause == "invalid" and "5 tokens a step and the engine 3" in found.reason
    assert found.sets["mine"].difference is None


def test_a_set_that_replay_lacks_is_undecided() -> None:
    found = diagnose(_measure({"mine": _measured(_prompts(20))}), _replay({"other": _prompts(20)}))
    assert found.cause == "undecided" and "does not have this set" in found.reason


def test_counts_of_the_whole_set_alone_have_no_interval() -> None:
    """However far apart they are: without prompts there is nothing to resample."""
    whole = _measured({}, total=_total(_prompts(20, (20, 5, 1))))
    found = diagnose(_measure({"mine": whole}), _replay({"mine": _prompts(20)}))
    assert found.cause == "undecided" and "1.26 in the engine and 2.30 by replay" in found.reason
    assert found.next_test == "measure at concurrency 1, where the counts of each prompt are known"
    assert found.sets["mine"].difference is None and found.sets["mine"].num_verify_steps == 2000


def test_answers_of_which_replay_has_no_step_are_not_the_same() -> None:
    found = _one(_prompts(20), dict.fromkeys(_prompts(20), Acceptance()))
    assert found.cause == "invalid" and "not of the same answers" in found.reason


def test_a_measurement_without_sets() -> None:
    found = diagnose(_measure({}), _replay({}))
    assert (found.cause, found.sets) == ("undecided", {})


# -- no fault of the engine: does it pay? ------------------------------------------------------------------------------


def test_a_weak_drafter_is_a_matter_of_training() -> None:
    found = _one(_prompts(20, (20, 5, 1)), _prompts(20, (20, 5, 1)), (0.66, 0.60, 0.72))
    assert found.cause == "training"
    assert "1.26 would have to be about 1.91 to break even" in found.reason
    assert "until replay says more than 1.91" in found.next_test


def test_a_step_that_is_too_dear_is_a_matter_of_the_regime() -> None:
    found = _one(_prompts(20), _prompts(20), (0.66, 0.60, 0.72))
    assert found.cause == "regime"
    assert "2.30 would have to be about 3.48" in found.reason and "good drafter's 2.95" in found.reason
    assert "a smaller K than 3" in found.next_test


def test_a_good_drafter_divides_training_from_regime() -> None:
    good = sum(GOOD_ACCEPTANCE_AT**k for k in range(K + 1))
    just_below, just_above = 2.3 / (good - 0.01), 2.3 / (good + 0.01)
    causes = [_one(_prompts(20), _prompts(20), (value, value - 0.01, value + 0.01)).cause for value in (just_below, just_above)]
    assert causes == ["training", "regime"]


def test_a_single_draft_cannot_be_fewer() -> None:
    one = {f"p{i}": Acceptance(num_verify_steps=100, num_draft_tokens=100, num_accepted_tokens=50, accepted_at=(50,)) for i in range(9)}
    found = diagnose(_measure({"mine": _measured(one, (0.5, 0.4, 0.6))}, k=1), _replay({"mine": one}, k=1))
    assert found.cause == "regime" and "smaller K" not in found.next_test


@pytest.mark.parametrize("speedup", [(1.0, 0.95, 1.05), (0.98, 0.9, 1.0)])
def test_a_speedup_around_one_asks_for_more_prompts(speedup: Speedup) -> None:
    found = _one(_prompts(20), _prompts(20), speedup)
    assert found.cause == "as expected" and "measure more prompts" in found.next_test


@pytest.mark.parametrize("speedup", [None, (float("nan"), 0.5, 0.6), (0.5, 0.4, float("inf")), (0.0, 0.0, 0.0)])
def test_an_unknown_speedup_still_clears_the_engine(speedup: Speedup) -> None:
    found = _one(_prompts(20), _prompts(20), speedup)
    assert found.cause == "as expected" and "whether it pays is not known" in found.reason and found.next_test


# -- several sets ------------------------------------------------------------------------------------------------------

_BAD = (_prompts(20, (20, 5, 1)), _prompts(20))
_SOUND = (_prompts(20), _prompts(20))
_DOUBTFUL = (_prompts(12, jitter=12), _prompts(12))


@pytest.mark.parametrize(
    ("pairs", "cause", "spoken"),
    [
        ({"a": _SOUND, "b": _DOUBTFUL}, "as expected", "a"),
        ({"a": _DOUBTFUL, "b": _SOUND}, "undecided", "a"),
        ({"a": _SOUND, "b": _BAD}, "integration", "b"),
        ({"a": _DOUBTFUL, "b": _BAD, "c": _SOUND}, "integration", "b"),
    ],
)
def test_the_first_set_speaks_unless_another_shows_a_fault(pairs: dict[str, tuple[Counts, Counts]], cause: str, spoken: str) -> None:
    measure = _measure({name: _measured(engine) for name, (engine, _) in pairs.items()})
    found = diagnose(measure, _replay({name: replay for name, (_, replay) in pairs.items()}))
    assert found.cause == cause and found.reason == f"on {spoken}, {found.sets[spoken].reason}"
    assert list(found.sets) == list(pairs)


# -- chance ------------------------------------------------------------------------------------------------------------


def _drawn(rng: random.Random, num_prompts: int, lost: float) -> tuple[Counts, Counts]:
    """Prompts of different difficulty; both sides accept alike on each, but the engine loses a token in the share `lost` of its steps."""
    sides: tuple[Counts, Counts] = {}, {}
    for i in range(num_prompts):
        rate, steps = rng.uniform(0.45, 0.85), rng.randint(30, 60)
        for side, missed in zip(sides, (lost, 0.0), strict=True):
            lengths = [_accepted(rng, rate) for _ in range(steps)]
            lengths = [max(0, n - 1) if missed and n and rng.random() < missed else n for n in lengths]
            side[f"p{i}"] = _counts(steps, *(sum(n > k for n in lengths) for k in range(K)))
    return sides


def _accepted(rng: random.Random, rate: float) -> int:
    for k in range(K):
        if rng.random() > rate:
            return k
    return K


def test_the_interval_covers_the_truth_and_chance_accuses_nobody() -> None:
    """Both sides draw on their own, which is more noise than replaying the same tokens has; the truth is no difference at all."""
    rng = random.Random(20)
    found = [_one(*_drawn(rng, 20, lost=0.0)).sets["mine"] for _ in range(200)]
    intervals = [f.difference for f in found]
    covered = sum(d is not None and d.low <= 0 <= d.high for d in intervals)
    assert 180 <= covered <= 198, "95 % intervals; at 20 prompts the bootstrap is a little narrow"
    assert sum(f.cause == "integration" for f in found) <= 2
    assert sum(f.cause == "invalid" for f in found) <= 2


def test_a_loss_is_found() -> None:
    rng = random.Random(21)
    found = [_one(*_drawn(rng, 40, lost=0.35)).sets["mine"] for _ in range(30)]
    assert sum(f.cause == "integration" for f in found) >= 28
    assert not any(f.cause in ("as expected", "invalid") for f in found)


# -- anything ----------------------------------------------------------------------------------------------------------


@st.composite
def _acceptances(draw: st.DrawFn) -> Acceptance:
    steps = draw(st.integers(0, 40))
    if not steps:
        return Acceptance()
    kept = sorted(draw(st.lists(st.integers(0, steps), max_size=K)), reverse=True)
    return _counts(steps, *kept)


_BY_PROMPT = st.dictionaries(st.sampled_from([f"p{i}" for i in range(12)]), _acceptances(), max_size=10)
_SPEEDUPS = st.none() | st.tuples(st.floats(), st.floats(), st.floats())


@settings(deadline=None, max_examples=60)
@given(
    engine=st.dictionaries(st.sampled_from("abc"), st.tuples(_BY_PROMPT, st.none() | _acceptances(), _SPEEDUPS), max_size=3),
    replay=st.dictionaries(st.sampled_from("abc"), _BY_PROMPT, max_size=3),
    temperature=st.sampled_from([0.0, 0.0, 0.0, 0.7]),
    replay_k=st.sampled_from([K, K, K, 1]),
    missing=st.sampled_from(["", "", "", "why"]),
)
def test_any_results_have_a_verdict(
    engine: dict[str, tuple[Counts, Acceptance | None, Speedup]], replay: dict[str, Counts], temperature: float, replay_k: int, missing: str
) -> None:
    sets = {name: _measured(by_prompt, speedup, total=total) for name, (by_prompt, total, speedup) in engine.items()}
    found = diagnose(_measure(sets, temperature=temperature), _replay(replay, k=replay_k, missing=missing))
    assert list(found.sets) == list(sets)
    for of_set in found.sets.values():
        assert of_set.reason and (of_set.next_test or of_set.cause == "as expected")
        if of_set.difference is not None and of_set.engine_length is not None and of_set.replay_length is not None:
            assert of_set.difference.value == pytest.approx(of_set.engine_length - of_set.replay_length)
    assert DiagnoseResult.model_validate_json(found.model_dump_json()) == found


def test_a_diagnosis_needs_no_torch() -> None:
    code = "import sys, outrider.diagnose.stage; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
