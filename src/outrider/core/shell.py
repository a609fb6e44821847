"""Processes that are ours: started as a group, their log followed, ended with us."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from outrider.core.guard import kill_session
from outrider.inside.owned_processes import MARK, Owned

_STOP_TIMEOUT_S = 20.0
_TAIL_LINES = 5


class GuardedProcess:
    """A command that runs until `stop`, until it ends by itself, or until this process is gone.

    Args:
        name: how to call it in errors.
        command: program and arguments.
        log_path: where both its outputs go.
        env: the whole environment of the command; with a server's mark in it, what leaves the command's session ends, too.
    """

    def __init__(self, name: str, command: list[str], log_path: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.log_path = log_path
        self._mark = env.get(MARK)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log_path.write_bytes(b"")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "outrider.core.guard", str(log_path), *command],
            stdin=subprocess.PIPE,
            # nothing that lies in the current folder may stand in for a package, ours or the command's
            env={"PYTHONSAFEPATH": "1", **env},
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """End the command and all that it started; returns when they are gone."""
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        kill_session(self._process.pid)  # should the guard itself have been killed
        if self._mark:
            Owned(self._mark, set()).kill()

    @property
    def pid(self) -> int:
        """The guard's process id, which is also the session of all that runs under it."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The command's exit code, or None while it runs."""
        return self._process.poll()

    def tail(self) -> str:
        """The last lines of the log."""
        return "\n            ".join(self._lines()[-_TAIL_LINES:])

    def last_line(self) -> str:
        """The last line of the log; empty if there is none."""
        return (self._lines() or [""])[-1]

    def _lines(self) -> list[str]:
        return self.log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
