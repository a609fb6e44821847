"""Keys and values of running requests: rows of one batch, padded on the left to a common length."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

_FIRST_CAPACITY = 128


class GrowingLayer(DynamicLayer):
    """One layer's keys and values in buffers that double, so that a token costs a write and not a copy of all."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._buffers: tuple[Tensor, Tensor] | None = None
        self._length = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append [B, G, T, P] keys and values; returns all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self._length + key_states.shape[2]
        if self._buffers is None or end > self._buffers[0].shape[2]:
            self._grow(key_states, value_states, max(_FIRST_CAPACITY, 2 * end))
        assert self._buffers is not None
        self._buffers[0][:, :, self._length : end] = key_states
        self._buffers[1][:, :, self._length : end] = value_states
        self._show(end)
        return self.keys, self.values

    def truncate(self, length: int) -> None:
        """Forget all after the first `length` positions."""
        self._show(length)

    def replace(self, keys: Tensor, values: Tensor) -> None:
        """Hold these keys and values instead."""
        self._buffers = (keys, values)
        self._show(keys.shape[2])

    def _grow(self, key_states: Tensor, value_states: Tensor, capacity: int) -> None:
        fresh = tuple(s.new_empty(*s.shape[:2], capacity, s.shape[3]) for s in (key_states, value_states))
        if self._buffers is not None:
            for new, old in zip(fresh, self._buffers, strict=True):
                new[:, :, : self._length] = old[:, :, : self._length]
        self._buffers = (fresh[0], fresh[1])

    def _show(self, length: int) -> None:
        assert self._buffers is not None
        self._length = length
        self.keys, self.values = self._buffers[0][:, :, :length], self._buffers[1][:, :, :length]


class GrowingCache(Cache):
    """A cache of growing layers whose rows can be cut, dropped and joined."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=GrowingLayer)

    def truncate(self, length: int) -> None:
        """Forget all after the first `length` positions, e.g. rejected drafts."""
        for layer in self.layers:
            layer.truncate(length)

    def keep(self, rows: Tensor, start: int) -> None:
        """Keep only `rows`, and drop the first `start` positions: padding that no row left needs."""
        for layer in self.layers:
            layer.replace(layer.keys[rows, :, start:].contiguous(), layer.values[rows, :, start:].contiguous())

    def join(self, other: "GrowingCache") -> None:
        """Add the other's rows below these; the shorter ones are padded on the left."""
        length = max(self.get_seq_length(), other.get_seq_length())
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            mine.replace(
                torch.cat([_pad_left(mine.keys, length), _pad_left(theirs.keys, length)]),
                torch.cat([_pad_left(mine.values, length), _pad_left(theirs.values, length)]),
            )


def _pad_left(states: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(states, (0, 0, length - states.shape[2], 0))
