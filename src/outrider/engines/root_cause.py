"""From an engine's log to the one cause: what a known line means, else the first exception that is not an echo of another."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from outrider.engines.engine import LogFailure

# (Worker pid=5843) ERROR 12-01 11:57:47 [multiproc_executor.py:953] ...
# [2026-12-01 02:07:29 TP0] ...
_PREFIX: Final = re.compile(
    r"^(?:\x1b\[[0-9;]*m)*(?:\([\w.-]+ pid=\d+\)\s?)?(?:\x1b\[[0-9;]*m)*(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d (?:\S+ )?\[[^\]]*\] ?)?"
    r"(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\] ?)?"
)
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")
_EXCEPTION: Final = re.compile(
    r"^(?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):)"  # of another process, within a traceback
    r"(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning)?(?::\s|$)"
)
_TRACEBACK: Final = "Traceback (most recent call last):"
_IGNORED: Final = "Exception ignored in"
_HANDLED: Final = "During handling of the above exception"
# exceptions that only say that another process or call failed
_ECHOES: Final = re.compile(
    r"Engine core initialization failed|EngineDeadError|EngineGenerateError|WorkerProc initialization failed|"
    r"See stack trace|^SystemExit|^KeyboardInterrupt|^asyncio\.(exceptions\.)?CancelledError|^RuntimeError: cancelled|"
    r"Worker failed with error|Executor failed"
)
_LONGEST = 400


@dataclass(frozen=True)
class LogCause:
    """Why an engine failed.

    Attributes:
        title: one sentence.
        evidence: the line of the log that shows it.
        fix: what to do; empty if unknown.
    """

    title: str
    evidence: str
    fix: str


def without_prefix(line: str) -> str:
    """A line of a log without process, level, time and place."""
    return _ANSI.sub("", line[_prefix_end(line) :])


def root_cause(log: str, failures: Sequence[LogFailure]) -> LogCause | None:
    """The cause that a log gives, None if it gives none.

    An exception comes first in the log where it was raised, and again in each process that waited for that one: so the
    first exception that is no echo is the root. What a known failure makes of it is said in its place.
    """
    lines = [without_prefix(line) for line in log.splitlines()]
    exception = next((line for line in _raised(lines) if not _ECHOES.search(line)), None)
    for failure in failures:
        for line in [exception] if exception else lines:
            if match := re.search(failure.pattern, line):
                return LogCause(failure.title.format(*match.groups()), _short(line), failure.fix)
    if exception:
        return LogCause(_short(exception), f"the first exception in the log: {_short(exception)}", "")
    return None


def _raised(lines: Sequence[str]) -> list[str]:
    """The exceptions, in order; of one that was raised while another was handled, that one only."""
    found: list[str] = []
    for line in _exceptions(lines):
        if line.startswith(_HANDLED):
            found = found[:-1]
        else:
            found.append(line)
    return found


def _exceptions(lines: Sequence[str]) -> Iterator[str]:
    """The last line of each traceback, in order, and what says that the one before was handled."""
    inside = False
    for number, line in enumerate(lines):
        if line.startswith(_HANDLED):
            yield line
        elif line.endswith(_TRACEBACK):  # "Scheduler hit an exception: " may stand before it
            inside = number == 0 or not lines[number - 1].startswith(_IGNORED)
        elif inside and line and not line.startswith(" ") and _EXCEPTION.match(line):
            inside = False
            yield _with_its_message(lines, number)


def _with_its_message(lines: Sequence[str], number: int) -> str:
    """pydantic says what is wrong on the line below, indented."""
    follows = lines[number + 1] if number + 1 < len(lines) else ""
    said_below = "validation error" in lines[number] and follows.startswith(" ")
    return f"{lines[number].strip()}: {follows.strip()}" if said_below else lines[number]


def _prefix_end(line: str) -> int:
    match = _PREFIX.match(line)
    return match.end() if match else 0


def _short(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"
