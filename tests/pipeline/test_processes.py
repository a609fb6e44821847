"""Processes that are ours end with us, however we end."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil

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


def test_what_a_killed_guard_leaves_is_ended_too(tmp_path: Path) -> None:
    mark = f"family-{os.getpid()}-c"
    with GuardedProcess("family", [sys.executable, "-c", _FAMILY.format(mark=mark)], tmp_path / "log", os.environ) as process:
        assert _comes_true(lambda: len(_marked(mark)) >= 3)
        os.kill(process.pid, signal.SIGKILL)
        assert _comes_true(lambda: process.exit_code is not None)
    assert _comes_true(lambda: not _marked(mark))


def test_what_a_starter_and_a_guard_leave_that_are_killed_at_once_is_ended_too(tmp_path: Path) -> None:
    """The child of the command is no one's business then: not its parent's, which is killed by nobody."""
    mark = f"family-{os.getpid()}-e"
    starter = textwrap.dedent(
        f"""
        import os, time
        import sys
        from pathlib import Path
        from outrider.core.shell import GuardedProcess
        with GuardedProcess("family", [sys.executable, "-c", {_FAMILY.format(mark=mark)!r}], Path({str(tmp_path / "log")!r}), os.environ):
            time.sleep(600)
        """
    )
    with subprocess.Popen([sys.executable, "-c", starter]) as process:
        assert _comes_true(lambda: len(_marked(mark)) >= 5)  # starter, guard and its second, parent, child
        guard = psutil.Process(process.pid).children()[0]
        guard.suspend()  # so that it cannot do anything between the two
        process.kill()
        guard.kill()
    assert _comes_true(lambda: not _marked(mark))


def test_an_orphan_ends_with_the_command_that_made_it(tmp_path: Path) -> None:
    """Its parent has ended in between: it is no descendant of anyone that is left, but it is in the session."""
    mark = f"family-{os.getpid()}-d"
    orphan = f"import time; time.sleep(600)  # {mark}"
    between = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {orphan!r}])"
    command = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {between!r}]); time.sleep(3)"
    with GuardedProcess("family", [sys.executable, "-c", command], tmp_path / "log", os.environ) as process:
        assert _comes_true(lambda: any(p.name().startswith("python") and p.info["cmdline"][-1] == orphan for p in _marked(mark)))
        assert _comes_true(lambda: process.exit_code == 0)
        assert _comes_true(lambda: not [p for p in _marked(mark) if p.info["cmdline"][-1] == orphan])
