"""Signs of life of an engine's processes, workers that died under a live parent, and how long each phase may lack such signs."""

import importlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Final

import psutil

from outrider.engines.log_rules import Phase

# what an idle process does now and then is no work
_CPU_SHARE = 0.05  # of one core, all processes together
_BYTES_PER_S = 100_000.0
_GPU_BYTES = 1 << 20
_EVERY_S = 1.0
_WORKERS_EVERY_S = 0.4
# on a machine with many processes a look takes long, and is taken less often: at most this share of a core, within reason
_COST_SHARE = 0.003
_AT_LEAST_EVERY_S = 5.0
# engines title their workers so, e.g. VLLM::EngineCore, sglang::scheduler_TP0; Ray's own processes come and go
_WORKER: Final = re.compile(r"(?!ray::)\w+::\w")


@dataclass(frozen=True)
class Patience:
    """How long a phase may go on without a sign.

    Attributes:
        silence_s: nothing at all moves: no line, no CPU time, no disk or network, no GPU memory.
        spinning_s: CPU time passes, and nothing else moves.
    """

    silence_s: float
    spinning_s: float


# loading moves bytes whatever the log says; other nodes may join late, and compilers and kernels take their time on the CPU
PATIENCE: Final[Mapping[Phase, Patience]] = {
    "starting": Patience(90, 1800),
    "config": Patience(90, 1800),
    "workers": Patience(300, 1800),
    "target_weights": Patience(90, 3600),
    "drafter_weights": Patience(90, 3600),
    "kv_cache": Patience(90, 1800),
    "compile": Patience(180, 7200),
    "graphs": Patience(120, 3600),
    "serving": Patience(90, 900),
    # a token was asked for; engines' own watchdogs wait 300 s, and a first request may still compile kernels
    "ready": Patience(45, 240),
    "token": Patience(45, 240),
}


@dataclass(frozen=True)
class Pulse:
    """What processes have used by now.

    Attributes:
        cpu_s, moved_bytes: by (pid, start time), since each began; reads and writes, from whatever.
        gpu_bytes: memory in use on all GPUs that can be seen.
    """

    at_s: float
    cpu_s: Mapping[tuple[int, float], float]
    moved_bytes: Mapping[tuple[int, float], int]
    gpu_bytes: int

    def computes_since(self, before: "Pulse") -> bool:
        """Whether CPU time has passed."""
        return _grown(before.cpu_s, self.cpu_s) >= _CPU_SHARE * (self.at_s - before.at_s)

    def moves_since(self, before: "Pulse") -> bool:
        """Whether bytes were read or written, or memory of a GPU was taken or given back."""
        moved = _grown(before.moved_bytes, self.moved_bytes)
        return moved >= _BYTES_PER_S * (self.at_s - before.at_s) or abs(self.gpu_bytes - before.gpu_bytes) >= _GPU_BYTES


def _grown(before: Mapping[tuple[int, float], float], now: Mapping[tuple[int, float], float]) -> float:
    return sum(value - before.get(key, 0) for key, value in now.items())


@dataclass
class Life:
    """Since when an engine's processes have shown no sign of life.

    Attributes:
        lost_worker: the title of a worker that was there and is gone; empty if there is none.

    Args:
        pid: the process at the top; None if only the log is known.
        now_s: the time, on the clock of all other times here.
    """

    pid: int | None
    now_s: float
    lost_worker: str = ""
    _pulse: Pulse | None = None
    _pulse_due_s: float = 0.0
    _workers_due_s: float = 0.0
    _workers: dict[psutil.Process, str] = field(default_factory=dict)
    _gpus: "_Gpus" = field(default_factory=lambda: _Gpus())

    def __post_init__(self) -> None:
        self._alive_s = self._moved_s = self.now_s

    def note_log(self, now_s: float) -> None:
        """The log told something new."""
        self._alive_s = self._moved_s = now_s

    def silent_for_s(self, now_s: float) -> float:
        """How long nothing at all has moved."""
        return now_s - self._alive_s

    def spinning_for_s(self, now_s: float) -> float:
        """How long at most CPU time has passed."""
        return now_s - self._moved_s

    def look(self, now_s: float) -> None:
        """See whether the workers are there, and take a pulse, if it is time to."""
        if self.pid is None:
            return
        if now_s >= self._workers_due_s:
            self.lost_worker = next((title for worker, title in self._workers.items() if not is_alive(worker)), "")
            self._workers_due_s = now_s + _WORKERS_EVERY_S
        if now_s >= self._pulse_due_s:
            self._feel(self.pid, now_s)

    def _feel(self, pid: int, now_s: float) -> None:
        began_s = time.thread_time()
        pulse, before = self._taken(pid, now_s), self._pulse
        if before and pulse.moves_since(before):
            self._alive_s = self._moved_s = now_s
        elif before and pulse.computes_since(before):
            self._alive_s = now_s
        self._pulse = pulse
        self._pulse_due_s = now_s + min(_AT_LEAST_EVERY_S, max(_EVERY_S, (time.thread_time() - began_s) / _COST_SHARE))

    def _taken(self, pid: int, now_s: float) -> Pulse:
        cpu_s: dict[tuple[int, float], float] = {}
        moved: dict[tuple[int, float], int] = {}
        for process in tree(pid):
            try:
                key = (process.pid, process.create_time())
                with process.oneshot():
                    times = process.cpu_times()
                    cpu_s[key] = times.user + times.system
                    moved[key] = _moved_bytes(process)
                    self._note_worker(process)
            except psutil.Error:  # it has just ended
                continue
        return Pulse(now_s, cpu_s, moved, self._gpus.used_bytes())

    def _note_worker(self, process: psutil.Process) -> None:
        if process not in self._workers and process.pid != self.pid:
            title = (process.cmdline() or [""])[0]
            if _WORKER.match(title):
                self._workers[process] = title.split()[0]


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def tree(pid: int) -> list[psutil.Process]:
    """A process and all below it; empty if it is gone."""
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.Error:
        return []


def _moved_bytes(process: psutil.Process) -> int:
    try:
        io = process.io_counters()
    except (psutil.Error, AttributeError, NotImplementedError):  # another user's process; a system that does not count
        return 0
    # from the page cache or a pipe, and from the disk by a mapped file
    return sum(getattr(io, name, 0) for name in ("read_chars", "write_chars", "read_bytes", "write_bytes"))


class _Gpus:
    """Memory in use on NVIDIA GPUs, where nvidia-ml-py and a driver are there."""

    def __init__(self) -> None:
        self._nvml: ModuleType | None = None
        self._devices: list[object] = []
        try:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            self._devices = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(self._nvml.nvmlDeviceGetCount())]
        except Exception:  # its own errors are a class of a module that may be missing
            self._devices = []

    def used_bytes(self) -> int:
        """On all of them together; 0 if none can be seen."""
        try:
            return sum(self._nvml.nvmlDeviceGetMemoryInfo(device).used for device in self._devices) if self._nvml else 0
        except Exception:
            return 0
