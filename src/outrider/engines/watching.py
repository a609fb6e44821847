"""Follows an engine's log, its processes and its answers at once, and says what happens, how it ends and why."""

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self

import psutil

from outrider.core.errors import EngineFailed, InputError
from outrider.core.shell import GuardedProcess
from outrider.engines.liveness import PATIENCE, Life, Patience, is_alive
from outrider.engines.log_events import EndEvent, Event, FailureEvent, HealthEvent, PhaseEvent
from outrider.engines.log_reader import LogReader
from outrider.engines.log_rules import LogRules, Phase
from outrider.engines.log_source import LocalLog, LogSource
from outrider.engines.probing import Probe
from outrider.engines.verdicts import SETTLE_S, Judge, Verdict

_POLL_S = 0.1
# after the verdict the log may still say why: until it is quiet, and not for ever
_QUIET_S, _QUIET_OF_THE_DEAD_S, _AT_MOST_S = 1.0, 0.3, 4.0
_LAST_LINES = 5
_DIGITS: Final = re.compile(rb"\d+")
_REMEMBERED = 8

Until = Literal["ready", "token", "end"]


@dataclass(frozen=True)
class Watched:
    """What is watched.

    Attributes:
        name: how to call it in errors; log: where its log is, for the reader of an error.
        pid: at the top of its processes on this machine; None if only the log is known, or they run elsewhere.
        how_ended: says how its process ended, e.g. "ended with exit code 1"; empty while it runs. Answers at once.
        stop: ends it once it has failed; None for one that is not ours.
        probe: asks it for tokens; None if it is not to be asked.
    """

    name: str
    log: str
    source: LogSource
    reader: LogReader
    pid: int | None = None
    how_ended: Callable[[], str] = lambda: ""
    stop: Callable[[], object] | None = None
    probe: Probe | None = None


def watched_of(
    process: GuardedProcess, rules: LogRules, usual_s: Mapping[Phase, float] | None = None, probe: Probe | None = None
) -> Watched:
    """An engine of ours, which is ended once it has failed; `usual_s` is how long each phase took before."""

    def how_ended() -> str:
        code = process.exit_code
        return "" if code is None else f"ended with exit code {code}"

    reader, source = LogReader(rules, usual_s), LocalLog(process.log_path)
    return Watched(process.name, str(process.log_path), source, reader, process.pid, how_ended, process.stop, probe)


def end_of(pid: int) -> Callable[[], str]:
    """`how_ended` of a process that is not ours, whose exit code only its parent learns.

    Raises:
        InputError: there is none of this number.
    """
    try:
        process = psutil.Process(pid)
    except (psutil.Error, ValueError, OverflowError):
        raise InputError(f"there is no process {pid}", fix="check --pid: the server's own number, on this machine") from None
    return lambda: "" if is_alive(process) else "ended"


