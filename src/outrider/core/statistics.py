"""Intervals by the bootstrap (Efron and Tibshirani 1993, chapter 13: percentile intervals), over prompts."""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from outrider.core.results import Interval

T = TypeVar("T")

_RESAMPLES = 2000
_LOW, _HIGH = 0.025, 0.975
_MIN_ITEMS = 2


def bootstrap(items: Sequence[T], value: Callable[[Sequence[T]], float | None], seed: int = 0) -> Interval | None:
    """`value` of all items, with the 95 % interval of its values over resampled items.

    Returns:
        None if there are fewer than two items, or if `value` is None for them.
    """
    point = value(items)
    if point is None or len(items) < _MIN_ITEMS:
        return None
    rng = random.Random(seed)
    values = sorted(v for _ in range(_RESAMPLES) if (v := value(rng.choices(items, k=len(items)))) is not None)
    return Interval(value=point, low=values[int(_LOW * len(values))], high=values[int(_HIGH * len(values)) - 1])
