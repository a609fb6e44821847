"""A server inside a container, with a program in the place of docker: it runs the image's command on this machine, so that nothing is
isolated, and keeps a file for each container, as a daemon would, by which `stop`, `rm` and `ps` find it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from outrider.core.errors import EngineFailed, InputError
from outrider.core.shell import GuardedProcess
from outrider.engines import containers
from outrider.engines.arguments import options
from outrider.engines.containers import ended, ending, launch_of, launched
from outrider.engines.engine import Launch, ServeSpec
from outrider.engines.environment import Environment
from outrider.engines.server_records import described, server_named, servers, write
from outrider.engines.servers import stop
from outrider.engines.vllm import ENGINE as VLLM
from outrider.inside.owned_processes import marked

_IMAGE = "engine:1"
_NAME = "outrider-vllm-tiny-0a1b"
_INSIDE = Path(containers.__file__).parents[1] / "inside" / "vllm_gate"
_ENDS_WITHIN_S = 30.0

_DOCKER = """#!{python}
import json, os, signal, subprocess, sys, time
from pathlib import Path

here = Path(__file__).parent
verb, *rest = sys.argv[1:]
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
if verb == "image":
    sys.exit(print("sha256:01") if rest[-1] == "engine:1" else "no such image: " + rest[-1])
if verb == "run":
    name, program = rest[rest.index("--name") + 1], rest[rest.index("--entrypoint") + 1]
    passed = [rest[number + 1] for number, word in enumerate(rest) if word == "--env"]
    inside = {{key: os.environ[key] for key in passed if key in os.environ}} | {{"PATH": os.environ["PATH"]}}
    command = [program, *rest[rest.index("engine:1") + 1 :]]
    # as under a daemon: the container is nobody's child here, and knows nothing of its program's own environment
    child = subprocess.Popen(command, env=inside, start_new_session=True)
    (here / name).write_text(str(child.pid))
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    code = child.wait()
    (here / name).unlink(missing_ok=True)
    sys.exit(code)
container = here / rest[-1]
if verb == "ps":
    names = [path.name for path in here.iterdir() if f"name=^{{path.name}}$" in rest]
    sys.exit(print(*names, sep="\\n"))
if not container.exists():
    sys.exit(f"No such container: {{rest[-1]}}")
if (here / "stuck").exists():
    sys.exit("device or resource busy")
pid = int(container.read_text())
try:
    os.kill(pid, signal.SIGTERM if verb == "stop" else signal.SIGKILL)
except ProcessLookupError:
    pass
time.sleep(0.5)
if verb == "rm":
    container.unlink(missing_ok=True)
"""
# stays until it is told to go, or does not go even then
_SERVER = """
import os, signal, sys, time
if "--stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("pid", os.getpid(), "ours", os.environ.get("OURS"), "theirs", os.environ.get("VLLM_LOGGING_LEVEL"), flush=True)
print("secret", os.environ.get("UNRELATED"), os.environ.get("LD_PRELOAD"), "mark", os.environ.get("OUTRIDER_SERVER"), flush=True)
time.sleep(600)
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a docker that is no docker, the only container program on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(_DOCKER.format(python=sys.executable))
    (folder / "docker").chmod(0o755)
    (folder / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(folder))
    yield folder
    (folder / "stuck").unlink(missing_ok=True)
    ended(_NAME)


@pytest.fixture
def place() -> Environment:
    return Environment(_IMAGE, "vllm", "vllm", "0.32.0", Path("python3"), Path("/nowhere"), ours=False, image=_IMAGE)


def spec_in(folder: Path) -> ServeSpec:
    for name in ("target", "drafter"):
        (folder / name).mkdir()
    return ServeSpec(folder / "target", folder / "drafter", 3, "bfloat16", 8123)


def volumes_of(launch: Launch) -> list[str]:
    return [option[1] for option in options(launch.command) if option[0] == "--volume"]


