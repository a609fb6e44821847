"""Choosing tokens: greedy, sampled, and speculative rejection sampling that keeps the target's distribution."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Request:
    """One request for an answer.

    Attributes:
        temperature: 0 for greedy.
        seed: of this request's own random numbers.
        stop_ids: ids that end the answer; they belong to it.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop_ids: frozenset[int] = field(default_factory=frozenset)


class Sampler:
    """Draws one request's tokens.

    Args:
        request: whose temperature, top_p and seed apply.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._random = torch.Generator().manual_seed(request.seed)

    def probabilities(self, logits: Float[Tensor, "*batch V"]) -> Float[Tensor, "*batch V"]:
        """The distribution that is sampled from: temperature, then top_p (Holtzman et al. 2020)."""
        probs = torch.softmax(logits.float().cpu() / self._request.temperature, dim=-1)
        if self._request.top_p >= 1:
            return probs
        ordered, ids = probs.sort(dim=-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        kept = torch.zeros_like(probs).scatter(-1, ids, torch.where(before < self._request.top_p, ordered, 0.0))
        return kept / kept.sum(-1, keepdim=True)

    def choose(self, logits: Float[Tensor, "V"]) -> int:
        """The next token."""
        if self._request.temperature == 0:
            return int(logits.argmax())
        return self._draw(self.probabilities(logits))

    def propose(self, logits: Float[Tensor, "U"], kept: list[Tensor]) -> int:
        """A draft id; when sampling, the distribution it was drawn from is appended to `kept`."""
        if self._request.temperature == 0:
            return int(logits.argmax())
        probs = torch.softmax(logits.float().cpu() / self._request.temperature, dim=-1)
        kept.append(probs)
        return self._draw(probs)

    def verify(
        self, logits: Float[Tensor, "K1 V"], drafts: list[int], draft_probs: list[Tensor], to_target: Callable[[Tensor], Tensor]
    ) -> list[int]:
        """The tokens that a verify step gives: accepted drafts, then one of the target's own.

        Greedy: a draft is kept while it is the target's best token. Sampled: speculative sampling (Leviathan et al.
        2023, algorithm 1), which leaves the target's distribution unchanged.

        Args:
            logits: the target's scores after the newest token and after each draft.
            draft_probs: [U] for each draft, the distribution it was drawn from; unused when greedy.
            to_target: [U] probabilities over the draft vocabulary → [V].
        """
        if self._request.temperature == 0:
            return _greedy_verify(logits.argmax(-1).tolist(), drafts)
        target = self.probabilities(logits)
        emitted: list[int] = []
        for k, draft in enumerate(drafts):
            p, q = target[k], to_target(draft_probs[k])
            if torch.rand((), generator=self._random) * q[draft] < p[draft]:
                emitted.append(draft)
                continue
            left = (p - q).clamp(min=0)
            # p and q can agree to rounding while the draft is still refused: nothing is left, and p itself is right
            return [*emitted, self._draw(left / left.sum() if left.sum() > 0 else p)]
        return [*emitted, self._draw(target[len(drafts)])]

    def _draw(self, probs: Float[Tensor, "V"]) -> int:
        return int(torch.multinomial(probs, 1, generator=self._random))


def _greedy_verify(best: list[int], drafts: list[int]) -> list[int]:
    emitted: list[int] = []
    for draft, own in zip(drafts, best, strict=False):
        if draft != own:
            break
        emitted.append(draft)
    return [*emitted, best[len(emitted)]]
