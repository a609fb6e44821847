"""Whose memory lies on the GPUs of this machine, by nvidia-ml-py where that is installed and there is a GPU."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

from outrider.inside.owned_processes import command_of

_MIB = 1 << 20


@dataclass(frozen=True)
class Holder:
    """A process with memory on a GPU; `num_bytes` is None where the driver does not tell."""

    gpu: int
    pid: int
    command: str
    num_bytes: int | None

    def __str__(self) -> str:
        size = "memory" if self.num_bytes is None else f"{self.num_bytes // _MIB} MiB"
        return f"{size} of GPU {self.gpu} held by {self.command or 'a process that is not to be seen from here'} (pid {self.pid})"


@dataclass(frozen=True)
class GpuMemory:
    """What was found.

    Attributes:
        holders: all processes with memory on any GPU.
        unknown: why that cannot be told; empty if it can.
    """

    holders: tuple[Holder, ...] = ()
    unknown: str = ""

    def on(self, gpus: frozenset[int]) -> tuple[Holder, ...]:
        """Those with memory on some GPUs."""
        return tuple(holder for holder in self.holders if holder.gpu in gpus)

    def gpus_of(self, pids: frozenset[int]) -> frozenset[int]:
        """The GPUs on which some processes have memory."""
        return frozenset(holder.gpu for holder in self.holders if holder.pid in pids)


def gpu_memory() -> GpuMemory:
    """Who holds memory on the GPUs of this machine now.

    In a container the driver tells the numbers that processes have outside of it, if it tells any: those are not ours to see.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return GpuMemory(unknown="nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return GpuMemory(unknown=f"no GPU can be asked: {error}")
    try:
        return GpuMemory(tuple(_holders(nvml)))
    except nvml.NVMLError as error:
        return GpuMemory(unknown=f"the GPUs do not tell who holds their memory: {error}")
    finally:
        nvml.nvmlShutdown()


def _holders(nvml: ModuleType) -> Iterator[Holder]:
    for gpu in range(nvml.nvmlDeviceGetCount()):
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(gpu)):
            yield Holder(gpu, process.pid, command_of(process.pid), process.usedGpuMemory)
