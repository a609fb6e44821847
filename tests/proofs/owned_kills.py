"""Kills at random moments around servers of a scripted engine: afterwards nothing may be left, and the record must be right.

What is killed (SIGKILL): the command that has started the server, the process between it and the engine (keeper or guard),
the engine's parent, or a worker, among them one that has left the session and may have wiped its environment; or the command
and one of these at once. A worker that has left in both ways is found through keeper or guard only, so these are spared then.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from engines.fake_engine import FAKE_SERVER, comes_true, processes_of, role_of
from outrider.engines.server_records import Server, servers
from outrider.engines.servers import state, stop
from outrider.engines.serving import free_port
from outrider.inside.owned_processes import MARK

NUM_KILLS = 200
_LONGEST_S = 3.0
_SETTLED_WITHIN_S = 25.0
_FLAGS = (("--ignores-term", 0.15), ("--wipes-environment", 0.3), ("--load-s", 0.3))
_ENGINE_OF = {"parent": "parent", "a worker": "worker", "a worker that has left": "leaver"}


@dataclass(frozen=True)
class Kill:
    """One kill, and what came of it: `wrong` is empty if all was as it must be.

    Attributes:
        state: what the record said once all had settled; empty without a record.
        num_left: the server's processes that were there then, and had to be ended by `stop`.
    """

    kind: str
    flags: tuple[str, ...]
    victims: tuple[str, ...]
    after_s: float
    state: str
    num_left: int
    wrong: str


def main(out_folder: Path) -> None:
    """Write owned-kills.md."""
    seed, began = time.time_ns() % 1_000_000, time.monotonic()
    rng, kills = random.Random(seed), []
    with tempfile.TemporaryDirectory(prefix="outrider-kills-") as place:
        for number in range(NUM_KILLS):
            kills.append(kill_once(Path(place) / str(number), rng))
            print(f"kill {number + 1}/{NUM_KILLS}: {kills[-1]}", flush=True)
    (out_folder / "owned-kills.md").write_text(_page(kills, seed, time.monotonic() - began), encoding="utf-8")
    assert not any(kill.wrong for kill in kills), "see the page"


def kill_once(folder: Path, rng: random.Random) -> Kill:
    """Start a server in a home of its own, kill, compare the record with what is there, stop, and look again."""
    folder.mkdir()
    os.environ["OUTRIDER_HOME"] = str(folder / "home")
    kind, port = rng.choice(("detached", "attached")), free_port()
    flags = [part for flag, chance in _FLAGS if rng.random() < chance for part in ([flag, "0.5"] if flag == "--load-s" else [flag])]
    command = [sys.executable, str(FAKE_SERVER.with_name("fake_engine.py")), kind, str(port), str(folder / "log"), *flags]
    delay_s = rng.uniform(0.0, _LONGEST_S)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as outrider:
        time.sleep(delay_s)
        victims = _kill_some(outrider, port, rng, spares_overseer="--wipes-environment" in flags)
        try:
            settled = comes_true(lambda: _is_settled(kind, outrider, port), _SETTLED_WITHIN_S)
            said, num_left, wrong = (
                _checked(port) if settled else ("", len(processes_of(port)), "the record never agreed with what is there")
            )
        finally:
            outrider.kill()
    wrong = wrong or _what_is_left(port, folder, had_record=bool(said))
    for process in processes_of(port):
        process.kill()
    return Kill(kind, tuple(flags), victims, round(delay_s, 2), said, num_left, wrong)


def _kill_some(outrider: "subprocess.Popen[bytes]", port: int, rng: random.Random, spares_overseer: bool) -> tuple[str, ...]:
    """One victim, or the command and another at once, of those that are there by now."""
    there = {name: [p.pid for p in processes_of(port) if role_of(p) == role] for name, role in _ENGINE_OF.items()}
    if not spares_overseer:
        there["keeper or guard"] = [server.session for server in servers() if server.session]
    names = [name for name, found in there.items() if found]
    others = [rng.choice(names)] if names and rng.random() < 0.75 else []
    chosen = (["the command"] if not others or rng.random() < 0.3 else []) + others
    for name in chosen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(outrider.pid if name == "the command" else rng.choice(there[name]), signal.SIGKILL)
    return tuple(chosen)


def _is_settled(kind: str, outrider: "subprocess.Popen[bytes]", port: int) -> bool:
    """Nothing changes any more: the server is whole and ready, or has gone; an attached one goes with its command."""
    alive, every = processes_of(port), servers()
    if kind == "attached" and outrider.poll() is not None and alive:
        return False
    if not every:  # either nothing was begun, or all is over
        return not alive and outrider.poll() is not None
    return _is_true(every[0], alive)


def _is_true(server: Server, alive: list[psutil.Process]) -> bool:
    """Whether the record's state is what is there: all processes and no others, and a state that fits them."""
    how = state(server)
    if not alive:
        return how.processes == () and how.state in ("gone", "failed")
    return {p.pid for p in alive} <= {p.pid for p in how.processes} and how.state == "ready" and len(alive) == 4


