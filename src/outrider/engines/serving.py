"""Start an engine, wait until it has given tokens, end it with the cause as soon as it fails, leave nothing behind."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import outrider.engines as engines
from outrider.core.errors import EngineFailed
from outrider.core.plugins import load_plugin
from outrider.core.shell import GuardedProcess
from outrider.engines.containers import ending, launch_of
from outrider.engines.engine import Engine, ServeSpec
from outrider.engines.environment import Environment
from outrider.engines.gates import require_list
from outrider.engines.log_events import Event
from outrider.engines.probing import Probe
from outrider.engines.server_records import new_id
from outrider.engines.servers import TAKEN_UP, attached
from outrider.engines.timings import keep, timings_of
from outrider.engines.watching import Watch, Watched, watched_of

# after an answer broke off, how long the log may take to tell why
_CAUSE_TIMEOUT_S = 8.0


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
def serving(
    engine: Engine,
    environment: Environment,
    spec: ServeSpec,
    log_path: Path,
    tell: Callable[[Event], object] = lambda _: None,
    probe_again_after_s: float | None = None,
) -> Iterator[Served]:
    """Serve `spec` until the block ends; enters it once the server has answered with tokens.

    When the engine fails, its process is ended at once, so that whoever waits for an answer is told, and the error that
    then leaves the block is replaced by the cause that the log gives.

    Args:
        tell: is given each event of the watch, in a thread of its own.
        probe_again_after_s: while it serves, ask for a token again and again, to find out that it hangs; None for never, as
            a server that is being measured is not disturbed.

    Raises:
        EngineFailed: it ended, failed or was not ready in time; the port is taken.
        InputError: a list of target types is to be lifted that is not there, or whose plug-in is kept out.
    """
    spec = spec if spec.port else replace(spec, port=free_port())
    require_free(spec.port)
    url = f"http://127.0.0.1:{spec.port}"
    require_list(engine, environment, spec.lift_target_types)
    name = new_id(engine.id, spec.target)
    launch = launch_of(engine, environment, spec, name)
    timings = timings_of(environment, spec.target)
    env = {**launch.env, **os.environ} | {key: value for key, value in launch.env.items() if key in TAKEN_UP}

    def watched(process: GuardedProcess) -> Watched:
        found = watched_of(process, engine.log, timings.usual_s(), Probe(url, probe_again_after_s))
        # what a container holds does not descend from the command that started it
        return replace(found, pid=None) if environment.image else found

    with (
        ending(environment, name),
        attached(name, environment, spec, launch, log_path) as record,
        GuardedProcess(f"engine {engine.id}", launch.command, log_path, {**env, **record.variables}) as process,
        Watch(watched(process), engine.ready_timeout_s, tell) as watch,
    ):
        record.started(process.pid)
        try:
            watch.wait_until_ready()
            keep(timings, watch.seconds)
            yield Served(url, process, watch)
        except EngineFailed as error:
            raise watch.conclusion(_CAUSE_TIMEOUT_S) or error from None


@contextmanager
def running(engine: Engine, environment: Environment, spec: ServeSpec, log_path: Path) -> Iterator[str]:
    """`serving`, for who needs the URL only."""
    with serving(engine, environment, spec, log_path) as served:
        yield served.url