class Watcher:
    """Watches one engine, step by step.

    Attributes:
        verdict: how it came out; None as long as nothing is wrong.
        is_over: whether nothing will follow.
        is_idle: whether the log had nothing new at the last step, so that the next one may wait.
        seconds: how long each phase has taken so far.
    """

    def __init__(self, watched: Watched, ready_timeout_s: float = float("inf"), patience: Mapping[Phase, Patience] = PATIENCE) -> None:
        self.verdict: Verdict | None = None
        self.is_over, self.is_idle = False, False
        self.seconds: dict[Phase, float] = {}
        self._watched, self._reader, self._source = watched, watched.reader, watched.source
        self._began_s = self._last_bytes_s = time.monotonic()
        self._life = Life(watched.pid, self._began_s)
        self._judge = Judge(self._life, watched.probe, ready_timeout_s, patience)
        self._told: set[Phase] = set()
        self._has_answered = False
        self._phase_began: tuple[Phase, float] = ("starting", 0.0)
        self._health = ("", "closed")
        self._seen_lines: deque[bytes] = deque(maxlen=_REMEMBERED)
        self._suspected_s: float | None = None
        self._judged_s: float | None = None
        self._is_stopped = False

    @property
    def is_ready(self) -> bool:
        """Whether it has given tokens; where it is not asked, whether its log says that it serves."""
        return self._has_answered if self._watched.probe else "ready" in self._told

    def events(self, until: Until = "end") -> Iterator[Event]:
        """What happens, as it happens; the last one is an `EndEvent`."""
        while not self.is_over:
            events = self.step()
            yield from events
            if not self.verdict and self._has_reached(until):
                yield from self.finish()
            elif self.is_idle:
                time.sleep(_POLL_S)

    def _has_reached(self, until: Until) -> bool:
        return (until == "ready" and self.is_ready) or (until == "token" and "token" in self._told)

    def step(self) -> list[Event]:
        """What has happened since the last step; takes at most about 0.3 s, but while it ends a failed engine.

        Raises:
            InputError: the log can never be read.
        """
        if self.is_over:
            return []
        how_ended = self._watched.how_ended()  # first: what it wrote before is then read
        now_s = time.monotonic()
        events = self._read(now_s)
        if self.verdict:
            return events + self._concluded(self.verdict, now_s)
        self._life.look(now_s)
        events += self._changes()
        self.verdict = self._judged(now_s, how_ended, events)
        if self.verdict:
            self._judged_s = now_s
            if self.verdict.state in ("failed", "hung") and not any(isinstance(event, FailureEvent) for event in events):
                events.append(self.verdict.event(self._reader.phase))
        return events

    def finish(self) -> list[Event]:
        """No more is watched: how it is by now."""
        self.is_over = True
        if self.verdict:
            return [self.verdict.end()]
        events = self._noted(self._reader.end(self._at_s(time.monotonic())))
        if self.is_ready and not self._reader.failure:
            return [*events, EndEvent(state="ready", cause=None)]
        return [*events, self._reader.verdict()]

    def failure(self) -> EngineFailed | None:
        """The verdict as an error; None without one."""
        return self.verdict.error(self._watched.name, self._watched.log) if self.verdict else None

    # --- what happens -------------------------------------------------------------------------------------------------

    def _at_s(self, now_s: float) -> float:
        return now_s - self._began_s

    def _read(self, now_s: float) -> list[Event]:
        data = self._source.read()
        self.is_idle = not data
        events = self._noted(self._reader.feed(data, self._at_s(time.monotonic())))
        if data:
            self._last_bytes_s = now_s
            if self._is_new(data) or events:
                self._life.note_log(now_s)
        return events

    def _is_new(self, data: bytes) -> bool:
        """Whether it ends with a line that is not one of the last over again, its numbers aside: those are no sign of progress."""
        stripped = data.rstrip(b"\r\n")
        last = _DIGITS.sub(b"", stripped[max(stripped.rfind(b"\n"), stripped.rfind(b"\r"), len(stripped) - 500) + 1 :])
        is_new = last not in self._seen_lines
        if is_new:
            self._seen_lines.append(last)
        return is_new

    def _noted(self, events: list[Event]) -> list[Event]:
        """The events, taken notice of."""
        for event in events:
            if isinstance(event, PhaseEvent):
                self._begin(event)
        return events

    def _begin(self, event: PhaseEvent) -> None:
        phase, began_s = self._phase_began
        if event.phase == "config" and "ready" in self._told:  # it starts once more
            self._told.clear()
            self.seconds = {}
        elif "ready" not in self._told:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + event.at_s - began_s
        self._told.add(event.phase)
        self._phase_began = (event.phase, event.at_s)

    def _changes(self) -> list[Event]:
        """What is new beyond the log."""
        seen = self._watched.probe.seen if self._watched.probe else None
        before, self._health = self._health, (self._source.waiting_for, seen.stage if seen else "closed")
        (waited_for, stage_before), (waiting_for, stage) = before, self._health
        events: list[Event] = []
        if waiting_for != waited_for:
            events.append(HealthEvent(what=waiting_for or "the log is read"))
        if seen and stage != stage_before:
            says = {
                "closed": "its port is closed" + (f" again: {seen.said}" if seen.said else ""),
                "silent": seen.said or "its port is open",
                "unwell": seen.said,
                "asked": "/health answers 200; a token is asked for",
                "answered": "tokens came",
                "refused": f"it failed on its first request: {seen.said}",
            }
            if not (self._has_answered and {stage, stage_before} == {"asked", "answered"}):  # asked again, and well
                events.append(HealthEvent(what=says[stage]))
            if stage == "answered":
                self._has_answered = True
                events += self._noted(self._reader.answered(self._at_s(seen.since_s)))
        return events

    # --- how it comes out ---------------------------------------------------------------------------------------------

    def _judged(self, now_s: float, how_ended: str, events: list[Event]) -> Verdict | None:
        if self._reader.failure:
            return Verdict.of_log(self._reader.failure)
        is_all_read = now_s - self._last_bytes_s > _QUIET_OF_THE_DEAD_S
        if how_ended:
            return self._of_end(how_ended, events) if is_all_read else None
        has_stopped = self._reader.stopped and now_s - self._last_bytes_s > _QUIET_S
        if self._watched.pid is None and (self._source.ended or has_stopped):
            return self._of_end("", events)
        is_phase_known = bool(self._told) or self._watched.stop is not None
        phase = self._reader.phase if is_phase_known else None
        suspicion = self._judge.suspicion(now_s, phase, self.is_ready, self._last_line())
        if suspicion is None or self._reader.stopped:
            self._suspected_s = None
            return None
        self._suspected_s = now_s if self._suspected_s is None else self._suspected_s
        return suspicion if now_s - self._suspected_s >= SETTLE_S else None

    def _of_end(self, how_ended: str, events: list[Event]) -> Verdict:
        """It has ended, or at least its log has, and that is read to its end."""
        events += self._noted(self._reader.end(self._at_s(time.monotonic())))
        if self._reader.failure:
            return Verdict.of_log(self._reader.failure)
        if self._reader.stopped and "ready" in self._told:
            return Verdict("ready", f"was stopped{how_ended and f': it {how_ended}'}", self._last_lines())
        if self._reader.stopped:
            return Verdict("failed", "was stopped before it was ready", self._last_lines(), "stopped")
        if not how_ended:
            return Verdict(self._reader.verdict().state, "has no more of a log", self._last_lines())
        cause = self._reader.cause()
        return Verdict.of_log(cause) if cause else Verdict("failed", how_ended, self._last_lines(), "ended")

    def _concluded(self, verdict: Verdict, now_s: float) -> list[Event]:
        """After the verdict: end what is ours, read what the log still says, and put a better cause in the place of the verdict's."""
        assert self._judged_s is not None
        is_to_be_stopped = self._watched.stop is not None and not self._is_stopped
        quiet_s = _QUIET_OF_THE_DEAD_S if self._is_stopped else _QUIET_S
        is_quiet = now_s - max(self._judged_s, self._last_bytes_s) > quiet_s or now_s - self._judged_s > _AT_MOST_S
        knows_all = verdict.state == "ready" or self._source.ended or (is_to_be_stopped and not verdict.is_provisional)
        if not (is_quiet or knows_all):
            return []
        if self._watched.stop and is_to_be_stopped:
            self._watched.stop()
            self._is_stopped, self._judged_s = True, time.monotonic()
            return []
        events = self._noted(self._reader.end(self._at_s(now_s)))
        cause = self._reader.cause()
        if cause and verdict.is_provisional and cause.title != verdict.title:
            self.verdict = Verdict.of_log(cause)
            events = [event for event in events if not isinstance(event, FailureEvent)] + [self.verdict.event(self._reader.phase)]
        return events + self.finish()

    def _last_lines(self) -> str:
        return "\n            ".join(self._reader.last_lines[-_LAST_LINES:])

    def _last_line(self) -> str:
        return (self._reader.last_lines or ["it is empty"])[-1]


