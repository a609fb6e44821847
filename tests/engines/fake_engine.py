"""The scripted engine as a plug-in, and commands that start it as Outrider's own do, to be killed.

`python fake_engine.py detached|attached PORT LOG [FLAGS of fake_server.py]`
"""

import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from outrider.core.ssh import Host
from outrider.engines.engine import Engine, Launch, ServeSpec
from outrider.engines.environment import Environment, own_environment
from outrider.engines.reference import ENGINE
from outrider.engines.server_records import Server
from outrider.engines.servers import start_detached
from outrider.engines.serving import serving

FAKE_SERVER = Path(__file__).with_name("fake_server.py")
ENVIRONMENT = own_environment("fake", "1")


def fake_engine(flags: Sequence[str] = ()) -> Engine:
    """An engine that is a script; `flags` are of fake_server.py."""

    def launch(_: Environment, spec: ServeSpec) -> Launch:
        return Launch([sys.executable, "-I", "-S", str(FAKE_SERVER), *flags, str(spec.port)], {})

    return replace(ENGINE, id="fake", launch=launch, ready_timeout_s=60.0)


def spec_of(port: int) -> ServeSpec:
    """A target that nobody reads."""
    return ServeSpec(Path("/models/SmolLM2-135M-Instruct"), None, 3, "float32", port)


def start_fake(log: Path, flags: Sequence[str] = (), port: int = 0, host: Host | None = None) -> Server:
    """A detached server of it."""
    return start_detached(fake_engine(flags), ENVIRONMENT, spec_of(port), log, host)


def processes_of(port: int) -> list[psutil.Process]:
    """The fake engine's processes by their command line: the truth that a test compares with."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = process.info["cmdline"] or []
        if command[3:4] == [str(FAKE_SERVER)] and command[-1] == str(port) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def role_of(process: psutil.Process) -> str:
    """parent, worker or leaver; of a process from `processes_of`."""
    command: list[str] = process.info["cmdline"]
    return command[command.index("--role") + 1] if "--role" in command else "parent"


def comes_true(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Whether it does within the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def main(kind: str, port: str, log: str, *flags: str) -> None:
    """What `outrider serve` does with an engine, without its command line."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started with it ignored
    if kind == "detached":
        start_fake(Path(log), flags, int(port))
        time.sleep(600)
    else:
        with serving(fake_engine(flags), ENVIRONMENT, spec_of(int(port)), Path(log)) as served:
            raise served.watch.failure(600.0) or TimeoutError


if __name__ == "__main__":
    main(*sys.argv[1:])
