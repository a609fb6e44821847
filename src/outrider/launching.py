"""Serving with all that belongs to it: the pair is checked first, the start is watched, a failed one is ended whole."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from outrider.core.errors import EngineFailed
from outrider.core.results import PreflightResult
from outrider.core.ssh import Host
from outrider.engines.engine import Engine, ServeSpec
from outrider.engines.environment import Environment
from outrider.engines.far import copy_configs, require_token
from outrider.engines.gates import with_lifted
from outrider.engines.known import known_facts
from outrider.engines.log_events import EndEvent, Event, FailureEvent
from outrider.engines.log_source import LocalLog, LogSource, RemoteLog
from outrider.engines.server_records import Server
from outrider.engines.servers import start_detached, stop
from outrider.engines.watching import Watcher
from outrider.engines.watching_logs import watching_log
from outrider.preflight.stage import preflight

_STOP_DEADLINE_S: Final = 30.0
# after an answer broke off, how long the log may take to tell why
_CAUSE_TIMEOUT_S: Final = 8.0
Tell = Callable[[Event], object]


def checked(engine: Engine, environment: Environment, spec: ServeSpec, host: Host | None) -> PreflightResult | None:
    """What preflight says of a launch; None for plain decoding, which has no gates.

    Args:
        environment, spec: for another machine their paths are of that machine.

    Raises:
        InputError: a config that cannot be read, or a machine that cannot be reached.
    """
    if spec.drafter is None:
        return None
    if host is None:
        facts = with_lifted(engine.facts(environment), environment, spec.lift_target_types)
        return preflight(spec.target, spec.drafter, facts, spec.extra_args)
    known = known_facts(engine.id, environment.version)
    with tempfile.TemporaryDirectory(prefix="outrider-") as name:
        target = copy_configs(host, str(spec.target), Path(name) / "target")
        drafter = copy_configs(host, str(spec.drafter), Path(name) / "drafter")
        return preflight(target, drafter, known.facts, spec.extra_args, standing=known.standing)


@contextmanager
def detached(engine: Engine, environment: Environment, spec: ServeSpec, log: Path, host: Host | None, tell: Tell) -> Iterator[Server]:
    """Start a server that lives on without us, here or on another machine; enters the block once it has given tokens.

    A start that fails, or is interrupted, is ended whole.

    Args:
        environment, spec, log: for another machine their paths are of that machine.

    Raises:
        EngineFailed: it failed, or hangs.
        InputError: the port is taken, or the machine cannot be reached.
    """
    server = start_detached(engine, environment, spec, log, host)
    try:
        with _watching(engine, server, host) as watcher:
            for event in watcher.events(until="ready"):
                if not isinstance(event, EndEvent):
                    tell(event)
            if failure := watcher.failure():
                raise failure
        if host:
            _require_token_of(engine, server, host)
    except BaseException:
        stop(server, _STOP_DEADLINE_S)
        raise
    yield server


def _require_token_of(engine: Engine, server: Server, host: Host) -> None:
    """Its log says that it serves; whether it does, only an answer tells. Of a failure, the log tells the cause."""
    try:
        require_token(host, server.python, server.port)
    except EngineFailed as error:
        deadline = time.monotonic() + _CAUSE_TIMEOUT_S
        with _watching(engine, server, host) as watcher:
            while not watcher.is_over and time.monotonic() < deadline:
                watcher.step()
            raise watcher.failure() or error from None


def followed(engine: Engine, server: Server, host: Host | None, tell: Tell) -> None:
    """Watch a server that is ready until it fails, or until we are interrupted.

    Raises:
        EngineFailed: it failed, or hangs.
    """
    with _watching(engine, server, host) as watcher:
        for event in watcher.events():
            if isinstance(event, FailureEvent):
                tell(event)
        if failure := watcher.failure():
            raise failure
    raise EngineFailed(f"{server.id} has ended", fix=f"see {server.log}")


@contextmanager
def _watching(engine: Engine, server: Server, host: Host | None) -> Iterator[Watcher]:
    """Processes and answers are looked at on this machine only; of another one, the log tells."""
    source: LogSource = RemoteLog(host, server.log) if host else LocalLog(Path(server.log))
    pid = None if host or not server.first else server.first[0]
    name = f"{server.log} on {host}" if host else server.log
    with watching_log(engine, source, name, pid, None if host else server.url) as watcher:
        yield watcher
