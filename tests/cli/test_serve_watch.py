"""`outrider serve` and `watch` as a user runs them: checked first, printed, detached, on another machine; logs of all kinds."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from pydantic import TypeAdapter

from builders import write_drafter
from oracles import state_oracle
from outrider.core.ssh import EXTRA_OPTIONS
from outrider.engines.environment import Environment
from outrider.engines.log_events import AnyEvent, EndEvent
from outrider.engines.serving import free_port
from outrider.targets.folder import TargetFolder
from sshd import Sshd, sshd

__all__ = ["sshd"]
_OUTRIDER = Path(sys.executable).parent / "outrider"
_LOGS = Path(__file__).parents[1] / "engines" / "logs"


def outrider(*arguments: str, folder: Path, env: dict[str, str] | None = None, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    """Run the command with a home of its own for its records."""
    variables = os.environ | {"OUTRIDER_HOME": str(folder / "home")} | (env or {})
    command = [str(_OUTRIDER), *arguments]
    return subprocess.run(command, cwd=folder, env=variables, input=stdin, capture_output=True, text=True, timeout=300)


def last_event(output: str) -> EndEvent:
    """Every line is an event; the last one is the end."""
    events: list[AnyEvent] = [TypeAdapter(AnyEvent).validate_json(line) for line in output.splitlines()]
    assert isinstance(events[-1], EndEvent) and not any(isinstance(event, EndEvent) for event in events[:-1])
    return events[-1]


def test_a_server_lives_on_and_is_stopped_whole(tmp_path: Path, tiny_target: TargetFolder, tiny_drafter: Path) -> None:
    port = free_port()
    pair = ("--target", str(tiny_target.path), "--drafter", str(tiny_drafter), "--dtype", "float32", "--port", str(port))
    done = outrider("serve", *pair, "--detach", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    name = re.search(r"^(reference-\S+) is ready", done.stdout, flags=re.MULTILINE)
    assert name and (tmp_path / "server.log").exists()
    assert httpx2.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
    (row,) = [json.loads(line) for line in outrider("ps", "--json", folder=tmp_path).stdout.splitlines()]
    assert (row["id"], row["state"], row["port"]) == (name[1], "ready", port)
    stopped = outrider("stop", name[1], folder=tmp_path)
    assert stopped.returncode == 0 and f"port {port} is closed" in stopped.stdout, stopped.stdout
    assert outrider("ps", folder=tmp_path).stdout == "none\n"


def test_what_cannot_work_is_refused_before_it_is_started(tmp_path: Path, tiny_target: TargetFolder, tiny_drafter: Path) -> None:
    config = json.loads((tiny_drafter / "config.json").read_text())
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    (wrong / "model.safetensors").write_bytes((tiny_drafter / "model.safetensors").read_bytes())
    (wrong / "config.json").write_text(json.dumps(config | {"intermediate_size": 7}))
    pair = ("--target", str(tiny_target.path), "--drafter", str(wrong), "--dtype", "float32", "--port", str(free_port()))
    refused = outrider("serve", *pair, folder=tmp_path)
    assert refused.returncode == 1 and "error: preflight tensor_shapes" in refused.stderr
    assert not (tmp_path / "server.log").exists()
    forced = outrider("serve", *pair, "--force", folder=tmp_path)
    assert forced.returncode == 3 and "preflight fail: tensor_shapes" in forced.stderr
    assert (tmp_path / "server.log").exists()
    assert outrider("ps", folder=tmp_path).stdout == "none\n"


def test_print_starts_nothing_and_is_a_command(tmp_path: Path, tiny_target: TargetFolder, vllm: Environment) -> None:
    pair = ("--target", str(tiny_target.path), "--engine", "vllm", "--engine-python", str(vllm.python))
    done = outrider("serve", *pair, "--print", "--", "--max-model-len", "512", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--max-model-len 512" in done.stdout and "VLLM_CPU_KVCACHE_SPACE=" in done.stdout
    parsed = subprocess.run(["bash", "-n"], input=done.stdout, text=True, capture_output=True)
    assert parsed.returncode == 0 and not (tmp_path / "server.log").exists()


def test_real_vllm_on_another_machine(tmp_path: Path, sshd: Sshd, vllm: Environment) -> None:
    oracle = state_oracle(tmp_path / "oracle")
    drafter = write_drafter(oracle.drafter, tmp_path / "drafter")
    env = {EXTRA_OPTIONS: " ".join(sshd.options)}
    log = tmp_path / "far.log"
    pair = ("--target", str(oracle.target.path), "--drafter", str(drafter), "--dtype", "float32", "--log", str(log))
    far = ("--engine", "vllm", "--host", "ssh://box", "--engine-python", str(vllm.python), "--port", str(free_port()), "--detach")
    done = outrider("serve", *pair, *far, folder=tmp_path, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    name = re.search(r"^(vllm-\S+) is ready.*ssh://box", done.stdout, flags=re.MULTILINE)
    assert name and "target weights" in done.stdout
    watched = outrider("watch", f"ssh://box{log}", "--until", "ready", "--json", folder=tmp_path, env=env)
    assert last_event(watched.stdout).state == "ready" and watched.returncode == 0
    sshd.cut()
    assert '"state": "ready"' in outrider("ps", "--json", folder=tmp_path, env=env).stdout
    stopped = outrider("stop", name[1], folder=tmp_path, env=env)
    assert stopped.returncode == 0 and "nothing is left" in stopped.stdout
    ended = outrider("watch", f"ssh://box{log}", "--json", folder=tmp_path, env=env)
    assert last_event(ended.stdout).state == "ready"  # it was, and was then stopped


@pytest.fixture(scope="module")
def failed_log() -> Path:
    return next(iter(sorted(_LOGS.glob("vllm-0.32.0-cpu-extra-tensor*.log")) or sorted(_LOGS.glob("vllm-*.log"))))


@pytest.mark.parametrize("way", ["followed", "so far", "piped"])
def test_a_log_that_fails_is_told_with_its_cause(tmp_path: Path, failed_log: Path, way: str) -> None:
    arguments = {"followed": [str(failed_log)], "so far": [str(failed_log), "--no-follow"], "piped": ["-"]}[way]
    text = failed_log.read_text(errors="replace") if way == "piped" else ""
    done = outrider("watch", *arguments, "--json", folder=tmp_path, stdin=text)
    end = last_event(done.stdout)
    assert (done.returncode, end.state) == (3, "failed") and end.cause


def test_a_log_that_is_not_there_yet_is_waited_for(tmp_path: Path, failed_log: Path) -> None:
    command = [str(_OUTRIDER), "watch", "later.log", "--json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as watching:
        time.sleep(1.5)
        assert watching.poll() is None
        (tmp_path / "later.log").write_bytes(failed_log.read_bytes())
        out, _ = watching.communicate(timeout=60)
    assert '"event":"health"' in out and last_event(out).state == "failed"


def test_text_for_a_person_tells_cause_and_fix(tmp_path: Path, failed_log: Path) -> None:
    done = outrider("watch", str(failed_log), folder=tmp_path)
    assert done.returncode == 3
    assert "FAILED" in done.stdout and "evidence" in done.stdout and done.stdout.splitlines()[-1].startswith("failed: ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["ssh://box"], "names no log file"), (["x.log", "--pid", "0"], "no process"), (["x.log", "--no-follow"], "no log to read")],
)
def test_what_cannot_be_watched(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = outrider("watch", *arguments, folder=tmp_path)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    for record in (tmp_path / "home" / "servers").glob("*.json"):
        outrider("stop", record.stem, folder=tmp_path)
