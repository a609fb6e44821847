"""`outrider ps` and `outrider stop` on servers of a scripted engine."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.fake_engine import FAKE_SERVER, comes_true, processes_of, start_fake
from outrider.core.files import write_json
from outrider.core.gpu_memory import GpuMemory, Holder
from outrider.engines.server_records import servers, write
from outrider.engines.servers import state, stop
from outrider.engines.serving import free_port
from pipeline.jobs import outrider


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    home = str(tmp_path / "home")
    monkeypatch.setenv("OUTRIDER_HOME", home)
    yield
    monkeypatch.setenv("OUTRIDER_HOME", home)
    for server in servers():
        stop(server, 0.0)


def test_without_servers() -> None:
    done = outrider("ps")
    assert (done.returncode, done.stdout, done.stderr) == (0, "none\n", "")


def test_servers_are_listed_and_stopped(tmp_path: Path) -> None:
    one, other = start_fake(tmp_path / "one"), start_fake(tmp_path / "other")
    assert comes_true(lambda: {state(one).state, state(other).state} == {"ready"})
    listed = outrider("ps").stdout.splitlines()
    assert listed[0].split() == ["id", "state", "engine", "target", "drafter", "where", "age", "processes", "log"]
    assert listed[1].split()[:7] == [one.id, "ready", "fake", "1", "SmolLM2-135M-Instruct", "none", f"127.0.0.1:{one.port}"]
    assert listed[1].endswith(f"5          {one.log}") and listed[2].startswith(other.id) and len(listed) == 3
    rows = [json.loads(line) for line in outrider("ps", "--json").stdout.splitlines()]
    assert [(row["id"], row["state"], len(row["processes"])) for row in rows] == [(one.id, "ready", 5), (other.id, "ready", 5)]
    done = outrider("stop", one.id, other.id[-4:])
    assert done.returncode == 0, done.stderr
    assert f"{one.id}: 5 processes ended; nothing is left; port {one.port} is closed" in done.stdout
    assert processes_of(one.port) == processes_of(other.port) == [] and servers() == []
    assert outrider("ps").stdout == "none\n"


def test_a_deadline(tmp_path: Path) -> None:
    server = start_fake(tmp_path / "log", ["--ignores-term"])
    assert comes_true(lambda: state(server).state == "ready")
    assert "5 processes ended, 5 of them killed at the deadline" in outrider("stop", server.id, "--deadline", "0.5").stdout


def test_a_name_that_no_server_has() -> None:
    done = outrider("stop", "vllm-x-0000")
    assert done.returncode == 2 and done.stderr.startswith("error: no server is named 'vllm-x-0000'")
    assert "outrider ps" in done.stderr and "Traceback" not in done.stderr


def test_a_server_that_has_failed_says_how(tmp_path: Path) -> None:
    server = start_fake(tmp_path / "log", ["--dies-after", "0"])
    assert comes_true(lambda: state(server).processes == () and processes_of(server.port) == [])
    listed = outrider("ps").stdout
    assert f"{server.id}  failed" in listed and f"{server.id}: it ended with exit code 1" in listed
    done = outrider("stop", server.id)
    assert (done.returncode, done.stdout) == (0, f"{server.id}: no process of it was left; its record is removed\n")


def test_what_a_killed_command_has_left_on_record_is_listed_once(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, str(FAKE_SERVER.with_name("fake_engine.py")), "attached", str(port), str(tmp_path / "log")]
    with subprocess.Popen(command) as killed:
        assert comes_true(lambda: [server.first is not None for server in servers()] == [True], 40.0)
        killed.kill()
    (server,) = servers()
    assert comes_true(lambda: state(server).state == "gone" and processes_of(port) == [])
    assert f"{server.id}  gone" in outrider("ps").stdout
    assert outrider("ps").stdout == "none\n"


def test_a_record_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "home" / "servers" / "x.json"
    write_json(path, {"id": "x"})
    done = outrider("ps")
    assert done.stdout == "none\n" and f"warning: {path} cannot be read" in done.stderr and done.returncode == 0


def test_who_holds_gpu_memory_afterwards_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is made up here: what it says goes through to the user."""
    server = start_fake(tmp_path / "log")
    assert comes_true(lambda: state(server).state == "ready")
    pid = processes_of(server.port)[0].pid
    other = Holder(0, 77, "python train.py", 3 << 30)
    answers = [GpuMemory((Holder(0, pid, "fake", 1 << 30), other, Holder(1, 78, "elsewhere", 1))), GpuMemory((other,))]
    monkeypatch.setattr("outrider.engines.servers.gpu_memory", lambda: answers.pop(0))
    stopped = stop(server, 5.0)
    assert stopped.memory == (other,) and stopped.memory_unknown == ""
    assert str(other) == "3072 MiB of GPU 0 held by python train.py (pid 77)"
    write(server)
    monkeypatch.setattr("outrider.engines.servers.gpu_memory", lambda: GpuMemory(unknown="no GPU"))
    assert stop(server, 0.1).memory_unknown == "no GPU"