class Watch:
    """Watches in a thread, beside whoever uses the engine; ends the engine as soon as it has failed.

    Args:
        ready_timeout_s: how long its start may take.
        tell: is given each event, in that thread.
    """

    def __init__(self, watched: Watched, ready_timeout_s: float = float("inf"), tell: Callable[[Event], object] = lambda _: None) -> None:
        self._watched, self._tell = watched, tell
        self._watcher = Watcher(watched, ready_timeout_s)
        self._stepped, self._left = threading.Condition(), threading.Event()
        self._blind: EngineFailed | None = None
        self._thread = threading.Thread(target=self._follow, name=f"watch {watched.name}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if self._watched.probe:
            self._watched.probe.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._left.set()
        self._thread.join()
        self._watched.source.close()
        if self._watched.probe:
            self._watched.probe.__exit__(kind, error, trace)

    @property
    def seconds(self) -> Mapping[Phase, float]:
        """How long each phase of its start has taken."""
        return self._watcher.seconds

    def failure(self, timeout_s: float) -> EngineFailed | None:
        """Why the engine has failed, None if it has not within `timeout_s`."""
        self._wait_for(lambda: self._found is not None, timeout_s)
        return self._found

    def conclusion(self, timeout_s: float) -> EngineFailed | None:
        """The same, once the engine has been ended and its log has said all that it had to say."""
        if self.failure(timeout_s):
            self._wait_for(lambda: self._watcher.is_over or self._blind is not None, None)
        return self._found

    def wait_until_ready(self) -> None:
        """Returns once it has given tokens.

        Raises:
            EngineFailed: it has ended, failed, hangs, or is not ready in time.
        """
        self._wait_for(lambda: self._watcher.is_ready or self._found is not None, None)
        if failure := self._found:
            raise failure

    @property
    def _found(self) -> EngineFailed | None:
        return self._blind or self._watcher.failure()

    def _wait_for(self, is_so: Callable[[], bool], timeout_s: float | None) -> None:
        with self._stepped:
            self._stepped.wait_for(is_so, timeout_s)

    def _follow(self) -> None:
        while not self._left.wait(_POLL_S if self._watcher.is_idle else 0):
            try:
                for event in self._watcher.step():
                    self._tell(event)
            except InputError as error:
                what = f"the log of {self._watched.name} cannot be read: {error.what}"
                self._blind = EngineFailed(what, evidence=error.evidence, fix=error.fix)
            with self._stepped:
                self._stepped.notify_all()
            if self._watcher.is_over or self._blind:
                return
