"""Runs one command as a process group and ends it when our own parent is gone, however that ended.

Started as `python -m outrider.core.guard LOG COMMAND...` with a pipe as standard input that the parent keeps open
and never writes to: end of file means that the parent has died or wants us to stop. The exit code is the command's.

The guard leads a session of its own, and all that the command starts stays in it unless it leaves on purpose; so
whatever is left when the command has ended, orphans included, is found by the session and ended. Of a server of ours what
has left the session is found, too: by the mark in its environment, and because the guard adopts its orphans. Should the
guard itself be killed, a second process, which waits for nothing else, does that. To the guard, SIGTERM is the same as the
end of file.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from outrider.inside.owned_processes import MARK, Owned, adopt_orphans, process_of

_GRACE_S = 10.0
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1
_NOT_STARTED = 127  # as a shell says it


def main(log_path: str, command: list[str]) -> int:
    """Run `command` with both its outputs in `log_path` until it ends or standard input does."""
    _end_the_session_when_we_are_gone()
    adopt_orphans()
    with Path(log_path).open("ab", buffering=0) as log:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0, preexec_fn=_die_with_parent
            )
        except OSError as error:
            log.write(f"{error}\n".encode())
            return _NOT_STARTED
    threading.Thread(target=_end_when_input_ends, args=(child,), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=end_tree, args=(child.pid, _GRACE_S), daemon=True).start())
    code = _exit_code_of(child.pid)
    _kill_what_is_left(os.getsid(0))  # a worker may outlive the server that started it
    return code


def _exit_code_of(command: int) -> int:
    """Wait for the command, and meanwhile for orphans, which nobody else would."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == command:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _die_with_parent() -> None:
    """Linux: should the second be killed with us, the command's first process goes too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_the_session_when_we_are_gone() -> None:
    """Fork a process that reads from a pipe whose other end only we hold: the end of file is our end."""
    session = os.getsid(0)
    for_reading, held_open = os.pipe()  # no program that we start inherits them
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever ends all asks the guard, too
        os.close(held_open)
        os.read(for_reading, 1)
        _kill_what_is_left(session)
        os._exit(0)


def _kill_what_is_left(session: int) -> None:
    kill_session(session)
    me = process_of(os.getpid())
    if me and (mark := os.environ.get(MARK)):
        Owned(mark, {me[:2]}).kill(spared=(session,))


def _end_when_input_ends(child: "subprocess.Popen[bytes]") -> None:
    while os.read(0, 4096):
        pass
    end_tree(child.pid, _GRACE_S)


def end_tree(pid: int, grace_s: float) -> None:
    """Ask a process and all that it started to end; after `grace_s` make them."""
    try:
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in tree:
        _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while (alive := list(filter(_is_alive, tree))) and time.monotonic() < deadline:
        time.sleep(_POLL_S)  # psutil's own waiting would take the exit code from who waits for it
    for process in alive:
        _signal(process, signal.SIGKILL)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _signal(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def kill_session(session: int) -> None:
    """Kill every process of a session but the caller and the session's leader."""
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if pid not in (session, os.getpid()) and os.getsid(pid) == session:
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
