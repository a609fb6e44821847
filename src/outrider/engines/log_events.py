"""What is told while an engine's log is read: one JSON object a line, told apart by `event`; the last one is `end`."""

from typing import Annotated, Literal

from pydantic import Field

from outrider.core.results import Frozen
from outrider.engines.log_rules import Phase

EndState = Literal["ready", "failed", "hung", "running"]


class PhaseEvent(Frozen):
    """A phase of the start has begun, `at_s` on the clock of whoever reads the log."""

    event: Literal["phase"] = "phase"
    phase: Phase
    at_s: float


class ProgressEvent(Frozen):
    """How far the phase is.

    Attributes:
        left_s: seconds until the engine is ready, as far as they are known: of what is counted, and of the phases to come that
            took time before. None if nothing is known.
    """

    event: Literal["progress"] = "progress"
    phase: Phase
    done: int
    total: int
    left_s: float | None


class NoteEvent(Frozen):
    """The engine says something that is no failure and yet matters; `line` is how it says it."""

    event: Literal["note"] = "note"
    id: str
    title: str
    effect: str
    fix: str
    line: str


class FailureEvent(Frozen):
    """The engine has failed.

    Attributes:
        id: of the known failure; empty if it is not a known one.
        phase: in which it happened.
        evidence: what the log says.
        frame: file, line and function of the last frame that is no plumbing; empty if there is none.
        fix: empty if unknown.
    """

    event: Literal["failure"] = "failure"
    id: str
    phase: Phase
    title: str
    evidence: str
    frame: str
    fix: str


class HealthEvent(Frozen):
    """A sign of life, or its absence, from beyond the log."""

    event: Literal["health"] = "health"
    what: str


class EndEvent(Frozen):
    """The last event: how it ended, or, of a log that goes on, how it is.

    Attributes:
        state: `ready` also if it was ready and then stopped on request; `running` if it has not come so far yet.
        cause: None where nothing went wrong.
    """

    event: Literal["end"] = "end"
    state: EndState
    cause: str | None


Event = PhaseEvent | ProgressEvent | NoteEvent | FailureEvent | HealthEvent | EndEvent
# to read a line of `--json` back: TypeAdapter(AnyEvent).validate_json(line)
AnyEvent = Annotated[Event, Field(discriminator="event")]
