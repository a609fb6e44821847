"""The verdict's rule, and what a report says against its own numbers."""

import pytest
from run_folders import full_results, measured, measurement

from outrider.core.results import SetMeasurement, SynthesizeResult
from outrider.report.verdict import cautions, judge


@pytest.mark.parametrize(
    ("speedup", "sentence"),
    [
        ((1.42, 1.31, 1.55), "pays: 1.42× [1.31, 1.55] on mine"),
        ((0.66, 0.61, 0.70), "does not pay: 0.66× [0.61, 0.70] on mine"),
        ((1.02, 0.95, 1.10), "undecided: 1.02× [0.95, 1.10] on mine; 80 prompts cannot tell it from 1×"),
        ((1.05, 1.00, 1.10), "undecided: 1.05× [1.00, 1.10] on mine; 80 prompts cannot tell it from 1×"),
        ((0.95, 0.90, 1.00), "undecided: 0.95× [0.90, 1.00] on mine; 80 prompts cannot tell it from 1×"),
        ((float("nan"), 1.1, 1.2), "not measured: the speedup on mine is not finite"),
        (None, "not measured: no speedup on mine: the plain arm was not run"),
    ],
)
def test_the_interval_of_the_first_set_decides(speedup: tuple[float, float, float] | None, sentence: str) -> None:
    result = measured({"mine": measurement(speedup), "a better one": measurement((3.0, 2.9, 3.1))})
    assert judge(result).sentence == sentence


def test_without_a_measurement_there_is_no_verdict() -> None:
    assert judge(None).sentence == "not measured: the stage measure has not run"
    assert judge(measured({})).sentence == "not measured: the measurement holds no prompt set"


def test_the_conditions_are_named() -> None:
    assert judge(measured({"mine": measurement((2, 1.9, 2.1), num_prompts=40)})).conditions == (
        "reference 0.1.0, 40 prompts, K = 3, temperature 0, at most 256 tokens an answer"
    )


def _cautions(measurement_: SetMeasurement, *, temperature: float = 0.0) -> str:
    return "\n".join(cautions(measured({"mine": measurement_}, temperature), None))


def test_good_numbers_are_not_cautioned_against() -> None:
    assert _cautions(measurement((1.4, 1.3, 1.5))) == ""


def test_changed_outputs_are_said_for_greedy_answers_alone() -> None:
    changed = measurement((1.4, 1.3, 1.5), num_identical=77)
    assert "mine: 3 of 80 outputs change with the drafter, the earliest at token 17." in _cautions(changed)
    assert _cautions(changed, temperature=0.7) == ""


def test_few_distinct_answers_are_said() -> None:
    assert "only 4 distinct answers to 80 prompts" in _cautions(measurement((1.4, 1.3, 1.5), num_distinct=4))


@pytest.mark.parametrize(("speedup", "is_said"), [((1.4, 1.3, 1.5), True), (None, False)])
def test_intervals_of_single_starts_are_said(speedup: tuple[float, float, float] | None, is_said: bool) -> None:
    result = measured({"mine": measurement(speedup)}).model_copy(update={"arms_in_turns": False})
    assert any("not for other starts" in caution for caution in cautions(result, None)) == is_said


def test_prompts_shared_with_training_are_said() -> None:
    synthesize = full_results()["synthesize"]
    assert isinstance(synthesize, SynthesizeResult)
    assert cautions(None, synthesize) == ("outside: 3 prompts share an 8-gram with a training prompt; its numbers may flatter.",)
