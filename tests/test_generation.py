"""The reference engine in process: a drafter changes no greedy token and no sampled distribution; rows do not mix."""

from collections.abc import Sequence

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from builders import greedy_answer, next_logits
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.engines.reference.generation import PlainBatch, Running, speculate
from outrider.engines.reference.sampling import Request, Sampler
from outrider.targets.model import TargetModel

_STOP_IDS = frozenset(range(0, 300, 17))
_PROMPT = (5, 6, 7, 8)


def _plain(target: TargetModel, *requests: Request) -> list[list[int]]:
    batch, rows = PlainBatch(target), [Running(request) for request in requests]
    batch.add(rows)
    batch.drop_finished()
    while batch.rows:
        batch.step()
        batch.drop_finished()
    return [row.tokens for row in rows]


def _drafted(target: TargetModel, drafter: Eagle3Drafter, request: Request, num_tokens: int = 3) -> list[int]:
    row = Running(request)
    given = [token for tokens, _ in speculate(target, drafter, row, num_tokens) for token in tokens]
    assert given == row.tokens, "what is yielded is the answer"
    return given


@pytest.mark.parametrize("num_tokens", [1, 2, 4])
def test_a_drafter_changes_no_greedy_token(
    tiny_model: TargetModel, tiny_taught: Eagle3Drafter, tiny_prompts: list[tuple[int, ...]], num_tokens: int
) -> None:
    for prompt in tiny_prompts:
        request = Request(prompt, max_tokens=24, stop_ids=_STOP_IDS)
        expected = greedy_answer(tiny_model, prompt, 24, _STOP_IDS)
        assert _plain(tiny_model, request) == [expected]
        assert _drafted(tiny_model, tiny_taught, request, num_tokens) == expected


def test_rows_that_join_and_leave_get_what_they_get_alone(tiny_model: TargetModel, tiny_prompts: list[tuple[int, ...]]) -> None:
    lengths = (3, 30, 9, 1, 17, 24, 2, 12)
    rows = [Running(Request(p, max_tokens=n, stop_ids=_STOP_IDS)) for p, n in zip(tiny_prompts, lengths, strict=False)]
    joining = {0: rows[:2], 2: rows[2:5], 3: rows[5:6], 20: rows[6:8]}  # step → who joins before it
    batch, widths = PlainBatch(tiny_model), []
    for step in range(60):
        if step in joining:
            batch.add(joining[step])
            batch.drop_finished()
        if batch.rows:
            batch.step()
            batch.drop_finished()
        widths.append(len(batch.rows))
    assert max(widths) > 2 and widths[-1] == 0
    for row in rows:
        assert row.tokens == greedy_answer(tiny_model, row.request.prompt_ids, row.request.max_tokens, _STOP_IDS)


def test_sampled_rows_of_a_batch_do_not_share_random_numbers(tiny_model: TargetModel, tiny_prompts: list[tuple[int, ...]]) -> None:
    requests = [Request(p, max_tokens=10, temperature=0.8, top_p=0.9, seed=i) for i, p in enumerate(tiny_prompts[:4])]
    assert _plain(tiny_model, *requests) == [_plain(tiny_model, request)[0] for request in requests]


def test_a_cancelled_row_leaves_the_batch(tiny_model: TargetModel) -> None:
    batch, rows = PlainBatch(tiny_model), [Running(Request(_PROMPT, 50)), Running(Request(_PROMPT[:2], 5))]
    batch.add(rows)
    rows[0].is_cancelled = True
    assert batch.drop_finished() == [rows[0]]
    while batch.rows:
        batch.step()
        batch.drop_finished()
    assert len(rows[0].tokens) == 1
    assert rows[1].tokens == greedy_answer(tiny_model, _PROMPT[:2], 5)


def test_the_same_seed_gives_the_same_answer_and_another_seed_another(tiny_model: TargetModel, tiny_taught: Eagle3Drafter) -> None:
    def answer(seed: int) -> list[int]:
        return _drafted(tiny_model, tiny_taught, Request(_PROMPT, 20, temperature=1.0, seed=seed))

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)


def test_top_p_keeps_to_the_nucleus_with_and_without_a_drafter(tiny_model: TargetModel, tiny_taught: Eagle3Drafter) -> None:
    """Every token of the answer is among the fewest best ones that hold half of the probability."""
    for seed in range(10):
        request = Request(_PROMPT, 10, temperature=1.0, top_p=0.5, seed=seed)
        for answer in (_plain(tiny_model, request)[0], _drafted(tiny_model, tiny_taught, request)):
            for i, token in enumerate(answer):
                probs = torch.softmax(next_logits(tiny_model, [*_PROMPT, *answer[:i]]), -1)
                better = probs[probs > probs[token]].sum().item()
                assert better < 0.5 + 1e-5


