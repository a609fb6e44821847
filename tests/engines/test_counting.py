"""vLLM's counts, corrected so that drafts past the stop are not counted: by the same rule as replay's."""

import random

import pytest

from outrider.core.results import Acceptance
from outrider.engines.engine import Answer
from outrider.engines.vllm.counting import acceptance, answer_acceptance, counters

_EOS, _K = 99, 3
# recorded: one answer of 64 tokens at K = 3
_PER_STEP = [0, 0, 2, 3, 3, 3, 3, 2, 1, 0, 0, 1, 0, 3, 2, 0, 1, 0, 3, 3, 2, 1, 0, 3, 0, 1]
_METRICS = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="target"} 78.0
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{engine="0",model_name="target"} 1.7961249439686356e+09
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="target"} 234.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="target"} 111.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="target",position="0"} 51.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="target",position="1"} 36.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="target",position="2"} 24.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="target"} 0.0
"""


def test_the_counters_of_a_real_server() -> None:
    found = acceptance(counters(_METRICS))
    assert found == Acceptance(num_verify_steps=78, num_draft_tokens=234, num_accepted_tokens=111, accepted_at=(51, 36, 24))


def test_two_engines_behind_one_server_are_summed() -> None:
    two = _METRICS + "\n".join(line.replace('engine="0"', 'engine="1"') for line in _METRICS.splitlines() if line.startswith("vllm"))
    found = acceptance(counters(two))
    assert found is not None
    assert (found.num_verify_steps, found.accepted_at) == (156, (102, 72, 48))


def test_a_server_that_has_not_drafted_has_no_acceptance() -> None:
    assert acceptance(counters("")) is None
    assert answer_acceptance(_answer([1, 2], [], metrics=None)) is None


def _answer(tokens: list[int], accepted: list[int], *, max_tokens: int = 1000, metrics: object = True) -> Answer:
    told = {"speculative_decoding": {"per_step_accepted": accepted, "per_step_drafted": [_K] * len(accepted)}}
    return Answer(tokens, max_tokens, (_EOS,), _K, told if metrics else None, None)


def test_an_answer_that_fills_its_limit_exactly() -> None:
    found = answer_acceptance(_answer(list(range(64)), _PER_STEP, max_tokens=64))
    assert found is not None
    assert (found.num_verify_steps, found.num_accepted_tokens) == (26, 37)


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "accepted_last", "expected"),
    [
        ([1, 2, 3, 4, 5], 1000, 3, (3, 3)),  # no stop: all that was accepted counts
        ([1, 2, _EOS], 1000, 3, (2, 2)),  # the stop was the second draft: the third and the bonus were cut
        ([1, _EOS], 1000, 3, (1, 1)),
        ([1, 2, 3, _EOS], 1000, 2, (2, 3)),  # the stop was the target's own token behind two drafts
        ([1, 2, 3], 3, 3, (2, 2)),  # the limit: room for two
    ],
)
def test_drafts_past_the_stop_are_not_counted(tokens: list[int], max_tokens: int, accepted_last: int, expected: tuple[int, int]) -> None:
    found = answer_acceptance(_answer(tokens, [accepted_last], max_tokens=max_tokens))
    assert found is not None
    assert (found.num_accepted_tokens, found.num_draft_tokens) == expected


def test_a_step_without_a_draft_is_no_verify_step() -> None:
    told = {"speculative_decoding": {"per_step_accepted": [0, 2], "per_step_drafted": [0, 3]}}
    found = answer_acceptance(Answer([1, 2, 3, 4, 5], 1000, (_EOS,), _K, told, None))
    assert found == Acceptance(num_verify_steps=1, num_draft_tokens=3, num_accepted_tokens=2, accepted_at=(1, 1, 0))


def test_counters_give_the_same_number_as_the_steps() -> None:
    """Without per-request counts, what exceeds an answer's length was cut: the totals then agree with the steps'."""
    rng = random.Random(0)
    for _ in range(200):
        steps = [rng.randint(0, _K) for _ in range(rng.randint(1, 12))]
        whole = 1 + len(steps) + sum(steps)
        tokens = list(range(whole - rng.randint(0, steps[-1])))
        raw = {
            "vllm:spec_decode_num_drafts_total": len(steps),
            "vllm:spec_decode_num_draft_tokens_total": _K * len(steps),
            "vllm:spec_decode_num_accepted_tokens_total": sum(steps),
            **{f"vllm:spec_decode_num_accepted_tokens_per_pos_total[{k}]": sum(n > k for n in steps) for k in range(_K)},
        }
        by_steps = answer_acceptance(_answer(tokens, steps, max_tokens=len(tokens)))
        by_counters = answer_acceptance(Answer(tokens, len(tokens), (_EOS,), _K, None, raw))
        assert by_steps is not None and by_counters is not None
        assert by_steps.num_verify_steps == by_counters.num_verify_steps
        assert by_steps.num_accepted_tokens == by_counters.num_accepted_tokens
