"""Start an engine, wait until it has given tokens, end it with the cause as soon as it fails, leave nothing behind."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2

import outrider.engines as engines
from outrider.core.errors import EngineFailed
from outrider.core.plugins import load_plugin
from outrider.core.shell import GuardedProcess
from outrider.engines.engine import Engine, ServeSpec
from outrider.engines.environment import Environment
from outrider.engines.gates import VARIABLE, require_list
from outrider.engines.watching import Watch

_POLL_S = 0.1
_PROBE_TIMEOUT_S = 120.0
# enough tokens that a drafting server must verify a proposal, not only make one
_PROBE_TOKENS = 8
# after an answer broke off, how long the log may take to tell why
_CAUSE_TIMEOUT_S = 8.0
# variables in which a launch has already taken up what they were; all others are the user's to overrule
_TAKEN_UP = ("LD_PRELOAD", "PYTHONPATH", VARIABLE)


def engine_named(name: str) -> Engine:
    """The engine plug-in of that name.

    Raises:
        InputError: there is none.
    """
    return load_plugin(engines, name, "ENGINE", Engine)


def free_port() -> int:
    """A loopback port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def require_free(port: int) -> None:
    """Refuse a port that is taken before anything is loaded for it.

    Raises:
        EngineFailed: something listens there.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise EngineFailed(
                f"port {port} is taken", evidence=str(error), fix="stop what listens there, or choose another port"
            ) from None


@dataclass(frozen=True)
class Served:
    """A running server, and the process it is."""

    url: str
    process: GuardedProcess
    watch: Watch


@contextmanager
def serving(engine: Engine, environment: Environment, spec: ServeSpec, log_path: Path) -> Iterator[Served]:
    """Serve `spec` until the block ends; enters it once the server has answered with tokens.

    When the engine fails, its process is ended at once, so that whoever waits for an answer is told, and the error that
    then leaves the block is replaced by the cause that the log gives.

    Raises:
        EngineFailed: it ended, failed or was not ready in time; the port is taken.
        InputError: a list of target types is to be lifted that is not there, or whose plug-in is kept out.
    """
    spec = spec if spec.port else replace(spec, port=free_port())
    require_free(spec.port)
    url = f"http://127.0.0.1:{spec.port}"
    require_list(engine, environment, spec.lift_target_types)
    launch = engine.launch(environment, spec)
    env = {**launch.env, **os.environ} | {key: value for key, value in launch.env.items() if key in _TAKEN_UP}
    with GuardedProcess(f"engine {engine.id}", launch.command, log_path, env) as process, Watch(engine, process) as watch:
        try:
            _wait_until_it_answers(url, watch, engine.ready_timeout_s)
            watch.forget()
            yield Served(url, process, watch)
        except EngineFailed as error:
            raise watch.failure(_CAUSE_TIMEOUT_S) or error from None


@contextmanager
def running(engine: Engine, environment: Environment, spec: ServeSpec, log_path: Path) -> Iterator[str]:
    """`serving`, for who needs the URL only."""
    with serving(engine, environment, spec, log_path) as served:
        yield served.url


def _wait_until_it_answers(url: str, watch: Watch, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    with httpx2.Client(base_url=url, timeout=_PROBE_TIMEOUT_S, trust_env=False) as client:
        while not _answers(client):
            if failure := watch.failure(_POLL_S):
                raise failure
            if time.monotonic() > deadline:
                raise EngineFailed(
                    f"{watch.name} was not ready after {timeout_s:.0f} s", evidence=watch.last_lines(), fix=f"see {watch.log_path}"
                )


def _answers(client: httpx2.Client) -> bool:
    """Ready means that tokens came, not that a port is open.

    Raises:
        EngineFailed: the server says that it is well and refuses to answer.
    """
    try:
        if client.get("/health").status_code != 200:
            return False
        reply = client.get("/v1/models")
        model = reply.json()["data"][0]["id"]
        body = {"model": model, "prompt": [1], "max_tokens": _PROBE_TOKENS, "temperature": 0, "ignore_eos": True}
        reply = client.post("/v1/completions", json=body)
        answer = reply.json() if reply.status_code == 200 else {}
        if answer["choices"][0]["text"] or answer["usage"]["completion_tokens"]:
            return True
    except httpx2.HTTPError:
        return False
    except (ValueError, KeyError, IndexError, TypeError):
        pass
    raise EngineFailed("the server was up and failed on its first request", evidence=f"{reply.status_code}: {reply.text[:300]}")
