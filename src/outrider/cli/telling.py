"""Events of a watched engine as lines for a person, or one JSON object a line for a program."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import typer

from outrider.core.terminal import visible

if TYPE_CHECKING:
    from outrider.engines.log_events import Event

_CLEAR: Final = "\r\x1b[K"  # the bar that stands in this line
Tell = Callable[["Event"], object]


def as_json(event: "Event") -> None:
    """One line."""
    typer.echo(event.model_dump_json())


def as_text() -> Tell:
    """A line an event, or a few for a failure; of progress, where nobody looks on, only the end of each count.

    Nothing of a log acts on the terminal.
    """
    looked_at, is_bar = sys.stdout.isatty(), False

    def tell(event: "Event") -> None:
        nonlocal is_bar
        if event.event == "progress" and not looked_at and event.done < event.total:
            return
        sys.stdout.write(_CLEAR if is_bar else "")
        is_bar = looked_at and event.event == "progress"
        sys.stdout.write("\n".join(map(visible, _lines(event))) + ("" if is_bar else "\n"))
        sys.stdout.flush()

    return tell


def _lines(event: "Event") -> list[str]:
    if event.event == "phase":
        return [f"{event.at_s:7.1f} s  {event.phase.replace('_', ' ')}"]
    if event.event == "progress":
        left = f", about {_time(event.left_s)} left" if event.left_s and event.left_s >= 1 else ""
        return [f"           {event.done}/{event.total}{left}"]
    if event.event == "note":
        return [f"  note     {event.title}", *_parts((("effect", event.effect), ("fix", event.fix)))]
    if event.event == "failure":
        parts = (("evidence", event.evidence), ("frame", event.frame), ("fix", event.fix))
        return [f"  FAILED   {event.title}   (in phase {event.phase.replace('_', ' ')})", *_parts(parts)]
    if event.event == "health":
        return [f"  health   {event.what}"]
    return [f"{event.state}: {event.cause}" if event.cause else event.state]


def _parts(parts: tuple[tuple[str, str], ...]) -> list[str]:
    return [f"           {name:<9} {text}" for name, text in parts if text]


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
