"""Processes that are ours: started as a group, their log followed, ended with us."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from outrider.core.errors import EngineFailed

_STOP_TIMEOUT_S = 20.0
_POLL_S = 0.1
_TAIL_LINES = 5


class GuardedProcess:
    """A command that runs until `stop`, until it ends by itself, or until this process is gone.

    Args:
        name: how to call it in errors.
        command: program and arguments.
        log_path: where both its outputs go.
        env: the whole environment of the command.
    """

    def __init__(self, name: str, command: list[str], log_path: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.log_path = log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log_path.write_bytes(b"")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "outrider.core.guard", str(log_path), *command],
            stdin=subprocess.PIPE,
            env=dict(env),
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

    @property
    def exit_code(self) -> int | None:
        """The command's exit code, or None while it runs."""
        return self._process.poll()

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait for `ready`.

        Raises:
            EngineFailed: the command ended first, or `timeout_s` passed; the log's last lines are shown.
        """
        deadline = time.monotonic() + timeout_s
        while not ready():
            if self.exit_code is not None:
                raise EngineFailed(
                    f"{self.name} ended with exit code {self.exit_code} before it was ready",
                    evidence=self.tail(),
                    fix=f"see {self.log_path}",
                )
            if time.monotonic() > deadline:
                raise EngineFailed(f"{self.name} was not ready after {timeout_s:.0f} s", evidence=self.tail(), fix=f"see {self.log_path}")
            time.sleep(_POLL_S)

    def tail(self) -> str:
        """The last lines of the log."""
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return "\n            ".join(lines[-_TAIL_LINES:])
