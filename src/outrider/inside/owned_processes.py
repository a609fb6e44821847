"""Processes of one server, on the machine where they run: started so that they live on, found again, ended as a whole.

Runs under any Python of that machine, `python -` with this text and a call of `main` on its standard input; nothing is
installed there. A process belongs to a server

- if the variable OUTRIDER_SERVER in its environment has the server's mark, which is never given twice; or
- if it was seen as such before, and still is the process that had started then, which tells it from a reused number; or
- if it is in a session that one of these leads, or has led before it ended; or
- if one of these started it.

So a worker is found that has left its session, one whose parent has died, and one that has wiped its environment. Nothing
is found by name. SPT_NOENV keeps setproctitle, with which engines name their workers, from wiping it.

A detached server has a keeper: the leader of its session, which adopts its orphans, notes what it has seen and how the
server ended in the state file, and ends what the server leaves behind. Nothing depends on its being alive.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

MARK = "OUTRIDER_SERVER"
_PROC = Path("/proc")
_PR_SET_CHILD_SUBREAPER = 36
_LISTENS = "0A"
_POLL_S = 0.1
_NOTE_EVERY_S = 2.0  # reading all of /proc takes milliseconds
_GRACE_S = 10.0  # of a server's leavings, and of one whose keeper was asked to end it
_KILL_S = 10.0
_NOT_STARTED = 127  # as a shell says it


class Process(NamedTuple):
    """A process: `pid` alone may name another one later, with `started` (clock ticks since boot) it does not."""

    pid: int
    started: int
    parent: int
    session: int


def marked(mark: str) -> dict[str, str]:
    """What all processes of a server have in their environment."""
    return {MARK: mark, "SPT_NOENV": "1"}


def process_of(pid: int) -> Process | None:
    """The process that has this number now; None if it has ended, even if nobody has taken note of that yet."""
    try:
        # name (in parentheses, may hold anything), state, parent, group, session, ...; the 22nd is the start time
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        is_over = fields[0] in "ZX" and len(list((_PROC / str(pid) / "task").iterdir())) <= 1
    except (OSError, IndexError):
        return None
    return None if is_over else Process(pid, int(fields[19]), int(fields[1]), int(fields[3]))


def command_of(pid: int) -> str:
    """Its command line, shortened."""
    try:
        parts = (_PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    return " ".join(" ".join(part.decode(errors="replace").split())[:100] for part in parts if part)[:300]


def boot() -> str:
    """Names the time since this machine was started: process numbers and start times mean nothing beyond it."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def adopt_orphans() -> None:
    """Become the parent of all that is started below this process and loses its own; without Linux, nothing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Owned:
    """All processes of one server.

    Args:
        mark: the server's.
        seen: processes that were seen to be its own in this boot of the machine.
    """

    def __init__(self, mark: str, seen: set[tuple[int, int]]) -> None:
        self._mark = f"{MARK}={mark}".encode()
        self.seen = seen
        self.commands: dict[tuple[int, int], str] = {}

    def alive(self) -> list[Process]:
        """Those that are there now, this process left out."""
        now = {process.pid: process for process in _all_processes()}
        mine = {pid for pid, process in now.items() if process[:2] in self.seen or self._is_marked(pid)}
        # a session's number is not given to another process as long as one is in it; one that others lead is not ours
        sessions = {now[pid].session for pid in mine} - (now.keys() - mine)
        mine |= {pid for pid, process in now.items() if process.session in sessions}
        while more := {pid for pid, process in now.items() if process.parent in mine} - mine:
            mine |= more
        mine.discard(os.getpid())
        for pid in mine:
            self.seen.add(now[pid][:2])
            self.commands.setdefault(now[pid][:2], command_of(pid))
        return [now[pid] for pid in sorted(mine)]

    def kill(self, spared: tuple[int, ...] = ()) -> list[Process]:
        """Kill all but the spared numbers; returns what could not be killed."""
        deadline = time.monotonic() + _KILL_S
        while left := [process for process in self.alive() if process.pid not in spared]:
            if time.monotonic() > deadline:
                break
            for process in left:
                send(process, signal.SIGKILL)
            time.sleep(_POLL_S / 5)
        return left

    def end(self, grace_s: float, spared: tuple[int, ...] = ()) -> tuple[list[Process], list[Process], list[Process]]:
        """Ask all to end, those too that come up meanwhile; after `grace_s` kill.

        Returns:
            All that there were; those that had to be killed; those that are left.
        """
        asked: dict[tuple[int, int], Process] = {}
        deadline = time.monotonic() + grace_s
        while alive := [process for process in self.alive() if process.pid not in spared]:
            if time.monotonic() > deadline:
                break
            for process in alive:
                if process[:2] not in asked:
                    asked[process[:2]] = process
                    send(process, signal.SIGTERM)
            time.sleep(_POLL_S)
        return list(asked.values()), alive, self.kill(spared) if alive else []

    def _is_marked(self, pid: int) -> bool:
        try:
            return self._mark in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            return False


def send(process: Process, number: int) -> None:
    """Signal this process and no other that has its number by now: the handle is taken first, then it is compared."""
    handle = None
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):
        pass  # an older kernel, or a sandbox
    now = process_of(process.pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if now and now.started == process.started:
            if handle is None:
                os.kill(process.pid, number)
            else:
                signal.pidfd_send_signal(handle, number)
    if handle is not None:
        os.close(handle)


def _all_processes() -> Iterator[Process]:
    """Of this machine; none where there is no /proc."""
    for folder in _PROC.iterdir() if _PROC.exists() else ():
        if folder.name.isdigit() and (process := process_of(int(folder.name))):
            yield process


# --- ports ---------------------------------------------------------------------------------------------------------------


def holder_of(port: int) -> dict[str, Any] | None:
    """Who listens on a port: `pid` (None if that is not for us to see) and `command`; None if nobody does."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for row in (_PROC / "net" / table).read_text().splitlines()[1:]:
                fields = row.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return None
    for process in _all_processes():
        if inodes & set(_open_files(process.pid)):
            return {"pid": process.pid, "command": command_of(process.pid)}
    return {"pid": None, "command": "a process of another user"}