def test_a_tiny_top_p_is_greedy(tiny_model: TargetModel, tiny_taught: Eagle3Drafter) -> None:
    request = Request(_PROMPT, 12, temperature=1.0, top_p=1e-6, seed=3)
    expected = greedy_answer(tiny_model, _PROMPT, 12)
    assert _plain(tiny_model, request) == [expected]
    assert _drafted(tiny_model, tiny_taught, request) == expected


def _p_value(samples: Sequence[int], probs: Tensor) -> float:
    """Of a chi-square test that the samples come from this distribution; rare tokens share one bin."""
    counts = torch.bincount(torch.tensor(samples), minlength=len(probs)).double()
    expected = probs.double() / probs.double().sum() * len(samples)
    is_rare = expected < 8
    observed_bins = torch.cat([counts[~is_rare], counts[is_rare].sum().unsqueeze(0)])
    expected_bins = torch.cat([expected[~is_rare], expected[is_rare].sum().unsqueeze(0)])
    assert len(expected_bins) > 5
    kept = expected_bins > 0
    assert not observed_bins[~kept].any(), "a token without probability was said"
    return float(chisquare(observed_bins[kept].numpy(), expected_bins[kept].numpy()).pvalue)


def test_sampled_speculation_keeps_the_targets_distribution(tiny_model: TargetModel, tiny_taught: Eagle3Drafter) -> None:
    """The second token of an answer, over seeds, against its exact marginal: sum over first tokens of p(first) p(second | first)."""
    first = torch.softmax(next_logits(tiny_model, _PROMPT), -1)
    continued = torch.tensor([[*_PROMPT, token] for token in range(len(first))])
    second = first @ torch.softmax(tiny_model.logits(tiny_model.states(continued).last[:, -1]), -1)
    answers = [_drafted(tiny_model, tiny_taught, Request(_PROMPT, 2, temperature=1.0, seed=seed), num_tokens=2) for seed in range(2000)]
    assert _p_value([answer[0] for answer in answers], first) > 0.001
    assert _p_value([answer[1] for answer in answers], second) > 0.001


_SCORES = torch.tensor(
    [[2.0, 1.0, 0.5, 0.0, -0.5, -1.0, 1.5, 0.2], [0.0, 0.3, 2.0, 1.0, -1.0, 0.5, 0.1, -0.3], [1.0, 0.0, 0.0, 2.0, 0, 0, 0, 0]]
)
_DRAFT_SCORES = torch.tensor([0.0, 2.0, 1.0, -1.0, 0.5])
_DRAFT_VOCAB = torch.tensor([0, 2, 3, 5, 6])


def _over_vocabulary(probs: Tensor) -> Tensor:
    return torch.zeros(8).index_copy_(0, _DRAFT_VOCAB, probs)


def _verified(seed: int, temperature: float, top_p: float) -> tuple[list[int], list[int]]:
    """(drafts, what the verify step emits) for two drafts from a drafter that is wrong, and has a smaller vocabulary."""
    sampler = Sampler(Request((1,), 8, temperature=temperature, top_p=top_p, seed=seed))
    kept: list[Tensor] = []
    drafts = [int(_DRAFT_VOCAB[sampler.propose(_DRAFT_SCORES, kept)]) for _ in range(2)]
    return drafts, sampler.verify(_SCORES, drafts, kept, _over_vocabulary)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.3, 0.9)])
def test_a_verify_step_keeps_the_distribution_at_every_position(temperature: float, top_p: float) -> None:
    emitted = [_verified(seed, temperature, top_p)[1] for seed in range(6000)]
    target = Sampler(Request((1,), 8, temperature=temperature, top_p=top_p)).probabilities(_SCORES)
    for position in range(2):
        assert _p_value([tokens[position] for tokens in emitted if len(tokens) > position], target[position]) > 0.001


def test_the_same_test_catches_drafts_that_are_kept_unconditionally() -> None:
    drafts = [_verified(seed, 1.0, 1.0)[0] for seed in range(2000)]
    target = torch.softmax(_SCORES, -1)
    assert _p_value([tokens[0] for tokens in drafts], target[0]) < 1e-6
