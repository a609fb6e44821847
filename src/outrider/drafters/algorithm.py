"""What every drafting algorithm defines."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Algorithm:
    """A drafting algorithm.

    Attributes:
        id: the plug-in's id, as engines call the method.
        default_aux_layers: number of target layers → layers run whose states feed the drafter.
    """

    id: str
    default_aux_layers: Callable[[int], tuple[int, ...]]
