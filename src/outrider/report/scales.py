"""From values to places on a drawing: ranges, ticks, and long series made short."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

_LARGEST_DRAWN: Final = 1e300  # beyond it the width of a range may overflow
_NARROWEST_RANGE: Final = 1e-9  # relative; below it ticks could not be told apart

Point = tuple[float, float]


def is_drawable(value: float | None) -> bool:
    """Whether the value has a place on an axis."""
    return value is not None and math.isfinite(value) and abs(value) <= _LARGEST_DRAWN


@dataclass(frozen=True)
class Scale:
    """A linear map from values in [low, high] to places from `start` to `end`; values outside land on the nearer end."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        return round(self.start + share * (self.end - self.start), 2)


def value_range(values: Iterable[float]) -> Point:
    """The smallest range that holds the values, widened where it would be a point; (0, 1) without values."""
    values = list(values)
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    largest = max(abs(low), abs(high))
    if high - low <= _NARROWEST_RANGE * max(largest, 1e-3):
        margin = 0.5 * max(largest, 1e-3)
        return low - margin, high + margin
    return low, high


def ticks(low: float, high: float, about: int) -> tuple[list[float], float]:
    """Round values in [low, high], roughly `about` of them, and the step between them."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)], step


def whole_ticks(low: float, high: float, about: int) -> Point:
    """The range widened to round values at both ends."""
    _, step = ticks(low, high, about)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def tick_label(value: float, step: float) -> str:
    """A tick's value with as many decimals as the step needs."""
    if abs(value) >= 1e6 or step < 1e-4:
        return f"{value:.3g}"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:,.{decimals}f}"


def thinned(points: Sequence[Point], limit: int) -> list[Point]:
    """At most `limit` points: neighbours are replaced by their mean."""
    if len(points) <= limit:
        return list(points)
    edges = [len(points) * index // limit for index in range(limit + 1)]
    return [_mean(points[start:end]) for start, end in pairwise(edges)]


def _mean(points: Sequence[Point]) -> Point:
    count = len(points)
    return sum(x / count for x, _ in points), sum(y / count for _, y in points)