def container_pid(docker: Path) -> int:
    """Of the process inside, once it runs."""
    deadline = time.monotonic() + _ENDS_WITHIN_S
    while time.monotonic() < deadline:
        if (docker / _NAME).exists() and (text := (docker / _NAME).read_text()):
            return int(text)
        time.sleep(0.05)
    raise AssertionError("no container")


def runs(pid: int) -> bool:
    """Whether a process does more than wait to be asked how it ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def started(launch: Launch, log: Path) -> GuardedProcess:
    return GuardedProcess("engine", launch.command, log, {**launch.env, **os.environ, **marked("a-mark-of-a-test")})


def logged(log: Path, text: str) -> str:
    deadline = time.monotonic() + _ENDS_WITHIN_S
    while text not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    return log.read_text()


def test_a_launch_is_wrapped(docker: Path, place: Environment, tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    inner = Launch(["python3", "-m", "server", "--model", str(spec.target)], {"A": "1", "LD_PRELOAD": "/here/libx.so"})
    launch = launched(inner, place, spec, _NAME)
    assert launch.command[:2] == [str(docker / "docker"), "run"]
    cut = launch.command.index("--entrypoint")
    assert launch.command[cut:] == ["--entrypoint", "python3", _IMAGE, "-m", "server", "--model", str(spec.target)]
    said = {option[0]: " ".join(option[1:]) for option in options(launch.command[2:cut])}
    assert (said["--name"], said["--network"], said["--ipc"], said["--pull"], said["--rm"]) == (_NAME, "host", "host", "never", "")
    assert volumes_of(launch) == [f"{spec.target}:{spec.target}:ro,z", f"{spec.drafter}:{spec.drafter}:ro,z"]
    assert launch.env == {"A": "1"}
    assert "--gpus" not in said and "--init" in said
    assert volumes_of(launched(inner, place, replace(spec, drafter=None), _NAME)) == [f"{spec.target}:{spec.target}:ro,z"]


def test_gpus_are_handed_in_where_there_are_some(docker: Path, place: Environment, tmp_path: Path) -> None:
    (docker / "nvidia-smi").symlink_to("/bin/true")
    spec, inner = spec_in(tmp_path), Launch(["python3"], {})
    assert ("--gpus", "all") in options(launched(inner, place, spec, _NAME).command)
    (docker / "docker").rename(docker / "podman")
    found = options(launched(inner, place, spec, _NAME).command)
    assert ("--device", "nvidia.com/gpu=all") in found and ("--init",) not in found


def test_what_links_lead_to_is_there_too(docker: Path, place: Environment, tmp_path: Path) -> None:
    """In a hub's cache the files of a model are links to another folder."""
    spec = spec_in(tmp_path)
    (blobs := tmp_path / "blobs").mkdir()
    (blobs / "0123").write_text("{}")
    (spec.target / "config.json").symlink_to("../blobs/0123")
    (spec.target / "own.json").write_text("{}")
    (spec.target / "again.json").symlink_to("own.json")
    (spec.target / "broken.json").symlink_to("../nowhere/0123")
    assert [volume.split(":")[0] for volume in volumes_of(launched(Launch(["python3"], {}), place, spec, _NAME))] == [
        str(spec.target),
        str(blobs),
        str(spec.drafter),
    ]


def test_the_gates_plug_in_goes_in_and_nothing_else_of_the_users_path(docker: Path, place: Environment, tmp_path: Path) -> None:
    inner = Launch(["python3"], {"PYTHONPATH": f"{_INSIDE}{os.pathsep}/home/user/lib", "OUTRIDER_LIFT_TARGET_TYPES": "x"})
    launch = launched(inner, place, spec_in(tmp_path), _NAME)
    assert launch.env == {"PYTHONPATH": str(_INSIDE), "OUTRIDER_LIFT_TARGET_TYPES": "x"}
    assert f"{_INSIDE}:{_INSIDE}:ro,z" in volumes_of(launch)