def _open_files(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for handle in (_PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield str(handle.readlink())


def find_port(request: dict[str, Any]) -> dict[str, Any]:
    """`port` if it is free, a free one for 0: {"port": ..., "holder": who has it or None}."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", request["port"]))
        except (OSError, OverflowError) as error:
            return {"port": None, "holder": holder_of(request["port"]) or {"pid": None, "command": str(error)}}
        return {"port": probe.getsockname()[1], "holder": None}


# --- a detached server -----------------------------------------------------------------------------------------------------


def start(request: dict[str, Any]) -> dict[str, Any]:
    """Start a server that lives on: {"error": why not} or the state that its keeper notes."""
    log, state = Path(request["log"]).expanduser().absolute(), Path(request["state"]).expanduser().absolute()
    try:
        for path in (log, state):
            path.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")
    except OSError as error:
        return {"error": str(error)}
    told, tells = os.pipe()
    if os.fork() == 0:
        os.close(told)
        os.setsid()
        _become_keeper(request, log, state, tells)
    os.close(tells)
    with os.fdopen(told, "rb") as answer:
        text = answer.read()
    found: dict[str, Any] = json.loads(text) if text else {"error": f"its keeper was killed; see {log}"}
    return found


def _become_keeper(request: dict[str, Any], log: Path, state: Path, tells: int) -> None:
    """Never returns."""
    code = 1
    try:
        nothing, written = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND)
        for ours, standard in ((nothing, 0), (written, 1), (written, 2)):
            os.dup2(ours, standard)
        for handle in (nothing, written):
            os.close(handle)
        _Keeper(request, log, state).run(tells)
        code = 0
    except BaseException as error:
        os.write(2, f"the server's keeper failed: {error!r}\n".encode())
    finally:
        os._exit(code)


class _Keeper:
    """Starts the server and stays until all of it has ended."""

    def __init__(self, request: dict[str, Any], log: Path, state: Path) -> None:
        self._request, self._path = request, state
        me = process_of(os.getpid())
        if me is None:
            raise OSError("there is no /proc here")
        self._owned = Owned(request["mark"], {me[:2]})
        self._state: dict[str, Any] = {
            "mark": request["mark"],
            "keeper": me[:2],
            "engine": None,
            "exit_code": None,
            "was_ready": False,
            "seen": [me[:2]],
            "node": platform.node(),
            "boot": boot(),
            "log": str(log),
            "path": str(state),
        }
        self._asked_to_end = False

    def run(self, tells: int) -> None:
        adopt_orphans()
        starter = process_of(os.getppid())
        signal.signal(signal.SIGHUP, lambda *_: None)  # a function: what is ignored would be ignored by the engine, too
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, self._note_wish)
        self._note()
        pid, error = self._engine()
        os.write(tells, json.dumps({"error": error} if error else self._state).encode())
        os.close(tells)
        self._let_answer(starter)
        if pid:
            self._wait_until_it_ends()
        self._owned.end(_GRACE_S)
        self._reap()
        self._state["seen"] = []
        self._note()

    @staticmethod
    def _let_answer(starter: Process | None) -> None:
        """Whoever started us has the mark, too, and is not to be ended before it has said how that went."""
        deadline = time.monotonic() + _GRACE_S
        while starter and time.monotonic() < deadline:
            now = process_of(starter.pid)
            starter = starter if now and now.started == starter.started else None
            time.sleep(_POLL_S / 5)

    def _note_wish(self, *_: Any) -> None:
        self._asked_to_end = True

    def _engine(self) -> tuple[int, str]:
        environment = {**self._request["defaults"], **os.environ, **self._request["required"], **marked(self._request["mark"])}
        try:
            engine = subprocess.Popen(
                self._request["command"], stdin=subprocess.DEVNULL, env=environment, preexec_fn=os.setpgrp, cwd=self._request["folder"]
            )
        except OSError as error:
            os.write(2, f"{error}\n".encode())
            self._state["exit_code"] = _NOT_STARTED
            return 0, str(error)
        process = process_of(engine.pid)
        self._state["engine"] = (engine.pid, process.started if process else 0)
        self._remember()
        return engine.pid, ""

    def _wait_until_it_ends(self) -> None:
        noted_at = time.monotonic()
        while self._state["exit_code"] is None and not self._asked_to_end:
            time.sleep(_POLL_S)
            self._reap()
            if time.monotonic() - noted_at > _NOTE_EVERY_S:
                noted_at = time.monotonic()
                self._remember()
        self._remember()

    def _reap(self) -> None:
        """Take note of children that have ended, adopted ones too."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if self._state["engine"] and pid == self._state["engine"][0]:
                    self._state["exit_code"] = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)

    def _remember(self) -> None:
        pids = {process.pid for process in self._owned.alive()}
        if not self._state["was_ready"] and self._request["port"]:
            self._state["was_ready"] = (holder_of(self._request["port"]) or {}).get("pid") in pids
        alive = {process for process in self._owned.seen if process[0] in pids} | {tuple(self._state["keeper"])}
        self._state["seen"] = sorted(alive)
        self._note()

    def _note(self) -> None:
        """Only what is new; a disk that is full does not end the server."""
        text = json.dumps(self._state)
        if text != getattr(self, "_noted", None):
            aside = self._path.with_name(f"{self._path.name}.tmp")
            with contextlib.suppress(OSError):
                aside.write_text(text)
                aside.replace(self._path)
                self._noted = text


# --- any server --------------------------------------------------------------------------------------------------------------


def look(request: dict[str, Any]) -> dict[str, Any]:
    """How servers are: by the mark of each, its processes, whether its first one runs, how that ended, who has its port."""
    return {"node": platform.node(), "boot": boot(), "servers": {each["mark"]: _look_at(each) for each in request["servers"]}}


def _look_at(request: dict[str, Any]) -> dict[str, Any]:
    owned, state = _owned(request)
    alive = owned.alive()
    first = state.get("engine") or (request["first"] if request["boot"] == boot() else None)
    return {
        "processes": _told(owned, alive),
        "is_running": first is not None and tuple(first) in {process[:2] for process in alive},
        "exit_code": state.get("exit_code"),
        "was_ready": state.get("was_ready", False),
        "holder": holder_of(request["port"]),
    }


def end(request: dict[str, Any]) -> dict[str, Any]:
    """End all of a server; see `Owned.end`. The state file is removed once nothing is left."""
    owned, _ = _owned(request)
    ended, killed, left = owned.end(request["grace_s"])
    if not left and request["state"]:
        with contextlib.suppress(OSError):
            Path(request["state"]).expanduser().unlink()
    names = ("ended", "killed", "left")
    return {
        **{name: _told(owned, group) for name, group in zip(names, (ended, killed, left))},  # noqa: B905 - strict is of later Pythons
        "holder": holder_of(request["port"]),
    }


def _told(owned: Owned, processes: list[Process]) -> list[dict[str, Any]]:
    return [{"pid": process.pid, "command": owned.commands[process[:2]]} for process in processes]


def _owned(request: dict[str, Any]) -> tuple[Owned, dict[str, Any]]:
    """Its processes, and the state that its keeper has noted; empty where it has none, or none that is its own."""
    state: dict[str, Any] = {}
    if request["state"]:
        with contextlib.suppress(OSError, ValueError):
            state = json.loads(Path(request["state"]).expanduser().read_text())
    state = state if state.get("mark") == request["mark"] else {}
    seen = [*state.get("seen", []), *([state["engine"]] if state.get("engine") else [])] if state.get("boot") == boot() else []
    if request["first"] and request["boot"] == boot():
        seen.append(request["first"])
    return Owned(request["mark"], {(pid, started) for pid, started in seen}), state


_ACTIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"port": find_port, "start": start, "look": look, "end": end}


def main(text: str) -> None:
    """Do what a request says, one JSON object with `do`; the answer is one JSON object on standard output."""
    request = json.loads(text)
    answer = _ACTIONS[request["do"]](request) if boot() else {"error": f"{sys.platform} has no /proc, by which processes are found"}
    print(json.dumps(answer))
