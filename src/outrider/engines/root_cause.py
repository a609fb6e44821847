"""From an engine's log to the one cause: what a known line means, else the first exception that is not an echo of another."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from outrider.engines.log_rules import LogFailure, Phase

_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# (Worker pid=5843) ERROR 12-01 11:57:47 [multiproc_executor.py:953] ...      (VllmWorker rank=1 pid=7) INFO ...
# [2026-12-01 02:07:29 TP0] ...
# before it 2026-12-01T02:07:29.123Z by kubectl, "vllm-1  | " by docker compose, "0: " by srun
_PREFIX: Final = re.compile(
    r"(?:[\w.-]+ +\| |\d+: )?(?:\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) )?"
    r"(?:(?P<process>\([\w.-]+ (?:rank=\d+ )?pid=\d+(?:, ip=[\w.:]+)?\))\s?)?"
    r"(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d (?:[^\s\[]\S* )?\[[^\]]*\] ?)?"
    r"(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d+)? ?(?P<rank>[^\]]*)\] ?)?"
    r"(?P<torch>\[rank\d+\]: ?)?"  # in each line of a traceback that ends a process of torch's
)
_EXCEPTION: Final = re.compile(
    r"^(?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):)"  # of another process, within a traceback
    r"(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning)?(?::\s|$)"
)
TRACEBACK: Final = "Traceback (most recent call last):"
_IGNORED: Final = "Exception ignored in"
_HANDLED: Final = "During handling of the above exception"
_CAUSED: Final = "The above exception was the direct cause"
# lines with one of these change what is thought of the exceptions
TELLING: Final = (TRACEBACK, _IGNORED, _HANDLED, _CAUSED)
# what is wrong is said on the line below, indented, by pydantic and by torch's load_state_dict
_GOES_ON: Final = re.compile(r"validation errors? for|:$")
_FIELD: Final = re.compile(r"^[\w.\-\[\]]+\s*$")
# what pydantic says of itself
_TECHNICAL: Final = re.compile(r"^pydantic_core\._pydantic_core\.|\s*\[type=\w+, input_value=.*$")
_GROUP: Final = re.compile(r"^\s*[|+] ?")
_FRAME: Final = re.compile(r'^\s*File "(.+?)", line (\d+), in (.+)$')
_BELONGING: Final = re.compile(r"(?:site|dist)-packages/(.+)$")
# frames in which nothing is decided: how Python and the libraries around a model call each other
_PLUMBING: Final = re.compile(
    r"^<|/(?:asyncio|multiprocessing|concurrent|importlib|contextlib\.py|threading\.py|runpy\.py|tracing)\b|"
    r"(?:^|/)(?:uvloop|torch|transformers|huggingface_hub|pydantic|pydantic_core|safetensors|uvicorn|starlette|fastapi|ray)/|"
    r"tracing/otel\.py$"
)
# the frame above all others: what is raised through it ends the process
_OUTERMOST: Final = re.compile(r'^\s*File "(?:<frozen runpy>", line \d+, in _run_module|[^"]*/bin/[^"]+", line \d+, in <module>)')
# exceptions that only say that another process or call failed
_ECHOES: Final = re.compile(
    r"Engine core initialization failed|EngineDeadError|EngineGenerateError|WorkerProc initialization failed|"
    r"See stack trace|^SystemExit|^KeyboardInterrupt|^asyncio\.(exceptions\.)?CancelledError|^RuntimeError: cancelled|"
    r"Worker failed with error|Executor failed|Initialization failed\. Please see|died unexpectedly|scheduler died during initialization"
)
_LONGEST = 400
_KEPT = 50
_PROCESSES = 256
# a traceback is given up that does not end
_LINES = 3000


@dataclass(frozen=True)
class LogCause:
    """Why an engine failed.

    Attributes:
        title: one sentence.
        evidence: the line of the log that shows it.
        fix: what to do; empty if unknown.
        id: of the known failure; empty if it is none.
        frame: file, line and function of the last frame that is no plumbing; empty if there is none.
    """

    title: str
    evidence: str
    fix: str
    id: str = ""
    frame: str = ""


@dataclass(frozen=True)
class LogLine:
    """A line of a log without its prefix.

    Attributes:
        process: the prefix that each line of the process has; empty if it has none.
        speaker: process and rank, which not each line of a rank has.
    """

    process: str
    speaker: str
    text: str


@dataclass(frozen=True)
class Raised:
    """The end of a traceback.

    Attributes:
        text: the exception with its message.
        frame: as in `LogCause`.
        uncaught: whether it ended its process.
    """

    process: str
    speaker: str
    text: str
    frame: str
    uncaught: bool

    @property
    def is_echo(self) -> bool:
        """Whether it only says that another process or call failed."""
        return _ECHOES.search(self.text) is not None


@dataclass
class _Open:
    """A traceback that has not ended."""

    speaker: str
    num_lines: int = 0
    frame: str = ""
    uncaught: bool = False
    code: str = ""  # of the last frame, for an assertion that says nothing
    text: str = ""  # the exception, whose message goes on in the next line
    names_field: bool = False  # as pydantic does between the two


def log_line(line: str) -> LogLine:
    """A line of a log, taken apart."""
    plain = _ANSI.sub("", line) if "\x1b" in line else line
    match = _PREFIX.match(plain)
    assert match  # each part may be missing
    process = (match["process"] or "") + (match["torch"] or "").strip(" :")
    return LogLine(process, f"{process}{match['rank'] or ''}", plain[match.end() :])


def without_prefix(line: str) -> str:
    """A line of a log without process, level, time and place."""
    return log_line(line).text


class Exceptions:
    """The exceptions that a log tells of, in order, each traceback folded to its end; those that were survived are put aside."""

    def __init__(self) -> None:
        self.fresh: list[Raised] = []
        self._survived: Raised | None = None
        self._open: dict[str, _Open] = {}
        self._ignoring: set[str] = set()  # processes whose next traceback Python itself took no notice of
        self._explaining: set[str] = set()  # processes whose next exception was raised because of the one before

    @property
    def is_open(self) -> bool:
        """Whether a traceback has begun and not ended: each line may belong to it."""
        return bool(self._open)

    def is_open_of(self, process: str) -> bool:
        """Whether this process is within a traceback."""
        return process in self._open

    def read(self, line: LogLine) -> Raised | None:
        """Take notice of a line; an exception if the line ends its traceback."""
        text = _GROUP.sub("", line.text) if line.text.lstrip(" ").startswith(("|", "+")) else line.text
        open_ = self._open.get(line.process)
        if open_ and open_.text:
            return self._message(line, open_, text)
        if text.startswith(_IGNORED):
            self._ignoring.add(line.process)
        elif text.startswith(_HANDLED):
            self._drop_last_of(line.process)
        elif text.startswith(_CAUSED):
            self._explaining.add(line.process)
        elif text.rstrip().endswith(TRACEBACK):  # "Scheduler hit an exception: " may stand before it
            self._begin(line)
        elif open_ and text:
            return self._inside(line.process, open_, text)
        return None

    def end(self) -> None:
        """The log has ended; an exception whose message was to go on does not go on."""
        for process, open_ in list(self._open.items()):
            if open_.text:
                self._end(process, open_)

    def survived_by(self, speaker: str) -> None:
        """This process or rank went on: what it raised was handled."""
        self._put_aside([raised for raised in self.fresh if raised.speaker == speaker])

    def survived_all(self) -> None:
        """The engine answers: what was raised was handled."""
        self._put_aside(self.fresh)

    def forget(self) -> None:
        """What was raised by now has nothing to do with what comes."""
        self.fresh, self._survived = [], None

    def root(self) -> Raised | None:
        """The first exception that is no echo of another; of those that were survived the last, if there is no other."""
        return next((raised for raised in self.fresh if not raised.is_echo), self._survived)

    def _begin(self, line: LogLine) -> None:
        if line.process in self._ignoring:
            self._ignoring.discard(line.process)
            return
        if len(self._open) >= _PROCESSES:
            self._open.pop(next(iter(self._open)))
        self._open[line.process] = _Open(line.speaker)

    def _inside(self, process: str, open_: _Open, text: str) -> Raised | None:
        open_.num_lines += 1
        if frame := _FRAME.match(text):
            open_.uncaught = open_.uncaught or (open_.num_lines == 1 and _OUTERMOST.match(text) is not None)
            open_.frame, open_.code = _shown(frame) or open_.frame, ""
        elif text.startswith(" "):
            open_.code = open_.code or text.strip()
        elif _EXCEPTION.match(text):
            open_.text = f"{text.strip()}: {open_.code}" if text.strip() == "AssertionError" and open_.code else text
            if not _GOES_ON.search(text):
                return self._end(process, open_)
        elif open_.num_lines > _LINES:
            del self._open[process]
        return None

    def _message(self, line: LogLine, open_: _Open, text: str) -> Raised | None:
        """The line below an exception that says itself not what is wrong."""
        if text.startswith((" ", "\t")):
            return self._end(line.process, replace(open_, text=f"{open_.text.removesuffix(':')}: {text.strip()}"))
        if _FIELD.match(text) and not open_.names_field:
            open_.text, open_.names_field = f"{open_.text}: {text.strip()}", True
            return None
        raised = self._end(line.process, open_)
        return self.read(line) or raised

    def _end(self, process: str, open_: _Open) -> Raised:
        del self._open[process]
        raised = Raised(process, open_.speaker, _short(_TECHNICAL.sub("", open_.text)), open_.frame, open_.uncaught)
        if process in self._explaining:
            self._explaining.discard(process)
            self.fresh = [replace(r, frame=r.frame or raised.frame) if r.process == process else r for r in self.fresh]
        if len(self.fresh) < _KEPT:
            self.fresh.append(raised)
        return raised

    def _drop_last_of(self, process: str) -> None:
        last = next((raised for raised in reversed(self.fresh) if raised.process == process), None)
        if last:
            self.fresh.remove(last)

    def _put_aside(self, survived: Sequence[Raised]) -> None:
        for raised in survived:
            self._survived = self._survived if raised.is_echo else raised
        self.fresh = [raised for raised in self.fresh if raised not in survived]


def cause_of(text: str, failures: Sequence[LogFailure], phase: Phase | None = None) -> LogCause | None:
    """What a known failure makes of an exception or of a line without its prefix; None if none knows it."""
    for failure in failures:
        if failure.phases and phase not in failure.phases:
            continue
        if match := re.search(failure.pattern, text):
            said = [_short(group) for group in match.groups() if group is not None]  # by one of several wordings
            return LogCause(failure.title.format(*said), _short(text), failure.fix, failure.id)
    return None


def cause_of_raised(raised: Raised, failures: Sequence[LogFailure], phase: Phase | None = None) -> LogCause:
    """What a known failure makes of an exception, else the exception itself."""
    unknown = LogCause(raised.text, f"the first exception in the log: {raised.text}", "")
    return replace(cause_of(raised.text, failures, phase) or unknown, frame=raised.frame)


def root_cause(log: str, failures: Sequence[LogFailure]) -> LogCause | None:
    """The cause that a whole log gives, None if it gives none.

    An exception comes first in the log where it was raised, and again in each process that waited for that one: so the
    first exception that is no echo is the root. What a known failure makes of it is said in its place.
    """
    lines = [log_line(line) for line in log.splitlines()]
    exceptions = Exceptions()
    for line in lines:
        exceptions.read(line)
    exceptions.end()
    if raised := exceptions.root():
        return cause_of_raised(raised, failures)
    return next((cause for f in failures for line in lines if (cause := cause_of(line.text, [f]))), None)


def _shown(frame: re.Match[str]) -> str:
    """file:line and function, its path from the package on; empty for plumbing."""
    path, number, function = frame.groups()
    belonging = _BELONGING.search(path)
    path = belonging[1] if belonging else path
    return "" if _PLUMBING.search(path) else f"{path}:{number} in {function}"


def _short(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"
