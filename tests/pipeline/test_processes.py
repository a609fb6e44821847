"""Processes that are ours end with us, however we end."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from outrider.core.errors import EngineFailed
from outrider.core.shell import GuardedProcess

_FAMILY = """import subprocess, sys, time
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)  # {mark}'])
time.sleep(600)  # {mark}
"""


def _marked(mark: str) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if any(mark in part for part in p.info["cmdline"] or ()) and p.pid != os.getpid()]


def _comes_true(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_stop_ends_a_process_and_what_it_started(tmp_path: Path) -> None:
    mark = f"family-{os.getpid()}-a"
    with GuardedProcess("family", [sys.executable, "-c", _FAMILY.format(mark=mark)], tmp_path / "log", os.environ):
        assert _comes_true(lambda: len(_marked(mark)) >= 3)  # guard, parent, child
    assert _comes_true(lambda: not _marked(mark))


def test_processes_end_when_their_starter_is_killed(tmp_path: Path) -> None:
    mark = f"family-{os.getpid()}-b"
    starter = textwrap.dedent(
        f"""
        import os, sys, time
        from pathlib import Path
        from outrider.core.shell import GuardedProcess
        with GuardedProcess("family", [sys.executable, "-c", {_FAMILY.format(mark=mark)!r}], Path({str(tmp_path / "log")!r}), os.environ):
            time.sleep(600)
        """
    )
    with subprocess.Popen([sys.executable, "-c", starter]) as process:
        try:
            assert _comes_true(lambda: len(_marked(mark)) >= 4)  # starter, guard, parent, child
        finally:
            process.kill()
    assert _comes_true(lambda: not _marked(mark))


def test_a_command_that_ends_too_early_shows_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no such model'); raise SystemExit(7)"]
    with GuardedProcess("engine x", command, tmp_path / "log", os.environ) as process, pytest.raises(EngineFailed) as caught:
        process.wait_until(lambda: False, timeout_s=20)
    assert "exit code 7" in caught.value.what
    assert caught.value.evidence == "no such model"
    assert str(tmp_path / "log") in caught.value.fix


def test_a_command_that_is_not_ready_in_time_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with GuardedProcess("engine x", command, tmp_path / "log", os.environ) as process, pytest.raises(EngineFailed, match="not ready after"):
        process.wait_until(lambda: False, timeout_s=0.3)
