"""How soon a decisive line is a verdict while 10,000 lines a second are written, and what watching costs while nothing is written."""

import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil

from outrider.core.shell import GuardedProcess
from outrider.engines.log_reader import LogReader
from outrider.engines.log_source import LocalLog
from outrider.engines.probing import Probe
from outrider.engines.serving import free_port
from outrider.engines.vllm.log_rules import LOG
from outrider.engines.watching import Watched, Watcher, watched_of

NUM_TRIALS = 100
LINES_PER_S = 10_000
IDLE_S = 30.0
LIMIT_S, LIMIT_SHARE = 1.0, 0.01

# what engines write; then one line, with its time in a file, or the end of the process
_WRITER = """
import os, sys, time
delay_s, mark, decisive, lines_per_s = float(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
began, written, said = time.monotonic(), 0, False
while time.monotonic() - began < delay_s + 30:
    due = int((time.monotonic() - began) * lines_per_s)
    sys.stdout.write("".join(
        f"(APIServer pid=71) INFO:     127.0.0.1:{n} - \\"POST /v1/completions HTTP/1.1\\" 200 OK\\n" for n in range(written, due)))
    sys.stdout.flush()
    written = due
    if not said and time.monotonic() - began > delay_s:
        said = True
        with open(mark, "w") as file:
            file.write(f"{time.monotonic()} {written}")
        if not decisive:
            os.kill(os.getpid(), 9)
        sys.stdout.write(decisive.replace("|", "\\n") + "\\n")
        sys.stdout.flush()
    time.sleep(0.01)
"""
_DECISIVE = {
    "a fatal line": "(EngineCore pid=9) ERROR 12-01 11:57:47 [multiproc_executor.py:273] Worker proc VllmWorker-0 died unexpectedly "
    "(exit code: -9), shutting down executor.",
    "a traceback, then a fatal line": "(EngineCore pid=9) ERROR 12-01 11:57:47 [core.py:1] Traceback (most recent call last):|"
    '(EngineCore pid=9) ERROR 12-01 11:57:47 [core.py:1]   File "/x/vllm/v1/core.py", line 3, in run|'
    "(EngineCore pid=9) ERROR 12-01 11:57:47 [core.py:1] torch.OutOfMemoryError: CUDA out of memory.|"
    "(EngineCore pid=9) ERROR 12-01 11:57:47 [core.py:2] EngineCore encountered a fatal error.",
    "a fatal line, then a traceback": "(EngineCore pid=9) ERROR 12-01 11:57:47 [core.py:2] EngineCore encountered a fatal error.|"
    "(EngineCore pid=9) ERROR 12-01 11:57:47 [core.py:2] Traceback (most recent call last):|"
    '(EngineCore pid=9) ERROR 12-01 11:57:47 [core.py:2]   File "/x/vllm/v1/core.py", line 3, in run|'
    "(EngineCore pid=9) ERROR 12-01 11:57:47 [core.py:2] torch.OutOfMemoryError: CUDA out of memory.",
    "the process is killed": "",
}
_WORKERS = """
import subprocess, sys, time
for rank in range(8):
    subprocess.Popen([f"VLLM::Worker_TP{rank}", "-S", "-c", "import time; time.sleep(600)"], executable=sys.executable)
time.sleep(600)
"""

_PAGE = """# Watching

`make proofs` wrote this page: {system}, {cores} cores, load {load:.1f} as it began.

## From the decisive line to the verdict

An engine that is a script writes {rate:,} lines a second ({measured:,.0f} were measured), and at a random moment what is told in
the first column; {trials} times each. Log and process are watched as `outrider serve` does.

| decisive | median (s) | p99 (s) | longest (s) | right verdict |
|---|---|---|---|---|
{latencies}

## While nothing is written

CPU time of the watching process over {idle_s:.0f} s, as a share of one core; {processes} processes ran on the machine.

| watched | share of a core |
|---|---|
{costs}
"""


