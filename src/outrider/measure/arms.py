"""The two servers of a measurement: started when they are asked, or running somewhere already."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from outrider.engines.engine import Engine, ServeSpec
from outrider.engines.environment import Environment
from outrider.engines.serving import running

PLAIN, DRAFTED = "plain", "drafted"


@dataclass(frozen=True)
class Arm:
    """A server, with or without the drafter.

    Attributes:
        start: serves it while the block lasts; gives its URL.
        runs_already: whether it is there, whether it is asked or not.
    """

    name: str
    start: Callable[[], AbstractContextManager[str]]
    runs_already: bool = False


def started(engine: Engine, environment: Environment, spec: ServeSpec, folder: Path) -> list[Arm]:
    """Both arms as servers of our own, alike but for the drafter of `spec`; their logs below `folder`."""

    def arm(name: str, own: ServeSpec) -> Arm:
        return Arm(name, lambda: running(engine, environment, own, folder / f"{name}.log"))

    return [arm(PLAIN, replace(spec, drafter=None)), arm(DRAFTED, spec)]


def at_urls(plain: str, drafted: str) -> list[Arm]:
    """Both arms as servers that run already."""
    return [Arm(PLAIN, lambda: nullcontext(plain), True), Arm(DRAFTED, lambda: nullcontext(drafted), True)]
