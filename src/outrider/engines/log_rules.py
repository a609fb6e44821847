"""What an engine's log says, as data: phases of a start, progress within them, notes that matter, failures, a stop.

Every rule has a `literal`: text that is cheap to look for, and decides which lines are looked at. A `pattern` is a regular
expression that is searched in such a line without its prefix (process, level, time, place).
"""

from dataclasses import dataclass
from typing import Final, Literal

Phase = Literal[
    "starting", "config", "workers", "target_weights", "drafter_weights", "kv_cache", "compile", "graphs", "serving", "ready", "token"
]
# in the order of a start; an engine may leave some out, and come back to one
PHASES: Final[tuple[Phase, ...]] = (
    "starting",
    "config",
    "workers",
    "target_weights",
    "drafter_weights",
    "kv_cache",
    "compile",
    "graphs",
    "serving",
    "ready",
    "token",
)


@dataclass(frozen=True)
class LineRule:
    """A line that means one thing, e.g. that the engine serves no more; an empty pattern matches every line with the literal."""

    literal: str
    pattern: str = ""


@dataclass(frozen=True)
class PhaseRule:
    """A line that shows the phase.

    Attributes:
        phase: what the line shows to have begun.
        after: only after this phase has begun; empty for always.
        nth: only the how-manieth such line of one process since the start, e.g. 2 for the drafter's "Loading weights took".
    """

    phase: Phase
    literal: str
    pattern: str = ""
    after: Phase | Literal[""] = ""
    nth: int = 1


@dataclass(frozen=True)
class ProgressRule:
    """A line that tells how far a phase is; `pattern` has the groups `done` and `total`, and may have `elapsed` (mm:ss)."""

    literal: str
    pattern: str


@dataclass(frozen=True)
class NoteRule:
    """A line that is no failure and yet matters.

    Attributes:
        id: stable, for programs.
        pattern: may have groups, which `title` shows as `{0}`.
        effect: what it leads to; fix: what to do; both may be empty.
    """

    id: str
    literal: str
    pattern: str
    title: str
    effect: str = ""
    fix: str = ""


@dataclass(frozen=True)
class LogFailure:
    """What an exception, or a line after which the engine serves no more, means.

    Attributes:
        pattern: regular expression, searched in the exception or in a line without its prefix.
        title: what it means; `{0}` is the pattern's first group.
        fix: what to do.
        id: stable, for programs.
        phases: only if it happened in one of these; empty for any.
    """

    pattern: str
    title: str
    fix: str
    id: str = ""
    phases: tuple[Phase, ...] = ()


@dataclass(frozen=True)
class LogRules:
    """Everything that is known of an engine's log.

    Attributes:
        fatal: lines after which it serves no more, whatever its process does.
        stopped: lines that tell of a stop that was asked for.
        answering: lines that show that it answers; what was raised before them was survived.
        failures: what the root exception, or a fatal line, means; the most telling first.
    """

    phases: tuple[PhaseRule, ...] = ()
    progress: tuple[ProgressRule, ...] = ()
    notes: tuple[NoteRule, ...] = ()
    failures: tuple[LogFailure, ...] = ()
    fatal: tuple[LineRule, ...] = ()
    stopped: tuple[LineRule, ...] = ()
    answering: tuple[LineRule, ...] = ()
