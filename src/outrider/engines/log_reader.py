"""Reads an engine's log as it is written: bytes and the time in, events out. Knows no engine and touches no file."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from outrider.engines.log_events import EndEvent, Event, FailureEvent, NoteEvent, PhaseEvent, ProgressEvent
from outrider.engines.log_lines import telling_lines
from outrider.engines.log_rules import LineRule, LogRules, Phase, PhaseRule
from outrider.engines.root_cause import TELLING, Exceptions, LogCause, LogLine, Raised, cause_of, cause_of_raised, log_line

# of one line; what is behind is dropped
_LONGEST = 1 << 16
# read at once; changes of what is looked for begin a new search, so not more than a search should cost
_BLOCK = 1 << 18
_LAST = 8192
_LAST_LINES = 20
# how long a fatal line waits for the traceback that says why
_PATIENCE_S = 0.4
_NOTES_OF_ONE_KIND = 3
# processes and ranks whose lines are counted
_SPEAKERS = 10_000
# an engine that loads its drafter after it has made its target ready goes through these again
_AGAIN: Final[tuple[Phase, ...]] = ("kv_cache", "compile", "graphs")
# what a token shows, wherever it was seen
_BEGINS: Final[tuple[Phase, ...]] = ("ready", "token")


@dataclass(frozen=True)
class _Fatal:
    """A line after which the engine serves no more, and when it was given."""

    line: LogLine
    at_s: float
    own: Raised | None = None  # what the traceback that follows the line says


@dataclass(frozen=True)
class _Bar:
    """The last line of progress, and when the first of its kind was read."""

    done: int
    total: int
    at_s: float
    elapsed_s: float


class LogReader:
    """Reads one engine's log from its beginning.

    The events do not depend on how the bytes are cut into pieces, only on them and on the times given with them.

    Attributes:
        phase: the last that has begun.
        phase_began_s: when, on the clock of `at_s`.
        failure: why it has failed; None if it has not, as far as the log tells.
        stopped: whether it was asked to stop.

    Args:
        rules: what is known of the engine's log.
        usual_s: how long each phase took before, for the time that is left; empty if unknown.
        time_of: the time that text of the log carries itself, e.g. `LineTimes()`, for a log that is read when all is over.
    """

    def __init__(
        self, rules: LogRules, usual_s: Mapping[Phase, float] | None = None, time_of: Callable[[bytes], float | None] | None = None
    ) -> None:
        self._rules, self._usual_s, self._time_of = rules, dict(usual_s or {}), time_of
        self.phase: Phase = "starting"
        self.phase_began_s = 0.0
        self.failure: LogCause | None = None
        self.stopped = False
        self._exceptions = Exceptions()
        self._fatal: _Fatal | None = None
        self._seen: set[Phase] = {"starting"}
        self._counts: dict[tuple[PhaseRule, str], int] = {}
        self._noted: dict[str, set[str]] = {}
        self._bar: _Bar | None = None
        self._events: list[Event] = []
        self._begun, self._last, self._before = b"", b"", b""
        self._now_s: float | None = None  # as given, also where the lines carry times of their own
        self._patterns = _compiled(rules)
        self._literals = self._wanted()

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether it has come to serve since it last began to start."""
        return "ready" in self._seen

    @property
    def last_lines(self) -> list[str]:
        """The end of the log."""
        lines = (self._last + self._begun[:_LONGEST]).replace(b"\r", b"\n").decode(errors="replace").split("\n")
        return [line for line in lines if line.strip()][-_LAST_LINES:]

    def left_s(self, at_s: float) -> float | None:
        """Seconds until it is ready, as far as they are known: of what is counted in this phase, or else of what it usually
        takes, and of the phases to come that took time before. None if nothing is known of this phase; 0 once it is ready.
        """
        if self.is_ready:
            return 0.0
        here = self._left_here_s(at_s)
        if here is None:
            return None
        return here + sum(s for phase, s in self._usual_s.items() if phase not in self._seen and phase != "token")

    def cause(self) -> LogCause | None:
        """Why it has failed if it has: also where only its end shows that what it raised last was not survived.

        An exception that was read after the failure was told takes the place of one of which only a line is known.
        """
        if self.failure and (self.failure.id or self.failure.frame):
            return self.failure
        raised = self._exceptions.root()
        is_fresh = raised in self._exceptions.fresh or not self.is_ready
        return cause_of_raised(raised, self._rules.failures, self.phase) if raised and is_fresh else self.failure

    def verdict(self) -> EndEvent:
        """How it is, as far as the log tells: the last event."""
        if self.failure:
            return EndEvent(state="failed", cause=self.failure.title)
        if self.is_ready:
            return EndEvent(state="ready", cause=None)
        if self.stopped:
            return EndEvent(state="failed", cause="it was stopped before it was ready")
        return EndEvent(state="running", cause=None)

    # --- reading ----------------------------------------------------------------------------------------------------

    def feed(self, data: bytes, at_s: float) -> list[Event]:
        """What these bytes of the log tell, read at `at_s`; empty bytes let time pass."""
        if self._now_s is None:
            self.phase_began_s = at_s
        self._now_s = at_s
        for start in range(0, len(data), _BLOCK):
            self._feed_block(data[start : start + _BLOCK], at_s)
        if self._fatal and at_s - self._fatal.at_s > _PATIENCE_S:
            self._fail(self._fatal)
        return self._taken()

    def end(self, at_s: float) -> list[Event]:
        """What is to be told now that nothing will follow; without the event `end`, see `verdict`."""
        if self._begun:
            self._read(self._begun + b"\n", at_s)
            self._begun = b""
        self._exceptions.end()
        if self._fatal:
            self._fail(self._fatal)
        raised = self._exceptions.root()
        if raised and not (self.failure or self.stopped or self.is_ready):
            self._tell_failure(cause_of_raised(raised, self._rules.failures, self.phase))
        return self._taken()

    def answered(self, at_s: float) -> list[Event]:
        """What follows from tokens that came at `at_s`, as was seen beyond the log: it is ready, and what it raised was survived."""
        self._exceptions.survived_all()
        for phase in _BEGINS:
            if phase not in self._seen:
                self._begin(phase, LogLine("", "", ""), at_s)
        return self._taken()

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _feed_block(self, data: bytes, at_s: float) -> None:
        data = data.replace(b"\r", b"\n")
        end = data.rfind(b"\n") + 1
        if not end:
            self._begun += data[: max(0, _LONGEST - len(self._begun))]
            return
        first = data.find(b"\n")
        begun = self._begun + data[: max(0, _LONGEST - len(self._begun))][:first]
        self._begun = data[end : end + _LONGEST]
        self._read(begun + data[first:end], at_s)

    def _read(self, block: bytes, at_s: float) -> None:
        """Read whole lines."""
        start = 0
        while start < len(block):
            start = self._read_until_change(block, start, at_s)
        if self._time_of:
            self._before = (self._before + block)[-_LAST:]
        self._last = (self._last + block)[-_LAST:]

    def _read_until_change(self, block: bytes, start: int, at_s: float) -> int:
        """Look at the lines that tell something, until what is looked for has changed; where to go on from."""
        literals = self._literals
        noticed = start
        for position, is_telling in telling_lines(block, start, literals, lambda: self._is_waiting):
            end = block.find(b"\n", position)
            raw = block[position : min(end, position + _LONGEST)]
            if not raw.strip():
                continue
            self._notice_answers(block, noticed, end)
            noticed = end
            line = log_line(raw.decode(errors="replace"))
            self._follow(line)
            if is_telling:
                self._look(line, self._time_at(block, position, end, at_s))
            if self._literals is not literals:
                return end + 1
        self._notice_answers(block, noticed, len(block))
        return len(block)

    @property
    def _is_waiting(self) -> bool:
        """Whether each line is looked at: it may belong to a traceback, or say why a line was fatal."""
        return self._fatal is not None or self._exceptions.is_open

    def _time_at(self, block: bytes, position: int, end: int, at_s: float) -> float:
        if not self._time_of:
            return at_s
        before = block[max(0, position - _LAST) : end]
        missing = _LAST - position
        time_s = self._time_of((self._before[-missing:] if missing > 0 else b"") + before)
        return at_s if time_s is None else time_s

    # --- one line ---------------------------------------------------------------------------------------------------

    def _look(self, line: LogLine, at_s: float) -> None:
        if not self._is_lost:
            self._look_for_fatal(line)
        self._look_for_phase(line, at_s)
        if not self.is_ready:
            self._look_for_progress(line.text, at_s)
        self._look_for_notes(line.text)
        if not self._is_lost and any(self._says(rule, line.text) for rule in self._rules.stopped):
            self.stopped = True

    @property
    def _is_lost(self) -> bool:
        """Whether it serves no more: what its processes say on their way out does not matter."""
        return self._fatal is not None or self.failure is not None or self.stopped

    def _look_for_fatal(self, line: LogLine) -> None:
        if not any(self._says(rule, line.text) for rule in self._rules.fatal):
            return
        self._fatal = _Fatal(line, self._now_s or 0.0)
        if cause_of(line.text, self._rules.failures, self.phase):  # it says itself why
            self._fail(self._fatal)

    def _follow(self, line: LogLine) -> None:
        """Go on with a traceback, and with a fatal line that waits for what its process says next."""
        raised = self._exceptions.read(line)
        if self.failure or self.stopped:
            return
        if self._fatal:
            if raised and raised.process == self._fatal.line.process:
                self._fail(replace(self._fatal, own=raised))
            elif line.process == self._fatal.line.process and not self._exceptions.is_open_of(line.process):
                self._fail(self._fatal)
        elif raised and raised.uncaught:
            self._fail(_Fatal(line, self._now_s or 0.0))

    def _fail(self, fatal: _Fatal) -> None:
        """Tell why: what the fatal line's own traceback says; what was raised before; what the line itself says."""
        self._fatal = None
        root = fatal.own if fatal.own and not fatal.own.is_echo else self._exceptions.root()
        of_line = cause_of(fatal.line.text, self._rules.failures, self.phase)
        if root and (root in self._exceptions.fresh or not of_line):
            cause = cause_of_raised(root, self._rules.failures, self.phase)
        else:
            said = fatal.own.text if fatal.own else fatal.line.text.strip()[:400]
            cause = of_line or LogCause(said, said, "")
        self._tell_failure(cause)

    def _tell_failure(self, cause: LogCause) -> None:
        self.failure = cause
        self._events.append(
            FailureEvent(id=cause.id, phase=self.phase, title=cause.title, evidence=cause.evidence, frame=cause.frame, fix=cause.fix)
        )

    def _look_for_phase(self, line: LogLine, at_s: float) -> None:
        said = [rule for rule in self._rules.phases if rule.literal in line.text and self._matches(rule.pattern, line.text)]
        begun = next((rule for rule in said if self._is_nth(rule, line) and self._may_begin(rule)), None)
        for rule in said:
            self._count(rule, line)
        if begun:
            self._begin(begun.phase, line, at_s)

    def _is_nth(self, rule: PhaseRule, line: LogLine) -> bool:
        return rule.nth == 1 or self._counts.get((rule, line.speaker), 0) == rule.nth - 1

    def _count(self, rule: PhaseRule, line: LogLine) -> None:
        if rule.nth > 1 and len(self._counts) < _SPEAKERS:
            self._counts[rule, line.speaker] = self._counts.get((rule, line.speaker), 0) + 1

    def _may_begin(self, rule: PhaseRule) -> bool:
        if rule.after and rule.after not in self._seen:
            return False
        if rule.phase == "config" and (self._is_lost or self.is_ready):
            return True  # it starts once more
        if self._is_lost:  # other processes go on for a while
            return rule.phase == "ready" and not (self.stopped or self.is_ready)
        return rule.phase not in self._seen and (rule.phase == "token" or not self.is_ready)

    def _begin(self, phase: Phase, line: LogLine, at_s: float) -> None:
        if self._fatal:
            self._fail(self._fatal)
        if phase in ("config", "ready"):
            self._begin_anew(phase)
        if phase == "drafter_weights":
            self._seen -= set(_AGAIN)
        self._seen.add(phase)
        self.phase, self.phase_began_s, self._bar = phase, at_s, None
        if phase == "ready":
            self._exceptions.forget()
        else:
            self._exceptions.survived_by(line.speaker)
        self._literals = self._wanted()
        self._events.append(PhaseEvent(phase=phase, at_s=at_s))

    def _begin_anew(self, phase: Phase) -> None:
        """It may start once more in the same log, or go on although it seemed to be lost."""
        self.failure, self.stopped = None, False
        self._exceptions.forget()
        if phase == "config":
            self._seen, self._counts, self._noted = {"starting"}, {}, {}

    def _look_for_progress(self, text: str, at_s: float) -> None:
        for rule in self._rules.progress:
            match = self._patterns[rule.pattern].search(text) if rule.literal in text else None
            if not match:
                continue
            done, total = int(match["done"]), int(match["total"])
            if total <= 0 or done > total or (self._bar and (done, total) == (self._bar.done, self._bar.total)):
                return
            continues = self._bar is not None and total == self._bar.total and done > self._bar.done
            began_s = self._bar.at_s - self._bar.elapsed_s if self._bar and continues else at_s
            elapsed_s = _seconds(match.groupdict().get("elapsed")) or at_s - began_s
            self._bar = _Bar(done, total, at_s, elapsed_s)
            self._events.append(ProgressEvent(phase=self.phase, done=done, total=total, left_s=self.left_s(at_s)))
            return

    def _look_for_notes(self, text: str) -> None:
        for rule in self._rules.notes:
            match = self._patterns[rule.pattern].search(text) if rule.literal in text else None
            if not match:
                continue
            title = rule.title.format(*match.groups())
            told = self._noted.setdefault(rule.id, set())
            if title not in told and len(told) < _NOTES_OF_ONE_KIND:  # each worker says it
                told.add(title)
                self._events.append(NoteEvent(id=rule.id, title=title, effect=rule.effect, fix=rule.fix, line=text.strip()[:1000]))

    # --- what is looked for -----------------------------------------------------------------------------------------

    def _wanted(self) -> tuple[bytes, ...]:
        """The literals of the rules that may still hold; start-up's are not looked for while it serves."""
        rules = self._rules
        phases = [r.literal for r in rules.phases if r.phase == "config" or r.nth > 1 or r.phase not in self._seen]
        if self.is_ready:
            phases = [r.literal for r in rules.phases if r.phase == "config" or (r.phase == "token" and "token" not in self._seen)]
        progress = [] if self.is_ready else [r.literal for r in rules.progress]
        lines = [r.literal for r in (*rules.fatal, *rules.stopped)] + [r.literal for r in rules.notes]
        return tuple(dict.fromkeys(literal.encode() for literal in (*TELLING, *lines, *phases, *progress)))

    def _notice_answers(self, block: bytes, start: int, end: int) -> None:
        """If it answered in this part of the log, what it raised before was survived."""
        if not self._exceptions.fresh or not self.is_ready or self._fatal:
            return
        for rule in self._rules.answering:
            literal = rule.literal.encode()
            at = block.find(literal, start, end)
            while at >= 0:
                line_end = block.find(b"\n", at)
                line = block[block.rfind(b"\n", 0, at) + 1 : line_end][:_LONGEST]
                if self._says(rule, log_line(line.decode(errors="replace")).text):
                    self._exceptions.survived_all()
                    return
                at = block.find(literal, line_end, end)

    def _left_here_s(self, at_s: float) -> float | None:
        since_s = at_s - self.phase_began_s
        if self._bar and self._bar.done:
            rate = self._bar.elapsed_s / self._bar.done
            return max(0.0, rate * (self._bar.total - self._bar.done) - (at_s - self._bar.at_s))
        usual_s = self._usual_s.get(self.phase)
        return None if usual_s is None else max(0.0, usual_s - since_s)

    def _says(self, rule: LineRule, text: str) -> bool:
        return rule.literal in text and self._matches(rule.pattern, text)

    def _matches(self, pattern: str, text: str) -> bool:
        return not pattern or self._patterns[pattern].search(text) is not None


def _compiled(rules: LogRules) -> dict[str, re.Pattern[str]]:
    lines = [r.pattern for r in (*rules.fatal, *rules.stopped, *rules.answering)]
    others = [r.pattern for r in rules.phases] + [r.pattern for r in rules.progress] + [r.pattern for r in rules.notes]
    return {pattern: re.compile(pattern) for pattern in (*lines, *others)}


def _seconds(clock: str | None) -> float:
    """Of mm:ss or h:mm:ss; 0 for none."""
    total = 0
    for part in (clock or "0").split(":"):
        total = total * 60 + int(part)
    return float(total)
