"""Replay counts what the reference engine counts, prompt by prompt."""

import json
from pathlib import Path

import pytest
import torch

from builders import CPU, document_of, greedy_answer, random_drafter
from outrider.core.results import Acceptance
from outrider.drafters.eagle3 import ChainDrafter, Eagle3Drafter
from outrider.drafters.replay import greedy_drafts, replay
from outrider.engines.reference.generation import Running, load_pair, speculate
from outrider.engines.reference.sampling import Request
from outrider.targets.folder import TargetFolder
from outrider.targets.model import TargetModel

_STOP_IDS = frozenset(range(0, 300, 17))


def _in_engine(
    target: TargetModel, drafter: Eagle3Drafter, prompt: tuple[int, ...], num_tokens: int, max_tokens: int, stop_ids: frozenset[int]
) -> tuple[list[int], Acceptance]:
    row = Running(Request(prompt, max_tokens, stop_ids=stop_ids))
    counts = sum((step for _, step in speculate(target, drafter, row, num_tokens)), Acceptance())
    return row.tokens, counts


@pytest.mark.parametrize("num_tokens", [1, 3, 5])
@pytest.mark.parametrize("max_tokens", [2, 7, 32])
def test_replay_is_the_engine_on_the_tiny_pair(
    tiny_model: TargetModel, tiny_taught: Eagle3Drafter, tiny_prompts: list[tuple[int, ...]], num_tokens: int, max_tokens: int
) -> None:
    total, ends = Acceptance(), set()
    for prompt in tiny_prompts:
        answer, counted = _in_engine(tiny_model, tiny_taught, prompt, num_tokens, max_tokens, _STOP_IDS)
        assert answer == greedy_answer(tiny_model, prompt, max_tokens, _STOP_IDS)
        document = document_of(tiny_model, prompt, answer)
        assert replay(tiny_taught, document, num_tokens, sorted(_STOP_IDS), max_tokens) == counted
        total += counted
        ends.add("stop" if answer[-1] in _STOP_IDS else "length")
    assert ends == {"stop", "length"}, "the prompts must reach both ends"
    assert 0 < total.num_accepted_tokens < total.num_draft_tokens, "the drafter must be right some of the time"


def test_every_draft_of_a_growing_sequence_is_replays(tiny_target: TargetFolder, tiny_model: TargetModel) -> None:
    """Slots come in groups, as after verify steps of different luck; all drafts are compared, not the accepted ones alone."""
    drafter = random_drafter(tiny_target).eval()
    with torch.no_grad():
        for parameter in drafter.midlayer.self_attn.parameters():
            parameter.mul_(6)  # so that every key and value that is lost or wrong changes drafts
    document = document_of(tiny_model, (5, 6, 7), greedy_answer(tiny_model, (5, 6, 7), 30))
    chain, first = ChainDrafter(drafter), 0
    for last in (2, 3, 7, 8, 12, 13, 18, 24, 31):
        slots = slice(first, last + 1)
        next_ids = document.input_ids[first + 1 : last + 2].long()
        drafts = chain.draft(document.aux[slots].unsqueeze(0), next_ids.unsqueeze(0), 6, lambda scores: int(scores.argmax()))
        assert drafts == greedy_drafts(drafter, document, torch.tensor([last]), 6)[0].tolist()
        first = last + 1


def test_an_answer_of_one_token_has_no_verify_step(tiny_model: TargetModel, tiny_taught: Eagle3Drafter) -> None:
    prompt = (5, 6, 7)
    answer, counted = _in_engine(tiny_model, tiny_taught, prompt, 3, 1, frozenset())
    assert replay(tiny_taught, document_of(tiny_model, prompt, answer), 3, (), 1) == counted == Acceptance()


def test_a_stored_answer_longer_than_the_limit_is_cut_at_it(tiny_model: TargetModel, tiny_taught: Eagle3Drafter) -> None:
    prompt = (5, 6, 7)
    _, counted = _in_engine(tiny_model, tiny_taught, prompt, 3, 9, frozenset())
    longer = document_of(tiny_model, prompt, greedy_answer(tiny_model, prompt, 20))
    assert replay(tiny_taught, longer, 3, (), 9) == counted


@pytest.mark.real
def test_replay_is_the_engine_on_the_real_pair(real_target: TargetFolder, shared: Path) -> None:
    questions = [json.loads(line)["turns"][0] for line in (shared / "data" / "eval_gsm8k.jsonl").read_text().splitlines()[:4]]
    target, drafter = load_pair(real_target, shared / "drafter-smollm2", torch.float32, CPU)
    assert drafter is not None
    stop_ids = frozenset(real_target.eos_token_ids)
    total = Acceptance()
    for question in questions:
        messages = [{"role": "user", "content": question}]
        text = str(real_target.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        prompt = tuple(real_target.tokenizer(text, add_special_tokens=False)["input_ids"])
        answer, counted = _in_engine(target, drafter, prompt, 3, 48, stop_ids)
        assert replay(drafter, document_of(target, prompt, answer), 3, sorted(stop_ids), 48) == counted
        total += counted
    assert 0 < total.num_accepted_tokens < total.num_draft_tokens