def _checked(port: int) -> tuple[str, int, str]:
    """The record's state, how many processes there are, and what is wrong with its stop."""
    every, num_left = servers(), len(processes_of(port))
    if not every:
        return "", num_left, ""
    (server,) = every
    said = state(server).state
    stopped = stop(server, 0.5)
    if stopped.left or stopped.port_holder:
        return said, num_left, f"stop left {stopped.left}, {stopped.port_holder}"
    return said, num_left, f"its record says something else: {len(stopped.ended)} ended" if len(stopped.ended) < num_left else ""


def _what_is_left(port: int, folder: Path, had_record: bool) -> str:
    """After the stop: processes by command line and by mark, the port, files of the record.

    A command that was killed as it wrote a record for the first time leaves the file aside; the next start sweeps it.
    """
    wrong = []
    if not comes_true(lambda: not processes_of(port) and not _marked(folder), 5.0):
        wrong.append(f"left: {processes_of(port) or _marked(folder)}")
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            wrong.append("its port is open")
    if files := [path.name for path in (folder / "home" / "servers").glob("*") if had_record or path.suffix != ".tmp"]:
        wrong.append(f"files: {files}")
    return "; ".join(wrong)


def _marked(folder: Path) -> list[psutil.Process]:
    """Processes of servers of this home: their mark is in the environment, and so is the home."""
    home, found = str(folder / "home"), []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            if MARK in environment and environment.get("OUTRIDER_HOME") == home and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


_PAGE = """# Kills around servers of ours

`make proofs` wrote this page. Each row is a server of a scripted engine (`tests/engines/fake_server.py`: a parent, two workers in its
session, and one that leaves it), started detached or attached to a command, and SIGKILL a random time after the command began. Once
all had settled, the record was compared with the processes that were there by their command lines; then the server was stopped by its
record. Right means: the record listed every process, with a state that fits; and after the stop no process was left by command line or
by mark, the port was closed, and no file of the record remained (of one that was never written whole, so that nothing had been
started, a file aside may be there until the next start). Keeper and guard stand between the command and the engine. An attached server
must have gone by itself before the stop.

{num_right} of {num} right; seed {seed}, {seconds:.0f} s.

| server | its habits | killed | after (s) | record said | processes when stopped | wrong |
|---|---|---|---|---|---|---|
"""


def _page(kills: list[Kill], seed: int, seconds: float) -> str:
    begin = _PAGE.format(num_right=sum(not kill.wrong for kill in kills), num=len(kills), seed=seed, seconds=seconds)
    return begin + "".join(map(_row, kills))


def _row(kill: Kill) -> str:
    cells = (kill.kind, " ".join(kill.flags), ", ".join(kill.victims), kill.after_s, kill.state or "no record", kill.num_left)
    return f"| {' | '.join(map(str, cells))} | {kill.wrong or 'nothing'} |\n"
