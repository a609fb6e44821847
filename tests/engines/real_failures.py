"""A real vLLM that is started to fail: the place it is started in, the hands that do something to it, and what came of it."""

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import psutil
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from builders import write_drafter
from oracles import state_oracle
from outrider.core.shell import GuardedProcess
from outrider.engines.engine import ServeSpec
from outrider.engines.environment import Environment
from outrider.engines.serving import free_port
from outrider.engines.vllm.launch import launch

_K, _REQUEST_TIMEOUT_S, _POLL_S = 3, 20.0, 0.05
_START_TIMEOUT_S, _END_TIMEOUT_S = 300.0, 120.0


class Place:
    """A folder for one start, with a sound target and a sound drafter, which may be spoilt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        oracle = state_oracle(folder)
        self.target = oracle.target.path
        self.drafter = write_drafter(oracle.drafter, folder / "drafter")
        self._held: list[socket.socket] = []

    def spec(self, *extra_args: str) -> ServeSpec:
        """Both, as they lie there now."""
        args = ("--max-model-len", "512", *extra_args)
        return ServeSpec(self.target, self.drafter, _K, "float32", free_port(), max_batch=4, extra_args=args)

    def plain(self, *extra_args: str) -> ServeSpec:
        """The target alone."""
        return replace(self.spec(*extra_args), drafter=None)

    def change_config(self, which: Path, **changes: Any) -> None:
        """Change fields of a folder's config; None takes a field out."""
        path = which / "config.json"
        config = json.loads(path.read_text(encoding="utf-8")) | changes
        path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}), encoding="utf-8")

    def change_tensors(self, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
        """Change the drafter's tensors."""
        path = self.drafter / "model.safetensors"
        save_file(change(load_file(path)), path, metadata={"format": "pt"})

    def other_target(self, model: type[PreTrainedModel], config: PretrainedConfig) -> None:
        """A random target of another class, with the tokenizer of the first."""
        model(config).save_pretrained(self.target)

    def shadow(self, package: str, source: str) -> dict[str, str]:
        """Variables with which this source is imported in the place of a package."""
        shadow = self.folder / "shadow"
        (shadow / package).mkdir(parents=True)
        (shadow / package / "__init__.py").write_text(source, encoding="utf-8")
        return {"PYTHONPATH": str(shadow)}

    def take(self, port: int) -> None:
        """Listen on a port."""
        listening = socket.socket()
        listening.bind(("127.0.0.1", port))
        listening.listen()
        self._held.append(listening)

    def on_small_disk(self, folder: Path) -> tuple[str, ...]:
        """The command to put before another, so that for it alone this folder is a disk of 64 KiB; as any user, on Linux."""
        mount = 'mount -t tmpfs -o size=64k tmpfs "$0" && exec "$@"'
        return ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(folder))

    def close(self) -> None:
        """Let go of what it holds."""
        for held in self._held:
            held.close()


@dataclass(frozen=True)
class Start:
    """What is started: a spec, more variables, and a command to put before the engine's."""

    spec: ServeSpec
    env: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()


class Running:
    """A started engine."""

    def __init__(self, process: GuardedProcess, port: int) -> None:
        self._process, self._url = process, f"http://127.0.0.1:{port}"

    def wait_for(self, text: str) -> None:
        """Until the log says so.

        Raises:
            TimeoutError: it does not, or the engine has ended.
        """
        deadline = time.monotonic() + _START_TIMEOUT_S
        while text not in self._process.log_path.read_text(encoding="utf-8", errors="replace"):
            if self._process.exit_code is not None or time.monotonic() > deadline:
                raise TimeoutError(f"no {text!r} in {self._process.log_path}")
            time.sleep(_POLL_S)

    def ask(self, max_tokens: int = 16) -> None:
        """One request; whether it was answered is told by the log."""
        body = {"model": "target", "prompt": [3, 9, 41], "max_tokens": max_tokens, "temperature": 0}
        with contextlib.suppress(httpx2.HTTPError):
            httpx2.post(f"{self._url}/v1/completions", json=body, timeout=_REQUEST_TIMEOUT_S, trust_env=False)

    def ready(self) -> None:
        """Until it is up and has been asked once."""
        self.wait_for("Application startup complete")
        self.ask()

    def signal(self, number: int, title: str) -> None:
        """Send a signal to the process whose name or command has this in it: api_server, EngineCore, Worker."""
        found = next(p for p in psutil.Process(self._process.pid).children(recursive=True) if _is_engines(p) and title in _title(p))
        found.send_signal(number)

    def ended(self, timeout_s: float) -> int | None:
        """The exit code; None if it still runs after that time."""
        deadline = time.monotonic() + timeout_s
        while (code := self._process.exit_code) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return code


def _title(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.name()} {' '.join(process.cmdline())}"
    return ""


def _is_engines(process: psutil.Process) -> bool:
    return "outrider.core.guard" not in _title(process)


def _nothing(_: Running) -> None:
    """It fails by itself."""


@dataclass(frozen=True)
class Recipe:
    """One way to fail, or to be stopped.

    Attributes:
        name: of its log, after engine and version.
        done: what was done, in words.
        start: spoils the place, and says what is to be started.
        then: what is done to it while it runs.
        wait_s: how long it may take to end after that.
    """

    name: str
    done: str
    start: Callable[[Place], Start]
    then: Callable[[Running], None] = _nothing
    wait_s: float = _END_TIMEOUT_S


@dataclass(frozen=True)
class Ended:
    """What came of it: the exit code as a shell says it, None if it lived on; and the log until then."""

    exit_code: int | None
    log: str


def run(recipe: Recipe, environment: Environment, folder: Path) -> Ended:
    """Do it once, in an empty folder; what lives on is ended."""
    with _place(folder) as place:
        start = recipe.start(place)
        command = launch(environment, start.spec)
        env = {**os.environ, **command.env, **start.env}
        with GuardedProcess("engine vllm", [*start.before, *command.command], folder / "log", env) as process:
            running = Running(process, start.spec.port)
            with contextlib.suppress(TimeoutError):  # it failed before that: its log and exit code tell
                recipe.then(running)
            code = running.ended(recipe.wait_s)
            return Ended(code, process.log_path.read_text(encoding="utf-8", errors="replace"))


@contextmanager
def _place(folder: Path) -> Iterator[Place]:
    place = Place(folder)
    try:
        yield place
    finally:
        place.close()
