"""Kills at random moments while real vLLM starts and is measured: nothing may be left, and who lives must say why it ended.

Who is killed (SIGKILL): the command, the guard between it and the engine, both at once, or a process of the engine.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from builders import write_drafter
from oracles import state_oracle
from outrider.core.errors import InputError
from outrider.engines.environments import environment_for
from outrider.engines.serving import engine_named
from pipeline.jobs import OUTRIDER, environment

NUM_KILLS, LONGEST_S, GONE_WITHIN_S = 20, 50.0, 30.0
_ENGINE_FAILED = 3


@dataclass(frozen=True)
class Kill:
    """One kill, and what came of it. `exit_code` is the command's, None if it was killed itself."""

    after_s: float
    who: str
    num_processes: int
    left: tuple[str, ...]
    gone_after_s: float
    exit_code: int | None
    said: str

    @property
    def is_clean(self) -> bool:
        """Nothing left, and a command that lived has told the cause with its exit code."""
        told = self.exit_code is None or (self.exit_code == _ENGINE_FAILED and self.said.startswith("error: "))
        return not self.left and told


def main(out_folder: Path) -> None:
    """Write vllm-kills.md."""
    try:
        environment_for(engine_named("vllm"), None, None)
    except InputError as error:
        print(f"skipped: {error.what}")
        return
    rng, kills = random.Random(0), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        oracle = state_oracle(folder)
        write_drafter(oracle.drafter, folder / "drafter")
        (folder / "prompts.jsonl").write_text("".join(f'{{"prompt": "w{2 * n + 1}"}}\n' for n in range(200)))
        for number in range(NUM_KILLS):
            kills.append(_kill_once(folder, rng))
            print(f"kill {number + 1}/{NUM_KILLS}: {kills[-1]}", flush=True)
            shutil.rmtree(folder / "out", ignore_errors=True)
    (out_folder / "vllm-kills.md").write_text(_page(kills), encoding="utf-8")
    assert all(kill.is_clean for kill in kills), "see the page"


def _kill_once(folder: Path, rng: random.Random) -> Kill:
    command = [str(OUTRIDER), "measure", "--engine", "vllm", "--target", "target", "--drafter", "drafter", "--prompts", "prompts.jsonl"]
    command += ["--out", "out", "--num-prompts", "200", "--max-tokens", "200", "--engine-args", "--max-model-len 512"]
    delay_s, seen = rng.uniform(1.0, LONGEST_S), set[psutil.Process]()
    with subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as cli:
        root, deadline = psutil.Process(cli.pid), time.monotonic() + delay_s
        while time.monotonic() < deadline and cli.poll() is None:
            seen |= set(root.children(recursive=True))
            time.sleep(0.1)
        assert cli.poll() is None, cli.communicate()[1]
        who, victims = _victims(root, rng)
        killed_at = time.monotonic()
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.send_signal(signal.SIGKILL)
        left = _left(seen | set(victims), lambda: time.monotonic() - killed_at > GONE_WITHIN_S)
        gone_after_s = time.monotonic() - killed_at
        with contextlib.suppress(subprocess.TimeoutExpired):
            cli.wait(GONE_WITHIN_S)
        still = cli.poll() is None
        cli.kill()
        said = cli.communicate()[1].strip()
    code = None if root in victims else (-1 if still else cli.returncode)
    error = next((line for line in said.splitlines() if line.startswith("error: ")), "")
    return Kill(round(delay_s, 1), who, len(seen), tuple(left), round(gone_after_s, 1), code, error)


def _victims(root: psutil.Process, rng: random.Random) -> tuple[str, list[psutil.Process]]:
    """A choice among what runs now."""
    guards = root.children()
    servers = [p for guard in guards for p in guard.children() if "outrider.core.guard" not in p.cmdline()]
    # not its helpers: it may well live without one
    engine = servers + [p for server in servers for p in server.children(recursive=True) if "VLLM::" in " ".join(p.cmdline())]
    choices: list[tuple[str, list[psutil.Process]]] = [("the command", [root])]
    if guards:
        choices += [("the guard", guards[:1]), ("command and guard", [root, *guards[:1]])]
    choices += [(f"the engine's process {number + 1} of {len(engine)}", [process]) for number, process in enumerate(engine)]
    return rng.choice(choices)


def _left(processes: set[psutil.Process], is_late: Callable[[], bool]) -> list[str]:
    """What is still alive of them, or in one of their sessions, when it is late; returns at once when nothing is."""
    sessions = set()
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            sessions.add(os.getsid(process.pid))
    sessions.discard(os.getsid(0))
    while True:
        alive = [p for p in psutil.process_iter() if p in processes or _session_of(p) in sessions]
        alive = [p for p in alive if p.is_running() and _status_of(p) != psutil.STATUS_ZOMBIE]
        if not alive or is_late():
            return [str(process) for process in alive]
        time.sleep(0.1)


def _session_of(process: psutil.Process) -> int | None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        return os.getsid(process.pid)
    return None


def _status_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return str(process.status())
    return str(psutil.STATUS_ZOMBIE)


def _page(kills: list[Kill]) -> str:
    rows = "".join(
        f"| {k.after_s} | {k.who} | {k.num_processes} | {len(k.left)} | {k.gone_after_s} | "
        f"{'killed' if k.exit_code is None else k.exit_code} | {k.said.removeprefix('error: ')[:90]} |\n"
        for k in kills
    )
    return (
        "# Kills while real vLLM runs\n\n`make proofs`: `outrider measure --engine vllm` on a small target, and SIGKILL at a random "
        f"moment. {sum(k.is_clean for k in kills)} of {len(kills)} kills left nothing and, where the command lived, gave its cause with "
        "exit code 3.\n\n"
        "| after (s) | killed | processes seen | left | gone after (s) | exit code | said |\n|---|---|---|---|---|---|---|\n" + rows
    )
