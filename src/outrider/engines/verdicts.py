"""What becomes of an engine whose log does not tell: it has ended, lost a worker, hangs, or refuses its first request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from outrider.core.errors import EngineFailed
from outrider.engines.liveness import PATIENCE, Life, Patience
from outrider.engines.log_events import EndEvent, EndState, FailureEvent
from outrider.engines.log_rules import Phase
from outrider.engines.probing import Probe, Seen
from outrider.engines.root_cause import LogCause

# a sign from beyond the log waits so long for the log's own words; with reading them the verdict is there within a second
SETTLE_S: Final = 0.6
_BUSY_CHECK_S = 5.0
_PROVISIONAL = ("ended", "worker-died", "first-request")
_WORKER_FIX: Final = "see why in the log and in dmesg; for want of memory, the kernel kills"
_HUNG_FIX: Final = "`py-spy dump --pid` of its workers shows where; often one rank waits for another (NCCL), or a lock or disk that is gone"


@dataclass(frozen=True)
class Verdict:
    """How it came out.

    Attributes:
        says: what it did, behind its name, e.g. "ended with exit code 1".
        id: stable, for programs.
        frame, fix: as in `LogCause`.
    """

    state: EndState
    says: str
    evidence: str
    id: str = ""
    frame: str = ""
    fix: str = ""
    title: str = ""

    @classmethod
    def of_log(cls, cause: LogCause) -> "Verdict":
        """Failed as its log says."""
        return cls("failed", f"failed: {cause.title}", cause.evidence, cause.id, cause.frame, cause.fix, cause.title)

    def event(self, phase: Phase) -> FailureEvent:
        """As it is told."""
        return FailureEvent(id=self.id, phase=phase, title=self.cause, evidence=self.evidence, frame=self.frame, fix=self.fix)

    def end(self) -> EndEvent:
        """The last event."""
        return EndEvent(state=self.state, cause=self.cause if self.state in ("failed", "hung") else None)

    @property
    def cause(self) -> str:
        """In one sentence, without the name."""
        return self.title or f"it {self.says}"

    @property
    def is_provisional(self) -> bool:
        """Whether the log may know better, should it say more."""
        return self.state == "failed" and (self.id in _PROVISIONAL or not (self.id or self.frame))

    def error(self, name: str, log: str) -> EngineFailed:
        """As it is raised."""
        return EngineFailed(f"{name} {self.says}", evidence=self.evidence, fix="; ".join(filter(None, (self.fix, f"see {log}"))))


@dataclass
class _Doubt:
    """That the request of `asked_s` will be answered; `made` is how many tokens the server had made as it arose."""

    asked_s: float
    began_s: float
    made: float | None
    signs: str
    is_confirmed: bool = False


@dataclass
class Judge:
    """Judges by the signs from beyond the log.

    Args:
        life: of its processes.
        probe: None if it is not asked.
        ready_timeout_s: how long a start may take, whatever the signs.
        patience: by phase.
    """

    life: Life
    probe: Probe | None
    ready_timeout_s: float = float("inf")
    patience: Mapping[Phase, Patience] = field(default_factory=lambda: PATIENCE)
    _doubt: _Doubt | None = None
    _busy_s: float = float("-inf")  # when it was last seen to make tokens for others

    def suspicion(self, now_s: float, phase: Phase | None, is_ready: bool, last_line: str) -> Verdict | None:
        """What is wrong by all signs at `now_s`; None if nothing is. The log may have another name for it.

        Args:
            phase: None if it is not known, as of a server whose log does not go back to its start.
        """
        if self.life.lost_worker:
            evidence = f"that process is gone, the one above it lives on; last line of the log: {last_line}"
            return Verdict("failed", f"lost its worker {self.life.lost_worker}", evidence, "worker-died", fix=_WORKER_FIX)
        seen = self.probe.seen if self.probe else None
        if seen and seen.stage == "refused":
            return Verdict("failed", "was up and failed on its first request", seen.said, "first-request")
        if seen and seen.stage == "asked":
            return self._unanswered(now_s, seen, last_line)
        if not is_ready:
            return self._not_ready(now_s, phase, seen, last_line)
        return self._no_more(now_s, seen, last_line) if seen and seen.stage != "answered" else None

    def _unanswered(self, now_s: float, seen: Seen, last_line: str) -> Verdict | None:
        """Well, and yielding nothing: unless it makes tokens for others, told by two looks at its count some seconds apart."""
        assert self.probe
        doubt = self._doubt
        if doubt is None or doubt.asked_s != seen.since_s:
            self._doubt = self._doubted(now_s, seen, last_line)
            return None
        if not doubt.is_confirmed:
            if now_s - doubt.began_s < _BUSY_CHECK_S:
                return None
            made = self.probe.tokens_made()
            if made is not None and doubt.made is not None and made > doubt.made:
                self._doubt, self._busy_s = None, now_s
                return None
            doubt.is_confirmed = True
        says = f"hung: well by its own word, and no token came in {now_s - seen.since_s:.0f} s"
        return Verdict("hung", says, f"/health answers 200, /v1/completions has given nothing; {doubt.signs}", "hung", fix=_HUNG_FIX)

    def _doubted(self, now_s: float, seen: Seen, last_line: str) -> _Doubt | None:
        """That it will ever answer, once patience is over. The looks at its count are signs of life, too: they are not waited out."""
        assert self.probe
        patience, waited_s = self.patience["ready"], now_s - max(seen.since_s, self._busy_s)
        silent_s, spinning_s = (min(waited_s, s) for s in (self.life.silent_for_s(now_s), self.life.spinning_for_s(now_s)))
        is_over = waited_s > patience.spinning_s if self.life.pid is None else self._is_over(patience, silent_s, spinning_s)
        if not is_over:
            return None
        signs = f"{self._signs(patience, silent_s)}; last line of the log: {last_line}"
        return _Doubt(seen.since_s, now_s, self.probe.tokens_made(), signs)

    def _not_ready(self, now_s: float, phase: Phase | None, seen: Seen | None, last_line: str) -> Verdict | None:
        said = f"; {seen.said}" if seen and seen.said else ""
        taken_s = now_s - self.life.now_s
        if taken_s > self.ready_timeout_s:
            return Verdict("failed", f"was not ready after {self.ready_timeout_s:.0f} s", f"{last_line}{said}", "not-ready")
        if self.life.pid is None or phase is None:  # whether it works, or should, cannot be seen
            return None
        silent_s, spinning_s = self.life.silent_for_s(now_s), self.life.spinning_for_s(now_s)
        patience = self.patience[phase]
        if not self._is_over(patience, silent_s, spinning_s):
            return None
        evidence = f"{self._signs(patience, silent_s)}{said}; last line of the log: {last_line}"
        return Verdict("hung", f"hung in phase {phase}: no progress for {spinning_s:.0f} s", evidence, "hung", fix=_HUNG_FIX)

    def _no_more(self, now_s: float, seen: Seen, last_line: str) -> Verdict | None:
        """It was ready once, and is not now."""
        waited_s = now_s - seen.since_s
        if waited_s <= self.patience["ready"].silence_s:
            return None
        evidence = f"{seen.said or 'its port is closed'}; last line of the log: {last_line}"
        is_gone = seen.stage == "closed" and self.life.pid is None
        return Verdict("failed" if is_gone else "hung", f"has not been well for {waited_s:.0f} s", evidence, "unwell", fix=_HUNG_FIX)

    @staticmethod
    def _is_over(patience: Patience, silent_s: float, spinning_s: float) -> bool:
        return silent_s > patience.silence_s or spinning_s > patience.spinning_s

    def _signs(self, patience: Patience, silent_s: float) -> str:
        if self.life.pid is None:
            return "its processes cannot be seen from here"
        if silent_s <= patience.silence_s:
            return "its processes use the CPU, and nothing else moves"
        return f"its log, CPU time, disk, network and GPU memory have not moved for {silent_s:.0f} s"
