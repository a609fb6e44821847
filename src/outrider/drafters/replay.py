"""Acceptance without an engine: chain speculation over the target's own greedy tokens and stored states."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from outrider.core.results import Acceptance
from outrider.drafters.eagle3 import Eagle3Drafter, unroll
from outrider.store.documents import Document


@torch.inference_mode()
def greedy_drafts(drafter: Eagle3Drafter, document: Document, slots: Int[Tensor, "Q"], num_tokens: int) -> Int[Tensor, "Q K"]:
    """What the drafter would propose from each slot after the true tokens x_0..x_{slot+1}."""
    device = drafter.embed_tokens.device
    dtype = drafter.fc.weight.dtype
    ids = document.input_ids.to(device, torch.int64).unsqueeze(0)
    next_ids = torch.cat([ids[:, 1:], ids[:, :1]], dim=1)  # the last slot has no next token and is never drafted from
    drafted: list[Tensor] = []

    def own_tokens(_: int, output: Tensor) -> Tensor:
        drafted.append(drafter.target_ids(drafter.logits(output).argmax(-1)))
        return drafted[-1]

    aux = document.aux.to(device, dtype).unsqueeze(0)
    outputs = unroll(drafter, aux, next_ids, slots.to(device).unsqueeze(0), num_tokens, own_tokens)
    own_tokens(num_tokens, outputs[-1])
    return torch.stack(drafted, dim=-1)[0]


def replay(drafter: Eagle3Drafter, document: Document, num_tokens: int, stop_ids: Sequence[int], max_tokens: int) -> Acceptance:
    """Acceptance over one document whose supervised tokens are one greedy answer at its end.

    The rounds are an engine's: the prefill gives the first token; each verify step starts where the last one ended.

    Args:
        num_tokens: K.
        stop_ids: ids that end an answer.
        max_tokens: the answer's token limit when it was made.
    """
    supervised = document.loss_mask.nonzero().flatten().tolist()
    if not supervised:
        return Acceptance()
    first = supervised[0]
    answer = document.input_ids[first : first + max_tokens].tolist()
    if len(answer) < 2:
        return Acceptance()
    slots = torch.arange(first - 1, first + len(answer) - 2)
    proposals = greedy_drafts(drafter, document, slots, num_tokens).tolist()
    total, done = Acceptance(), 1
    while done < len(answer):
        truth = answer[done:]
        accepted = _num_equal(proposals[done - 1], truth)
        step, kept = Acceptance.of_step(accepted, truth[: accepted + 1], num_drafted=num_tokens, room=max_tokens - done, stop_ids=stop_ids)
        total, done = total + step, done + len(kept)
    return total


def _num_equal(proposal: list[int], truth: list[int]) -> int:
    """How many leading tokens agree."""
    count = 0
    while count < min(len(proposal), len(truth)) and proposal[count] == truth[count]:
        count += 1
    return count