def test_an_image_that_is_not_there_is_refused(docker: Path, place: Environment, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no image 'other:2'"):
        launched(Launch(["python3"], {}), replace(place, image="other:2"), spec_in(tmp_path), _NAME)


def test_the_log_is_its_output_and_the_users_settings_go_in(
    docker: Path, place: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("UNRELATED", "a secret")
    launch = launched(Launch(["python3", "-c", _SERVER], {"OURS": "1"}), place, spec_in(tmp_path), _NAME)
    assert not any("DEBUG" in word or "a secret" in word for word in launch.command)
    with started(launch, tmp_path / "log"):
        text = logged(tmp_path / "log", "mark")
        pid = container_pid(docker)
    assert f"pid {pid} ours 1 theirs DEBUG" in text
    assert "secret None None mark a-mark-of-a-test" in text
    assert not runs(pid)  # it was asked to end through its program


@pytest.mark.parametrize("flags", [[], ["--stubborn"]])
def test_a_container_whose_program_was_killed_is_ended_by_its_name(
    docker: Path, place: Environment, tmp_path: Path, flags: list[str]
) -> None:
    launch = launched(Launch(["python3", "-c", _SERVER, *flags], {}), place, spec_in(tmp_path), _NAME)
    with (tmp_path / "log").open("wb") as log:
        program = subprocess.Popen(launch.command, env={**os.environ, **launch.env}, stdout=log)
    pid = container_pid(docker)
    logged(tmp_path / "log", "mark")
    program.kill()
    program.wait()
    assert runs(pid)
    ended(_NAME)
    assert not runs(pid)
    assert not (docker / _NAME).exists()
    ended(_NAME)  # nothing is left, and that is fine


@pytest.mark.parametrize("image", [_IMAGE, ""])
def test_an_engine_is_started_and_ended_where_it_lives(docker: Path, place: Environment, tmp_path: Path, image: str) -> None:
    spec, place = spec_in(tmp_path), replace(place, image=image)
    launch = launch_of(VLLM, place, spec, _NAME)
    own = VLLM.launch(place, spec)
    assert (launch == own) is not bool(image)
    assert launch.command[-len(own.command) + 1 :] == own.command[1:]
    with pytest.raises(KeyError), ending(place, _NAME):
        program = subprocess.Popen(launched(Launch(["python3", "-c", _SERVER], {}), replace(place, image=_IMAGE), spec, _NAME).command)
        pid = container_pid(docker)
        raise KeyError
    assert runs(pid) is not bool(image)
    program.kill()
    program.wait()


def test_a_container_that_cannot_be_ended_is_told(docker: Path, place: Environment, tmp_path: Path) -> None:
    launch = launched(Launch(["python3", "-c", _SERVER], {}), place, spec_in(tmp_path), _NAME)
    with started(launch, tmp_path / "log"):
        container_pid(docker)
        (docker / "stuck").touch()
        with pytest.raises(EngineFailed, match=f"the container {_NAME} cannot be ended"):
            ended(_NAME)


def test_without_a_container_program_there_is_nothing_to_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ended(_NAME)
    with pytest.raises(InputError, match="docker or podman"):
        launched(
            Launch(["python3"], {}),
            Environment("x", "vllm", "vllm", "1", Path("python3"), tmp_path, ours=False, image="x"),
            ServeSpec(tmp_path, None, 3, "bfloat16", 8000),
            _NAME,
        )


def test_a_container_that_a_killed_command_has_left_is_stopped_by_its_record(
    docker: Path, place: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    spec = spec_in(tmp_path)
    launch = launched(Launch(["python3", "-c", _SERVER], {}), place, spec, _NAME)
    record = described(_NAME, place, spec, launch, str(tmp_path / "log"), host=None, state_path="")
    write(record)
    with (tmp_path / "log").open("wb") as log:
        program = subprocess.Popen(launch.command, env={**os.environ, **launch.env}, stdout=log)
    pid = container_pid(docker)
    program.kill()
    program.wait()
    assert runs(pid)
    stop(server_named(_NAME), 1.0)
    assert not runs(pid) and servers() == []
