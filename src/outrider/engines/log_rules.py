"""What an engine's log says, as data: phases of a start, progress within them, notes that matter, failures, a stop."""

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
class PhaseRule:
    """A line that shows the phase.

    Attributes:
        literal: text that every such line contains; what is cheap to look for decides which lines are looked at.
        pattern: regular expression that the line, without its prefix, must match too; empty for none.
        after: only after this phase has begun, e.g. the second "Loading weights" line; empty for always.
    """

    phase: Phase
    literal: str
    pattern: str = ""
    after: Phase | Literal[""] = ""


@dataclass(frozen=True)
class ProgressRule:
    """A line that tells how far a phase is; `pattern` has the groups `done` and `total`."""

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
    """A failure that a line of the log tells.

    Attributes:
        pattern: regular expression, searched in a line without its prefix.
        title: what it means; `{0}` is the pattern's first group.
        fix: what to do.
        id: stable, for programs.
    """

    pattern: str
    title: str
    fix: str
    id: str = ""


@dataclass(frozen=True)
class LogRules:
    """Everything that is known of an engine's log.

    Attributes:
        fatal: literals of lines after which it serves no more, whatever its process does.
        stopped: literals of lines that tell of a stop that was asked for.
        failures: what the root exception, or a line, means; the most telling first.
    """

    phases: tuple[PhaseRule, ...]
    progress: tuple[ProgressRule, ...]
    notes: tuple[NoteRule, ...]
    failures: tuple[LogFailure, ...]
    fatal: tuple[str, ...]
    stopped: tuple[str, ...]
