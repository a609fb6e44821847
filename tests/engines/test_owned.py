"""Servers that outlive the command: found again and ended whole, whoever was killed. Workers leave the session on purpose."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from engines.fake_engine import ENVIRONMENT, FAKE_SERVER, comes_true, processes_of, role_of, start_fake
from outrider.core.errors import InputError
from outrider.core.ssh import EXTRA_OPTIONS, Host
from outrider.engines.server_records import Server, damaged, server_named, servers, write
from outrider.engines.servers import state, stop
from outrider.engines.serving import free_port
from outrider.inside.owned_processes import MARK, Owned, Process, marked, process_of, send
from sshd import Sshd, sshd

__all__ = ["sshd"]
_NUM_PROCESSES = 4  # a parent, two workers, one that leaves
_WITH_KEEPER = _NUM_PROCESSES + 1


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home of its own; what a test that failed has left is ended."""
    home = str(tmp_path / "home")
    monkeypatch.setenv("OUTRIDER_HOME", home)
    yield
    monkeypatch.setenv("OUTRIDER_HOME", home)
    for server in servers():
        if not server.is_of_another_node:
            stop(server, 0.0)


def _ready(server: Server) -> bool:
    """Listens, and its workers are where they mean to be."""
    return comes_true(lambda: state(server).state == "ready" and Path(server.log).read_text().count("is pid") == _NUM_PROCESSES - 1)


def _started() -> bool:
    """Whether there is one record, and it is complete."""
    return [server.first is not None for server in servers()] == [True]


