"""GPU memory against a made-up pynvml, as no GPU is needed for the tests: what the real one says is not shown here."""

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from outrider.core.gpu_memory import gpu_memory


class _NVMLError(Exception):
    pass


def _pynvml(processes: dict[int, list[tuple[int, int | None]]], fails_in: str = "") -> ModuleType:
    module = ModuleType("pynvml")

    def call(name: str, answer: object) -> object:
        def called(*_: object) -> object:
            if name == fails_in:
                raise _NVMLError(f"{name} is not supported")
            return answer(*_) if callable(answer) else answer

        return called

    def running(gpu: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in processes[gpu]]

    answers = {"nvmlInit": None, "nvmlShutdown": None, "nvmlDeviceGetCount": len(processes), "nvmlDeviceGetHandleByIndex": lambda gpu: gpu}
    for name, answer in {**answers, "nvmlDeviceGetComputeRunningProcesses": running, "NVMLError": _NVMLError}.items():
        setattr(module, name, answer if name == "NVMLError" else call(name, answer))
    return module


def test_who_holds_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", _pynvml({0: [(os.getpid(), 2 << 20)], 1: [(1 << 30, None)]}))
    found = gpu_memory()
    mine, unseen = found.holders
    assert (mine.gpu, mine.pid, mine.num_bytes) == (0, os.getpid(), 2 << 20) and "pytest" in mine.command
    assert str(unseen) == f"memory of GPU 1 held by a process that is not to be seen from here (pid {1 << 30})"
    assert found.unknown == "" and found.gpus_of(frozenset({os.getpid()})) == {0} and found.on(frozenset({1})) == (unseen,)


@pytest.mark.parametrize("name", ["nvmlInit", "nvmlDeviceGetComputeRunningProcesses"])
def test_a_driver_that_does_not_tell(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", _pynvml({0: []}, fails_in=name))
    assert f"{name} is not supported" in gpu_memory().unknown


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_memory().unknown == "nvidia-ml-py is not installed"