def main(out_folder: Path) -> None:
    """Write `out_folder`/watching.md; ends with an error if a limit is not kept."""
    load, rng = os.getloadavg()[0], random.Random(5)
    trials = {what: [_trial(decisive, rng) for _ in range(NUM_TRIALS)] for what, decisive in _DECISIVE.items()}
    delays = {what: sorted(delay for delay, _, _ in found) for what, found in trials.items()}
    num_right = {what: sum(right for _, _, right in found) for what, found in trials.items()}
    costs = {what: cost() for what, cost in _COSTS.items()}
    rows = [
        f"| {what} | {d[len(d) // 2]:.2f} | {_p99(d):.2f} | {d[-1]:.2f} | {num_right[what]} of {len(d)} |" for what, d in delays.items()
    ]
    rates = [rate for found in trials.values() for _, rate, _ in found]
    page = _PAGE.format(
        system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        cores=os.cpu_count(),
        load=load,
        rate=LINES_PER_S,
        measured=sum(rates) / len(rates),
        trials=NUM_TRIALS,
        latencies="\n".join(rows),
        idle_s=IDLE_S,
        processes=len(psutil.pids()),
        costs="\n".join(f"| {what} | {share:.2%} |" for what, share in costs.items()),
    )
    (out_folder / "watching.md").write_text(page, encoding="utf-8")
    print(page)
    slow = [what for what, d in delays.items() if _p99(d) > LIMIT_S or num_right[what] < len(d)]
    dear = [what for what, share in costs.items() if share >= LIMIT_SHARE]
    if slow or dear:
        raise SystemExit(f"limits are not kept: {slow + dear}")


def _p99(ordered: list[float]) -> float:
    return ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]


def _trial(decisive: str, rng: random.Random) -> tuple[float, float, bool]:
    """Seconds from the line to the verdict, lines a second, whether the verdict is right."""
    with tempfile.TemporaryDirectory() as folder:
        log, mark, delay_s = Path(folder) / "log", Path(folder) / "mark", rng.uniform(0.3, 0.9)
        command = [sys.executable, "-S", "-c", _WRITER, str(delay_s), str(mark), decisive, str(LINES_PER_S)]
        with GuardedProcess("writer", command, log, os.environ) as process:
            watcher = _watcher(process)
            while not watcher.verdict:
                watcher.step()
                if watcher.is_idle:
                    time.sleep(0.1)
            now_s = time.monotonic()
        at_s, written = (float(value) for value in mark.read_text().split())
    expected = "out of memory" if "Traceback" in decisive else "VllmWorker-0 died" if decisive else "exit code 137"
    return now_s - at_s, written / delay_s, expected in watcher.verdict.cause


def _watcher(process: GuardedProcess) -> Watcher:
    return Watcher(watched_of(process, LOG))


def _cost_of(watcher: Watcher) -> float:
    """CPU time while it watches, as a share of one core."""
    deadline, before = time.monotonic() + IDLE_S, time.process_time()
    while time.monotonic() < deadline:
        watcher.step()
        time.sleep(0.1)
    return (time.process_time() - before) / IDLE_S


def _cost_of_a_log() -> float:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        log.write_text("(APIServer pid=71) INFO:     Application startup complete.\n")
        return _cost_of(Watcher(Watched("engine", str(log), LocalLog(log), LogReader(LOG))))


def _cost_of_processes() -> float:
    with tempfile.TemporaryDirectory() as folder, GuardedProcess("x", _workers(), Path(folder) / "log", os.environ) as process:
        return _cost_of(_watcher(process))


def _cost_of_a_start() -> float:
    """Nothing listens yet."""
    with ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log"
        process = stack.enter_context(GuardedProcess("x", _workers(), log, os.environ))
        probe = stack.enter_context(Probe(f"http://127.0.0.1:{free_port()}"))
        return _cost_of(Watcher(watched_of(process, LOG, probe=probe)))


def _workers() -> list[str]:
    return [sys.executable, "-S", "-c", _WORKERS]


_COSTS: dict[str, Callable[[], float]] = {
    "a log": _cost_of_a_log,
    "a log and 9 processes": _cost_of_processes,
    "a log, 9 processes and a port that is closed yet": _cost_of_a_start,
}
