"""Generation in process: plain decoding of many requests at once, speculation of one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from outrider.core.results import Acceptance
from outrider.drafters.eagle3 import ChainDrafter, Eagle3Drafter
from outrider.drafters.loading import load_drafter
from outrider.engines.reference.cache import GrowingCache
from outrider.engines.reference.sampling import Request, Sampler
from outrider.targets.cpu import use_few_rows_linear
from outrider.targets.folder import TargetFolder
from outrider.targets.model import TargetModel


def load_pair(
    target: TargetFolder, drafter: Path | None, dtype: torch.dtype, device: torch.device
) -> tuple[TargetModel, Eagle3Drafter | None]:
    """Load a target, and a drafter for it.

    Raises:
        InputError: either cannot be loaded, or the drafter is not for this target.
    """
    if drafter is None:
        return TargetModel(target, dtype, device), None
    loaded = load_drafter(drafter, target)
    model = TargetModel(target, dtype, device, loaded.config.aux_layers)
    loaded = loaded.to(device, dtype)
    use_few_rows_linear(loaded)
    return model, loaded


@dataclass
class Running:
    """A request being answered: what has been said, and by which sampler."""

    request: Request
    key: object = None
    tokens: list[int] = field(default_factory=list)
    is_cancelled: bool = False

    def __post_init__(self) -> None:
        self.sampler = Sampler(self.request)

    @property
    def finish_reason(self) -> str | None:
        """Why it has ended, or None."""
        if self.tokens and self.tokens[-1] in self.request.stop_ids:
            return "stop"
        return "length" if len(self.tokens) >= self.request.max_tokens else None


class PlainBatch:
    """Plain decoding with requests joining and leaving at any step. Rows are padded on the left.

    Args:
        target: the model; its aux layers are not needed.
    """

    def __init__(self, target: TargetModel) -> None:
        self._target = target
        self._cache: GrowingCache | None = None
        self._padding: list[int] = []
        self.rows: list[Running] = []

    def add(self, rows: Sequence[Running]) -> None:
        """Read the prompts of new requests, together, and give each its first token."""
        longest = max(len(row.request.prompt_ids) for row in rows)
        padding = [longest - len(row.request.prompt_ids) for row in rows]
        ids = torch.tensor([[0] * pad + list(row.request.prompt_ids) for pad, row in zip(padding, rows, strict=True)])
        cache = GrowingCache()
        self._advance(list(rows), ids, cache, padding)
        if self._cache is None:
            self._cache, self._padding = cache, padding
        else:
            length = max(self._cache.get_seq_length(), longest)
            self._padding = [p + length - self._cache.get_seq_length() for p in self._padding] + [p + length - longest for p in padding]
            self._cache.join(cache)
        self.rows += rows

    def step(self) -> None:
        """One more token for every row."""
        assert self._cache is not None
        ids = torch.tensor([[row.tokens[-1]] for row in self.rows])
        self._advance(self.rows, ids, self._cache, self._padding)

    def drop_finished(self) -> list[Running]:
        """Take out and return the rows that have ended or were cancelled."""
        gone = [row for row in self.rows if row.finish_reason or row.is_cancelled]
        left = [i for i, row in enumerate(self.rows) if not (row.finish_reason or row.is_cancelled)]
        if gone and not left:
            self._cache, self._padding, self.rows = None, [], []
        elif gone and self._cache is not None:
            start = min(self._padding[i] for i in left)
            self._cache.keep(torch.tensor(left), start)
            self._padding = [self._padding[i] - start for i in left]
            self.rows = [self.rows[i] for i in left]
        return gone

    def _advance(self, rows: list[Running], ids: Tensor, cache: GrowingCache, padding: list[int]) -> None:
        device = self._target.device
        seen = cache.get_seq_length()
        pads = torch.tensor(padding).unsqueeze(1)
        at = torch.arange(seen, seen + ids.shape[1]).unsqueeze(0)
        positions = (at - pads).clamp(min=0).to(device)
        mask = None
        if any(padding):
            mask = (torch.arange(seen + ids.shape[1]).unsqueeze(0) >= pads).to(device, torch.int64)
        states = self._target.states(ids.to(device), cache=cache, attention_mask=mask, positions=positions)
        logits = self._target.logits(states.last[:, -1])
        for row, scores in zip(rows, logits, strict=True):
            row.tokens.append(row.sampler.choose(scores))


def speculate(target: TargetModel, drafter: Eagle3Drafter, row: Running, num_tokens: int) -> Iterator[tuple[list[int], Acceptance]]:
    """Answer one request with a drafter; yields the tokens of each step, and what the step counted.

    The first step is the prefill: one token, nothing counted.
    """
    cache, chain, request = GrowingCache(), ChainDrafter(drafter), row.request
    states = target.states(torch.tensor([request.prompt_ids], device=target.device), cache=cache)
    row.tokens.append(row.sampler.choose(target.logits(states.last[0, -1])))
    yield [row.tokens[-1]], Acceptance()
    aux, next_ids = states.aux, [*request.prompt_ids[1:], row.tokens[-1]]
    while row.finish_reason is None and not row.is_cancelled:
        draft_probs: list[Tensor] = []
        choose = partial(row.sampler.propose, kept=draft_probs)
        drafts = chain.draft(aux, torch.tensor([next_ids], device=target.device), num_tokens, choose)
        confirmed = cache.get_seq_length()
        states = target.states(torch.tensor([[row.tokens[-1], *drafts]], device=target.device), cache=cache)
        emitted = row.sampler.verify(target.logits(states.last[0]), drafts, draft_probs, lambda probs: _over_vocabulary(probs, drafter))
        cache.truncate(confirmed + len(emitted))
        aux, next_ids = states.aux[:, : len(emitted)], emitted
        counts, kept = Acceptance.of_step(
            len(emitted) - 1, emitted, num_drafted=num_tokens, room=request.max_tokens - len(row.tokens), stop_ids=request.stop_ids
        )
        row.tokens += kept
        yield kept, counts


def _over_vocabulary(probs: Tensor, drafter: Eagle3Drafter) -> Tensor:
    return torch.zeros(drafter.config.vocab_size).index_copy_(0, drafter.draft_vocab.cpu(), probs)
