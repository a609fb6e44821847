"""What Outrider must know of an engine."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outrider.core.results import Acceptance


@dataclass(frozen=True)
class ServeSpec:
    """What is to be served.

    Attributes:
        drafter: its folder, or None for plain decoding.
        num_speculative_tokens: K.
        max_batch: requests decoded at once.
        threads: CPU threads, None for the engine's own choice.
    """

    target: Path
    drafter: Path | None
    num_speculative_tokens: int
    dtype: str
    port: int
    max_batch: int = 32
    threads: int | None = None


@dataclass(frozen=True)
class Engine:
    """An engine, as data and three functions.

    Attributes:
        id: the plug-in's id.
        version: which version would be started.
        command: the command line that serves a spec on loopback.
        counters: text of /metrics → this engine's raw counters, by its own names.
        acceptance: difference of raw counters → the one definition; None if it has not speculated.
        ready_timeout_s: how long a start may take.
    """

    id: str
    version: Callable[[], str]
    command: Callable[[ServeSpec], list[str]]
    counters: Callable[[str], dict[str, float]]
    acceptance: Callable[[dict[str, float]], Acceptance | None]
    ready_timeout_s: float