def _is_closed(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _kill(port: int, role: str) -> None:
    next(process for process in processes_of(port) if role_of(process) == role).kill()


def test_a_server_outlives_the_command_and_is_stopped_by_its_record(tmp_path: Path) -> None:
    log, port = tmp_path / "log", free_port()
    code = f"from engines.fake_engine import *; start_fake(Path({str(log)!r}), port={port})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=FAKE_SERVER.parents[1])
    (server,) = servers()
    assert server.id.startswith("fake-smollm2-") and server.is_detached and server.port == port and server.log == str(log)
    assert _ready(server)
    leaver = next(process for process in processes_of(port) if role_of(process) == "leaver")
    assert os.getsid(leaver.pid) != server.session
    assert {process.pid for process in state(server).processes} == {p.pid for p in processes_of(port)} | {server.session}
    stopped = stop(server, 10.0)
    assert len(stopped.ended) == _WITH_KEEPER and not stopped.killed and stopped.is_whole and stopped.port_holder is None
    assert processes_of(port) == [] and _is_closed(port) and servers() == []
    assert list((tmp_path / "home" / "servers").iterdir()) == []
    assert "ready" in log.read_text()


def test_the_record_is_there_before_the_start_and_whole_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before: list[Server] = []

    def crash(*_: object, **__: object) -> None:
        before.extend(servers())
        raise ZeroDivisionError

    monkeypatch.setattr("outrider.engines.servers.Machine.start", crash)
    with pytest.raises(ZeroDivisionError):  # as a crash does: nothing is tidied up
        start_fake(tmp_path / "log")
    monkeypatch.undo()
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    (server,) = servers()
    assert before == [server] and server.first is None
    assert state(server).state == "starting"  # this process, which started it, is still there
    write(server.model_copy(update={"by": (server.by[0], server.by[1] + 1)}))
    (server,) = servers()
    assert state(server).state == "gone"
    assert stop(server, 1.0).ended == () and servers() == []


def test_a_server_that_does_not_end_is_killed_at_the_deadline(tmp_path: Path) -> None:
    server = start_fake(tmp_path / "log", ["--ignores-term"])
    assert _ready(server)
    began = time.monotonic()
    stopped = stop(server, 1.0)
    assert time.monotonic() - began < 10
    assert len(stopped.killed) == _WITH_KEEPER and stopped.is_whole
    assert processes_of(server.port) == [] and _is_closed(server.port)


@pytest.mark.parametrize("role", ["parent", "worker", "leaver"])
def test_a_process_that_is_killed_takes_the_rest_with_it_and_is_told(tmp_path: Path, role: str) -> None:
    """The keeper ends what the parent leaves behind, and notes the exit code."""
    server = start_fake(tmp_path / "log", ["--wipes-environment"])
    assert _ready(server)
    _kill(server.port, role)
    assert comes_true(lambda: processes_of(server.port) == [])
    assert comes_true(lambda: state(server).processes == ())
    how = state(server)
    assert (how.state, how.detail) == ("failed", f"it ended with exit code {137 if role == 'parent' else 1}")
    assert stop(server, 1.0).ended == () and servers() == []


def test_a_server_whose_keeper_is_killed_runs_on_and_is_stopped_whole(tmp_path: Path) -> None:
    server = start_fake(tmp_path / "log")
    assert _ready(server) and server.session
    os.kill(server.session, signal.SIGKILL)
    assert comes_true(lambda: process_of(server.session or 0) is None)
    assert state(server).state == "ready"
    assert len(stop(server, 5.0).ended) == _NUM_PROCESSES
    assert processes_of(server.port) == []


def test_a_keeper_that_is_asked_to_end_ends_the_server(tmp_path: Path) -> None:
    server = start_fake(tmp_path / "log")
    assert _ready(server) and server.session
    os.kill(server.session, signal.SIGTERM)
    assert comes_true(lambda: processes_of(server.port) == [] and process_of(server.session or 0) is None)


def test_workers_without_parent_and_keeper_are_found(tmp_path: Path) -> None:
    """One of them is in no session of ours, and nobody's child."""
    server = start_fake(tmp_path / "log")
    assert _ready(server) and server.session
    os.kill(server.session, signal.SIGKILL)
    _kill(server.port, "parent")
    assert comes_true(lambda: len(processes_of(server.port)) == _NUM_PROCESSES - 1)
    how = state(server)
    assert (how.state, how.detail) == ("failed", "3 processes are left")
    assert len(stop(server, 5.0).ended) == 3
    assert processes_of(server.port) == []


def test_a_worker_that_has_wiped_its_environment_is_known_from_before(tmp_path: Path) -> None:
    server = start_fake(tmp_path / "log", ["--wipes-environment"])
    assert _ready(server) and server.session
    leaver = next(process for process in processes_of(server.port) if role_of(process) == "leaver")
    assert MARK not in leaver.environ()
    assert comes_true(lambda: leaver.pid in {pid for pid, _ in json.loads(Path(server.state_path).read_text())["seen"]})
    os.kill(server.session, signal.SIGKILL)
    for role in ("parent", "worker", "worker"):
        _kill(server.port, role)
    assert comes_true(lambda: processes_of(server.port) == [leaver])
    assert [process.pid for process in stop(server, 5.0).ended] == [leaver.pid]


def test_a_server_that_closes_its_port_has_failed(tmp_path: Path) -> None:
    server = start_fake(tmp_path / "log", ["--load-s", "2", "--closes-port-after", "5"])
    assert state(server).state == "starting"
    assert _ready(server)
    assert comes_true(lambda: state(server).detail == "its port is closed")
    assert state(server).state == "failed" and len(processes_of(server.port)) == _NUM_PROCESSES
    assert stop(server, 5.0).is_whole


def test_a_number_that_another_process_has_taken_over_is_not_ours(tmp_path: Path) -> None:
    """The record names this very process, with another start time: it must not be listed, and above all not be ended."""
    server = start_fake(tmp_path / "log")
    me = process_of(os.getpid())
    assert me and stop(server, 5.0).is_whole
    recycled = server.model_copy(update={"first": (me.pid, me.started - 1), "session": me.session})
    write(recycled)
    assert state(recycled).processes == ()
    assert stop(recycled, 0.1).ended == ()


def test_a_start_time_of_before_a_restart_means_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as sleeper:
        process = process_of(sleeper.pid)
        assert process
        server = start_fake(tmp_path / "log")
        assert stop(server, 5.0).is_whole
        before = server.model_copy(update={"first": process[:2], "boot": "another"})
        write(before)
        assert state(before).state == "gone" and stop(before, 0.1).ended == ()
        write(same := server.model_copy(update={"first": process[:2]}))  # the sound counterpart: that one is found
        assert [found.pid for found in stop(same, 5.0).ended] == [sleeper.pid]


def test_a_signal_goes_to_that_process_only() -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        process = process_of(sleeper.pid)
        assert process
        send(process._replace(started=process.started - 1), signal.SIGKILL)
        assert process_of(sleeper.pid) == process
        send(process, signal.SIGKILL)
    assert sleeper.returncode == -signal.SIGKILL
    send(Process(process.pid, process.started, 1, 1), signal.SIGKILL)  # gone: nothing happens


def test_who_has_a_mark_is_known_by_the_whole_of_it() -> None:
    commands = {mark: subprocess.Popen(["sleep", "60"], env=marked(mark), start_new_session=True) for mark in ("x/1", "x/12")}
    try:
        assert comes_true(lambda: [process.pid for process in Owned("x/1", set()).alive()] == [commands["x/1"].pid])
        assert Owned("x/", set()).alive() == []
    finally:
        for process in commands.values():
            process.kill()
            process.wait()


def test_a_title_over_the_environment_does_not_hide_the_mark(vllm_python: str) -> None:
    """Real setproctitle, as vLLM and SGLang name their workers with it."""
    code = "import setproctitle, time; setproctitle.setproctitle('VLLM::EngineCore'); time.sleep(60)"
    environments = {"kept": marked("t/1"), "wiped": {MARK: "t/2"}}
    started = [subprocess.Popen([vllm_python, "-c", code], env=env, start_new_session=True) for env in environments.values()]
    try:
        assert comes_true(lambda: all(psutil.Process(process.pid).cmdline()[0] == "VLLM::EngineCore" for process in started))
        assert [process.pid for process in Owned("t/1", set()).alive()] == [started[0].pid]
        assert Owned("t/2", set()).alive() == []  # without the variable it would be lost
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.fixture
def vllm_python(vllm: object) -> str:
    return str(vllm.python)  # type: ignore[attr-defined]


def test_a_port_that_is_taken_is_refused_and_told_by_whom(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} is taken") as caught:
            start_fake(tmp_path / "log", port=port)
    assert f"(pid {os.getpid()})" in caught.value.evidence and servers() == []


def test_a_command_that_cannot_be_started_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.fake_engine.sys.executable", "/nowhere/python")
    with pytest.raises(InputError) as caught:
        start_fake(tmp_path / "log")
    assert "/nowhere/python" in caught.value.evidence
    assert list((tmp_path / "home" / "servers").iterdir()) == []


def test_a_log_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as caught:
        start_fake(tmp_path / "file" / "log")
    assert str(tmp_path / "file") in caught.value.evidence
    assert servers() == []


def test_an_attached_server_has_a_record_while_it_runs(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    command = [sys.executable, str(FAKE_SERVER.with_name("fake_engine.py")), "attached", str(port), str(log), "--wipes-environment"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as outrider:
        assert comes_true(lambda: _started() and _ready(servers()[0]), 40.0)
        (server,) = servers()
        assert not server.is_detached and server.by[0] == outrider.pid
        outrider.send_signal(signal.SIGINT)
    assert comes_true(lambda: processes_of(port) == []) and servers() == [] and _is_closed(port)


def test_an_attached_server_is_stopped_from_elsewhere(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    command = [sys.executable, str(FAKE_SERVER.with_name("fake_engine.py")), "attached", str(port), str(log)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as outrider:
        assert comes_true(lambda: _started() and _ready(servers()[0]), 40.0)
        assert stop(servers()[0], 10.0).is_whole and processes_of(port) == []
        assert "EngineFailed: engine fake ended with exit code 143" in outrider.communicate(timeout=30)[1]


def test_a_killed_command_leaves_a_record_of_its_attached_server(tmp_path: Path) -> None:
    """And nothing else: its guard ends the server, with the worker that has left and wiped its environment."""
    port, log = free_port(), tmp_path / "log"
    command = [sys.executable, str(FAKE_SERVER.with_name("fake_engine.py")), "attached", str(port), str(log), "--wipes-environment"]
    with subprocess.Popen(command) as outrider:
        assert comes_true(lambda: _started() and _ready(servers()[0]), 40.0)
        outrider.kill()
    assert comes_true(lambda: processes_of(port) == [])
    (server,) = servers()
    assert comes_true(lambda: state(server).state == "gone")
    assert stop(server, 1.0).ended == () and servers() == []


def test_names_of_servers(tmp_path: Path) -> None:
    one, other = start_fake(tmp_path / "1"), start_fake(tmp_path / "2")
    assert server_named(one.id) == one and server_named(one.id[-4:]) == one
    for wrong, said in (
        ("fake-", "several servers are named 'fake-'"),
        ("", "no server is named ''"),
        ("none", "no server is named 'none'"),
    ):
        with pytest.raises(InputError, match=said):
            server_named(wrong)
    assert stop(one, 5.0).is_whole and stop(other, 5.0).is_whole


def test_what_a_command_has_left_that_was_killed_as_it_wrote_goes_with_the_record(tmp_path: Path) -> None:
    server = start_fake(tmp_path / "log")
    server.path.with_name(f".{server.path.name}.4711.tmp").write_text("{")
    assert servers() == [server] and damaged() == []
    assert stop(server, 5.0).is_whole
    assert list(server.path.parent.iterdir()) == []


def test_what_was_left_of_a_first_record_is_swept_by_the_next_start(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "servers"
    folder.mkdir(parents=True)
    old, new = folder / ".fake-x-0000.json.4711.tmp", folder / ".fake-x-0001.json.4712.tmp"
    for path, age_s in ((old, 100.0), (new, 0.0)):  # the new one may still be renamed by who writes it
        path.write_text("{")
        os.utime(path, (time.time() - age_s,) * 2)
    server = start_fake(tmp_path / "log")
    assert not old.exists() and new.exists() and servers() == [server] and damaged() == []


def test_a_record_of_a_later_version_is_enough_to_stop_its_server(tmp_path: Path) -> None:
    server = start_fake(tmp_path / "log")
    server.path.write_text(json.dumps(json.loads(server.path.read_text()) | {"later": 1}))
    assert servers() == [server] and damaged() == []
    assert stop(server, 5.0).is_whole and servers() == []


def test_a_record_that_is_damaged_is_told(tmp_path: Path) -> None:
    assert damaged() == []
    path = tmp_path / "home" / "servers" / "x.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"id": "x"}')
    assert damaged() == [path] and servers() == []


def test_a_record_of_another_node_is_left_alone(tmp_path: Path) -> None:
    """A home folder that several machines share."""
    server = start_fake(tmp_path / "log")
    elsewhere = server.model_copy(update={"node": "another"})
    assert state(elsewhere).state == "unknown" and "another" in state(elsewhere).detail
    with pytest.raises(InputError, match="runs on another machine: another"):
        stop(elsewhere, 1.0)
    assert servers() == [server] and stop(server, 5.0).is_whole


@pytest.fixture
def host(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv(EXTRA_OPTIONS, shlex.join(sshd.options))
    with Host.parsed("ssh://far") as far:
        yield far


def test_a_far_server_outlives_the_connection_and_is_stopped_whole(tmp_path: Path, host: Host, sshd: Sshd) -> None:
    """Its folder's name is one that a shell would take apart."""
    log = tmp_path / "a 'far' $(touch x); log" / "server.log"
    server = start_fake(log, port=0, host=host)
    assert server.host == "ssh://far" and server.log == str(log) and server.state_path == f"{log}.{server.id}.json"
    assert _ready(server)
    assert sshd.cut() > 0
    assert {p.pid for p in state(server).processes} == {p.pid for p in processes_of(server.port)} | {server.session}
    stopped = stop(server, 10.0)
    assert len(stopped.ended) == _WITH_KEEPER and stopped.is_whole and "another machine" in stopped.memory_unknown
    assert processes_of(server.port) == [] and _is_closed(server.port) and servers() == []
    assert [path.name for path in log.parent.iterdir()] == ["server.log"]


def test_a_far_server_that_does_not_end_is_killed(tmp_path: Path, host: Host) -> None:
    server = start_fake(tmp_path / "log", ["--ignores-term"], host=host)
    assert _ready(server)
    assert len(stop(server, 1.0).killed) == _WITH_KEEPER
    assert processes_of(server.port) == []


def test_a_far_server_whose_worker_is_killed(tmp_path: Path, host: Host) -> None:
    server = start_fake(tmp_path / "log", host=host)
    assert _ready(server)
    _kill(server.port, "worker")
    assert comes_true(lambda: processes_of(server.port) == [] and state(server).processes == ())
    assert (state(server).state, state(server).detail) == ("failed", "it ended with exit code 1")


def test_a_connection_that_is_cut_while_a_server_is_stopped(tmp_path: Path, host: Host, sshd: Sshd) -> None:
    """The stop over there goes on by itself; asked again, it finds nothing or the rest."""
    server = start_fake(tmp_path / "log", ["--ignores-term"], host=host)
    assert _ready(server)
    cutter = threading.Timer(1.0, sshd.cut)
    cutter.start()
    with pytest.raises(InputError, match="ssh://far cannot be reached"):
        stop(server, 3.0)
    cutter.join()
    assert servers() == [server]
    assert stop(server, 1.0).is_whole and processes_of(server.port) == [] and servers() == []


def test_a_host_that_is_down_is_not_taken_for_a_server_that_is_gone(tmp_path: Path, host: Host, sshd: Sshd) -> None:
    server = start_fake(tmp_path / "log", host=host)
    assert _ready(server)
    sshd.stop()
    try:
        assert state(server).state == "unknown" and "cannot be reached" in state(server).detail
        with pytest.raises(InputError, match="cannot be reached"):
            stop(server, 1.0)
        assert servers() == [server] and len(processes_of(server.port)) == _NUM_PROCESSES
    finally:
        sshd.start()
    assert stop(server, 5.0).is_whole


def test_a_name_that_leads_to_another_machine_now(tmp_path: Path, host: Host) -> None:
    server = start_fake(tmp_path / "log", host=host)
    moved = server.model_copy(update={"node": "box-7"})
    assert state(moved).state == "unknown"
    with pytest.raises(InputError, match="was started on box-7"):
        stop(moved, 1.0)
    assert stop(server, 5.0).is_whole


def test_a_far_python_that_is_none(tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.fake_engine.ENVIRONMENT", replace(ENVIRONMENT, python=Path("/nowhere/python")))
    with pytest.raises(InputError, match="/nowhere/python is no Python that can be asked on ssh://far"):
        start_fake(tmp_path / "log", host=host)
    assert servers() == []
