"""Signs of life of real processes: what works, what spins, what sleeps; and what is judged by them."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from outrider.engines.liveness import PATIENCE, Life, Pulse, is_alive, tree
from outrider.engines.log_rules import PHASES
from outrider.engines.probing import Probe, Seen
from outrider.engines.verdicts import Judge

_SPIN = "while True: pass"
_SLEEP = "import time; time.sleep(60)"
# little CPU time, much of it read
_LOAD = "import sys, time\nwhile True: open(sys.argv[1], 'rb').read(); time.sleep(0.2)"


@contextmanager
def _running(code: str, *arguments: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-S", "-c", code, *arguments]) as process:
        time.sleep(0.3)  # its own start is a sign of life
        try:
            yield process.pid
        finally:
            process.kill()


def _watched(pid: int, for_s: float) -> tuple[float, float]:
    """How long it has been silent, and at most spinning, after this time."""
    life = Life(pid, time.monotonic())
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        life.look(time.monotonic())
        time.sleep(0.1)
    return life.silent_for_s(time.monotonic()), life.spinning_for_s(time.monotonic())


def test_what_sleeps_shows_no_sign() -> None:
    with _running(_SLEEP) as pid:
        silent_s, spinning_s = _watched(pid, 3.0)
    assert silent_s >= 2.9 and spinning_s >= 2.9


def test_what_computes_lives_and_does_not_move() -> None:
    with _running(_SPIN) as pid:
        silent_s, spinning_s = _watched(pid, 3.0)
    assert silent_s < 2.0
    assert spinning_s >= 2.9


def test_what_reads_lives_and_moves(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_bytes(bytes(1 << 20))
    with _running(_LOAD, str(weights)) as pid:
        silent_s, spinning_s = _watched(pid, 3.0)
    assert silent_s < 2.0 and spinning_s < 2.0


def test_a_child_of_a_child_counts() -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', '{_SPIN}'])"
    with _running(code) as pid:
        try:
            assert len(tree(pid)) == 2
            silent_s, _ = _watched(pid, 2.5)
        finally:
            for child in tree(pid)[1:]:
                child.kill()
    assert silent_s < 2.0


@pytest.mark.parametrize(("title", "is_worker"), [("VLLM::Worker_TP0", True), ("sglang::scheduler_TP0", True), ("gcc", False)])
def test_a_worker_that_dies_is_missed_and_a_compiler_is_not(title: str, is_worker: bool) -> None:
    code = f"""
import subprocess, sys, time
child = subprocess.Popen(["{title}", "-S", "-c", "import time; time.sleep(60)"], executable=sys.executable)
time.sleep(60)
"""
    with _running(code) as pid:
        life = Life(pid, time.monotonic())
        life.look(time.monotonic())
        assert not life.lost_worker
        child = tree(pid)[1]
        child.kill()  # nobody waits for it: a zombie is left
        time.sleep(0.5)
        life.look(time.monotonic())
        assert child.is_running() and not is_alive(child)
        assert life.lost_worker == (title if is_worker else "")


def test_a_look_at_a_process_that_is_gone() -> None:
    with _running("pass") as pid:
        pass
    life = Life(pid, 0.0)
    life.look(10.0)
    life.look(20.0)
    assert life.silent_for_s(20.0) == 20.0


def test_memory_of_a_gpu_is_a_sign() -> None:
    still, loading = Pulse(0.0, {}, {}, 10 << 30), Pulse(1.0, {}, {}, 11 << 30)
    assert loading.moves_since(still)
    assert not Pulse(1.0, {}, {}, 10 << 30).moves_since(still)


def test_each_phase_has_its_patience() -> None:
    assert set(PATIENCE) == set(PHASES)
    # an engine's own watchdog ends it after 300 s
    assert PATIENCE["ready"].silence_s < PATIENCE["ready"].spinning_s < 300
    assert all(patience.silence_s <= patience.spinning_s for patience in PATIENCE.values())


class _Told(Probe):
    """A probe that has seen what a test says."""

    def __init__(self, seen: Seen, made: list[float | None]) -> None:
        self.seen, self._made = seen, made

    def tokens_made(self) -> float | None:
        return self._made.pop(0) if len(self._made) > 1 else self._made[0]


def _judged(seen: Seen, life: Life, made: list[float | None], times_s: range) -> tuple[int, str] | None:
    """When what is found."""
    judge = Judge(life, _Told(seen, made))
    for now_s in times_s:
        if verdict := judge.suspicion(float(now_s), "serving", True, "the last line"):
            return now_s, verdict.state
    return None


def test_a_token_that_does_not_come() -> None:
    """Asleep: soon. Spinning: a compiler is given its time. Elsewhere: nobody knows which."""
    asleep, spinning, elsewhere = Life(psutil.Process().pid, 0.0), Life(psutil.Process().pid, 0.0), Life(None, 0.0)
    spinning._alive_s = 1e9
    assert _judged(Seen("asked", 0.0), asleep, [None], range(300)) == (51, "hung")
    assert _judged(Seen("asked", 0.0), spinning, [None], range(300)) == (246, "hung")
    assert _judged(Seen("asked", 0.0), elsewhere, [None], range(300)) == (246, "hung")


def test_a_server_that_is_busy_with_others_does_not_hang() -> None:
    pid = psutil.Process().pid
    assert _judged(Seen("asked", 0.0), Life(pid, 0.0), [float(n) for n in range(1000)], range(300)) is None
    found = _judged(Seen("asked", 0.0), Life(pid, 0.0), [1.0, 2.0, 2.0], range(300))
    assert found is not None and found[1] == "hung" and found[0] == 102


def test_a_server_that_was_well_and_is_not() -> None:
    pid = psutil.Process().pid
    assert _judged(Seen("silent", 0.0, "/health did not answer within 30 s"), Life(pid, 0.0), [None], range(300)) == (46, "hung")
    assert _judged(Seen("closed", 0.0), Life(None, 0.0), [None], range(300)) == (46, "failed")
    assert _judged(Seen("answered", 0.0), Life(pid, 0.0), [None], range(300)) is None


def test_a_start_elsewhere_is_not_judged_by_its_silence() -> None:
    """Whether it works cannot be seen: a log that does not grow while 500 GB are loaded is no hang."""
    assert Judge(Life(None, 0.0), None).suspicion(1e6, "target_weights", False, "") is None
    here = Judge(Life(psutil.Process().pid, 0.0), None).suspicion(1e6, "target_weights", False, "")
    assert here is not None and here.id == "hung"
