"""Which documents train, which are held out, in which order; and the draft vocabulary they give."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from outrider.store.documents import Store


@dataclass(frozen=True)
class Split:
    """Indices of documents."""

    training: tuple[int, ...]
    held_out: tuple[int, ...]


def split(store: Store, held_out_fraction: float, seed: int) -> Split:
    """Hold out a share of the documents; at least one where any is asked for and two exist."""
    order = list(range(len(store)))
    random.Random(seed).shuffle(order)
    number = round(len(order) * held_out_fraction)
    if held_out_fraction and len(order) > 1:
        number = min(max(1, number), len(order) - 1)
    return Split(training=tuple(sorted(order[number:])), held_out=tuple(sorted(order[:number])))


def epoch_batches(store: Store, indices: Sequence[int], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """One epoch's batches: documents of like length together, batches in random order.

    Args:
        batch_tokens: padded tokens of a batch, at most; a longer document is a batch of its own.
    """
    shuffle = random.Random(f"{seed}:{epoch}")
    order = list(indices)
    shuffle.shuffle(order)
    order.sort(key=store.length, reverse=True)
    batches: list[list[int]] = []
    for index in order:
        if batches and store.length(batches[-1][0]) * (len(batches[-1]) + 1) <= batch_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    shuffle.shuffle(batches)
    return batches


def answer_token_counts(store: Store, indices: Sequence[int], vocab_size: int) -> Int[Tensor, "V"]:
    """How often each token occurs in answers."""
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for ids, mask in store.token_parts(indices):
        counts += torch.bincount(ids[mask], minlength=vocab_size)
    return counts


def draft_vocabulary(counts: Int[Tensor, "V"], size: int) -> Int[Tensor, "U"] | None:
    """The `size` most frequent tokens, ascending; ties and tokens never seen by lowest id. None for the whole vocabulary."""
    if size >= len(counts):
        return None
    order = torch.sort(counts, descending=True, stable=True).indices[:size]
    return order.sort().values


def coverage(counts: Int[Tensor, "V"], vocabulary: Int[Tensor, "U"] | None) -> float | None:
    """Share of the counted tokens that the vocabulary holds; None if nothing was counted."""
    total = int(counts.sum())
    if not total:
        return None
    return 1.0 if vocabulary is None else int(counts[vocabulary].sum()) / total
