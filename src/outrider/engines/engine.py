"""What Outrider must know of an engine."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.core.results import Acceptance
from outrider.engines.environment import Environment
from outrider.engines.facts import EngineFacts
from outrider.engines.log_rules import LogRules


@dataclass(frozen=True)
class ServeSpec:
    """What is to be served.

    Attributes:
        drafter: its folder, or None for plain decoding.
        num_speculative_tokens: K.
        port: on loopback; 0 for any free one.
        max_batch: requests decoded at once.
        threads: CPU threads, None for the engine's own choice.
        extra_args: further arguments of the engine's own command.
        lift_target_types: types of targets to draft for although the engine's own list does not name them.
    """

    target: Path
    drafter: Path | None
    num_speculative_tokens: int
    dtype: str
    port: int
    max_batch: int = 32
    threads: int | None = None
    extra_args: tuple[str, ...] = ()
    lift_target_types: tuple[str, ...] = ()


@dataclass(frozen=True)
class Distribution:
    """A package that carries the engine.

    Attributes:
        imports: the module that must import when it is installed.
        unfit: packages that its requirements bring and that break it.
        besides: a requirement that it does better with; empty for none.
    """

    name: str
    imports: str
    unfit: tuple[str, ...] = ()
    besides: str = ""


@dataclass(frozen=True)
class Launch:
    """A command line, and what it needs in its environment beside ours."""

    command: list[str]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    """One answer of a server, as far as acceptance is counted from it.

    Attributes:
        token_ids: the answer.
        max_tokens: its limit.
        stop_ids: ids that end an answer.
        num_speculative_tokens: K.
        metrics: what the server said of this request by its own names; None if nothing.
        counters: difference of the server's counters around it; None if other answers ran beside it.
    """

    token_ids: Sequence[int]
    max_tokens: int
    stop_ids: Collection[int]
    num_speculative_tokens: int
    metrics: Mapping[str, Any] | None
    counters: Mapping[str, float] | None


@dataclass(frozen=True)
class Engine:
    """An engine, as data and functions.

    Attributes:
        id: the plug-in's id.
        distributions: the packages that carry it; an environment is recognised by any of them.
        built_in: its environment if it is part of this package, else None.
        launch: the command that serves a spec on loopback.
        facts: what this installed version accepts.
        counters: text of /metrics → its raw counters, by its own names.
        acceptance: difference of raw counters → counts as the engine makes them; None if it has not speculated.
        answer_acceptance: one answer's counts, corrected so that drafts past the stop are not counted; None if unknown.
        log: what is known of its log.
        side_by_side: whether two servers run beside each other without taking each other's memory or cores.
        ready_timeout_s: how long a start may take.
    """

    id: str
    distributions: tuple[Distribution, ...]
    built_in: Callable[[], Environment] | None
    launch: Callable[[Environment, ServeSpec], Launch]
    facts: Callable[[Environment], EngineFacts]
    counters: Callable[[str], dict[str, float]]
    acceptance: Callable[[Mapping[str, float]], Acceptance | None]
    answer_acceptance: Callable[[Answer], Acceptance | None]
    log: LogRules
    side_by_side: bool
    ready_timeout_s: float
