"""Follows an engine's log and process beside whoever uses the engine; ends the engine as soon as it has failed."""

import os
import re
import threading
import time
from collections import deque
from types import TracebackType
from typing import BinaryIO, Self

from outrider.core.errors import EngineFailed
from outrider.core.shell import GuardedProcess
from outrider.engines.engine import Engine
from outrider.engines.root_cause import root_cause, without_prefix

_POLL_S = 0.2
# a fatal line is the beginning of what the log has to say: it is read until the log has been quiet
_QUIET_S = 1.0
_AT_MOST_S = 10.0
_LAST_LINES = 5
# of a log that may grow for weeks
_KEPT_LINES = 20_000


class Watch:
    """Watches one engine process until it is left."""

    def __init__(self, engine: Engine, process: GuardedProcess) -> None:
        self.name, self.log_path = process.name, process.log_path
        self._engine, self._process = engine, process
        self._fatal = [(rule.literal, re.compile(rule.pattern)) for rule in engine.log.fatal]
        self._failed, self._left, self._survived = threading.Event(), threading.Event(), threading.Event()
        self._failure: EngineFailed | None = None
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._begun = b""  # a line whose end has not been written yet
        self._thread = threading.Thread(target=self._follow, name=f"watch {process.name}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._left.set()
        self._thread.join()

    def failure(self, timeout_s: float) -> EngineFailed | None:
        """Why the engine has failed, None if it has not within `timeout_s`."""
        self._failed.wait(timeout_s)
        return self._failure

    def last_lines(self) -> str:
        """The end of the log."""
        return "\n            ".join("\n".join(self._lines).strip().splitlines()[-_LAST_LINES:])

    def forget(self) -> None:
        """What is in the log by now was survived, and is not why the engine fails later."""
        self._survived.set()

    def _follow(self) -> None:
        with self.log_path.open("rb") as log:
            while not self._left.wait(_POLL_S):
                ended = self._process.exit_code is not None
                if any(map(self._is_fatal, self._new_lines(log))) or ended:
                    self._end_it(log)
                    return
                if self._survived.is_set():
                    self._lines.clear()
                    self._survived.clear()

    def _new_lines(self, log: BinaryIO) -> list[str]:
        """What was written since; a log that was cut short, as rotation does, is read from its beginning."""
        if os.fstat(log.fileno()).st_size < log.tell():
            log.seek(0)
        *whole, self._begun = (self._begun + log.read()).split(b"\n")
        lines = [line.decode(errors="replace") for line in whole]
        self._lines.extend(lines)
        return lines

    def _end_it(self, log: BinaryIO) -> None:
        self._let_it_finish(log)
        code = self._process.exit_code
        self._process.stop()
        self._new_lines(log)
        self._lines.append(self._begun.decode(errors="replace"))
        self._failure = self._explained(code)
        self._failed.set()

    def _is_fatal(self, line: str) -> bool:
        return any(literal in line and pattern.search(without_prefix(line)) for literal, pattern in self._fatal)

    def _let_it_finish(self, log: BinaryIO) -> None:
        deadline, since = time.monotonic() + _AT_MOST_S, time.monotonic()
        while time.monotonic() < deadline and self._process.exit_code is None:
            if self._new_lines(log):
                since = time.monotonic()
            elif time.monotonic() - since > _QUIET_S:
                return
            time.sleep(_POLL_S)

    def _explained(self, exit_code: int | None) -> EngineFailed:
        cause = root_cause("\n".join(self._lines), self._engine.log.failures)
        if cause is not None:
            return EngineFailed(
                f"{self.name} failed: {cause.title}", evidence=cause.evidence, fix=f"{cause.fix}; see {self.log_path}".removeprefix("; ")
            )
        how = "failed" if exit_code is None else f"ended with exit code {exit_code}"
        return EngineFailed(f"{self.name} {how}", evidence=self.last_lines(), fix=f"see {self.log_path}")
