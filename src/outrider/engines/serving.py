"""Start an engine, wait until it has given a token, and leave nothing behind."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx2

import outrider.engines as engines
from outrider.core.errors import InputError
from outrider.core.plugins import load_plugin
from outrider.core.shell import GuardedProcess
from outrider.engines.engine import Engine, ServeSpec


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
        InputError: something listens there.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InputError(f"port {port} is taken", evidence=str(error), fix="stop what listens there, or choose another port") from None


@contextmanager
def serving(engine: Engine, spec: ServeSpec, log_path: Path) -> Iterator[tuple[str, GuardedProcess]]:
    """Serve `spec` until the block ends; yields the URL and the process once the server has answered with a token.

    Raises:
        EngineFailed: it ended or was not ready in time; the end of its log is shown.
        InputError: the port is taken.
    """
    spec = spec if spec.port else replace(spec, port=free_port())
    require_free(spec.port)
    url = f"http://127.0.0.1:{spec.port}"
    with GuardedProcess(f"engine {engine.id}", engine.command(spec), log_path, os.environ) as process:
        process.wait_until(lambda: _answers(url), engine.ready_timeout_s)
        yield url, process


@contextmanager
def running(engine: Engine, spec: ServeSpec, log_path: Path) -> Iterator[str]:
    """`serving`, for who needs the URL only."""
    with serving(engine, spec, log_path) as (url, _):
        yield url


def _answers(url: str) -> bool:
    """Ready means that a token came, not that a port is open."""
    try:
        with httpx2.Client(timeout=60.0, trust_env=False) as client:
            if client.get(f"{url}/health").status_code != 200:
                return False
            model = client.get(f"{url}/v1/models").json()["data"][0]["id"]
            reply = client.post(f"{url}/v1/completions", json={"model": model, "prompt": [1], "max_tokens": 1})
            return reply.status_code == 200
    except httpx2.HTTPError:
        return False
