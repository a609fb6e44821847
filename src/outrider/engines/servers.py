"""Servers that we have started: how they are, and their end as a whole; on this machine or one that ssh reaches."""

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from outrider.core.errors import InputError
from outrider.core.gpu_memory import GpuMemory, Holder, gpu_memory
from outrider.core.owned import Ended, FoundProcess, Look, Looked, Machine
from outrider.core.ssh import Host
from outrider.engines.containers import ended
from outrider.engines.engine import Engine, Launch, ServeSpec
from outrider.engines.environment import Environment
from outrider.engines.gates import VARIABLE
from outrider.engines.server_records import Server, described, forget, new_id, state_path_of, write
from outrider.inside.owned_processes import boot, marked, process_of

State = Literal["starting", "ready", "failed", "gone", "unknown"]
# variables in which a launch has already taken up what they were; all others are the user's to overrule
TAKEN_UP: Final = ("LD_PRELOAD", "PYTHONPATH", VARIABLE)
# what a launch says of this machine does not hold for another one
_OF_THIS_MACHINE: Final = ("LD_PRELOAD", "PYTHONPATH", "VLLM_CPU_OMP_THREADS_BIND")
_GRACE_S = 10.0
_GPU_FREED_WITHIN_S = 5.0  # the driver takes a moment after the process is gone
_POLL_S = 0.2


@dataclass(frozen=True)
class ServerState:
    """How a server is.

    Attributes:
        state: `starting` (it runs), `ready` (and listens on its port), `failed` (it has ended badly, or has left processes),
            `gone` (nothing is left of it), `unknown` (its machine cannot be asked).
        detail: what is beside that to be said.
        processes: all that are its own and alive.
    """

    state: State
    detail: str
    processes: tuple[FoundProcess, ...] = ()


@dataclass(frozen=True)
class Stopped:
    """What was ended of a server, and what is left.

    Attributes:
        ended: all processes that there were; killed: those of them that had not ended by the deadline.
        left: what could not be killed.
        port_holder: who still listens on its port; None if nobody does, or another that is not of this server.
        memory: who holds memory on the GPUs that it was on.
        memory_unknown: why that could not be checked; empty if it was.
    """

    ended: tuple[FoundProcess, ...]
    killed: tuple[FoundProcess, ...]
    left: tuple[FoundProcess, ...]
    port_holder: FoundProcess | None
    memory: tuple[Holder, ...]
    memory_unknown: str

    @property
    def is_whole(self) -> bool:
        """Whether no process of it is left."""
        return not self.left


def start_detached(engine: Engine, environment: Environment, spec: ServeSpec, log_path: Path, host: Host | None = None) -> Server:
    """Start a server that lives on when we are gone; returns as soon as its process runs, long before it is ready.

    Args:
        environment, spec: for another machine their paths are of that machine.
        log_path: likewise; relative to the home folder there.
        host: None for this machine.

    Raises:
        InputError: the port is taken, the machine cannot be reached, or the command not be started.
    """
    machine = Machine(host, str(environment.python)) if host else Machine()
    if host and spec.lift_target_types:
        raise InputError("vLLM's list of target types is lifted on this machine only", fix="`outrider engine gate lift` there, once")
    spec = replace(spec, port=machine.free_port(spec.port))
    launch = engine.launch(environment, spec)
    name = new_id(engine.id, spec.target)
    log = str(log_path if host else log_path.absolute())
    state_path = f"{log}.{name}.json" if host else state_path_of(name)
    server = described(name, environment, spec, launch, log, str(host) if host else None, state_path)
    write(server)
    try:
        started = machine.start(server.known, launch.command, log, *_variables(launch, host), folder=None if host else server.folder)
    except InputError:
        with suppress(InputError):
            stop(server, _GRACE_S)
        raise
    server = server.model_copy(
        update={
            "first": started.keeper,
            "session": started.keeper[0],
            "node": started.node,
            "boot": started.boot,
            "log": started.log,
            "state_path": started.path,
        }
    )
    write(server)
    return server


@dataclass
class Attached:
    """An attached server's record while it runs.

    Attributes:
        variables: what its processes must have in their environment.
    """

    server: Server
    variables: Mapping[str, str]

    def started(self, pid: int) -> None:
        """Complete the record: `pid` leads the session in which all of it runs."""
        process = process_of(pid)
        self.server = self.server.model_copy(
            update={"first": (pid, process.started) if process else None, "session": pid, "node": platform.node(), "boot": boot()}
        )
        self.record()

    def record(self) -> None:
        """Write it; where that cannot be, the server is served without, as it ends with us."""
        with suppress(OSError):
            write(self.server)


@contextmanager
def attached(name: str, environment: Environment, spec: ServeSpec, launch: Launch, log_path: Path) -> Iterator[Attached]:
    """Keep a record of a server that ends with this block; it stays if the server does not, or if we are killed.

    Args:
        name: its id.
    """
    server = described(name, environment, spec, launch, str(log_path.absolute()), host=None, state_path="")
    running = Attached(server, marked(server.mark))
    running.record()
    try:
        yield running
    finally:
        if not _remains_of(running.server):
            forget(running.server)


def state(server: Server) -> ServerState:
    """How a server is now."""
    return states([server])[server.id]


def states(every: Sequence[Server]) -> dict[str, ServerState]:
    """How servers are now, by id; each machine is asked once."""
    found: dict[str, ServerState] = {}
    machines: dict[tuple[str | None, str], list[Server]] = {}
    for server in every:
        if server.is_of_another_node:
            found[server.id] = ServerState("unknown", f"it was started on {server.node or server.by_node}: ask there")
        else:
            machines.setdefault((server.host, server.python if server.host else ""), []).append(server)
    for alike in machines.values():
        found |= _asked_together(alike)
    return found


def stop(server: Server, deadline_s: float) -> Stopped:
    """End all processes of a server, by SIGTERM and after `deadline_s` by SIGKILL; its record goes once none is left.

    Raises:
        InputError: its machine cannot be asked, or is another one than it was started on.
        EngineFailed: it runs in a container that cannot be ended.
    """
    if server.is_of_another_node:
        node = server.node or server.by_node
        raise InputError(f"{server.id} runs on another machine: {node}", evidence=f"this one is {platform.node()}", fix="stop it there")
    before = gpu_memory() if server.host is None else GpuMemory(unknown="it is not checked on another machine")
    with _machine_of(server) as machine:
        looked = machine.look([server.known])
        _require_its_node(server, looked)
        pids = frozenset(process.pid for process in looked.servers[server.mark].processes if process.pid)
        done = machine.end(server.known, deadline_s)
    if server.container:  # under a daemon, nothing else finds it
        ended(server.container)
    if not done.left:
        forget(server)
    holders, unknown = _memory_left(before, before.gpus_of(pids), pids)
    return Stopped(done.ended, done.killed, done.left, _still_its_own(done), holders, unknown)


def _memory_left(before: GpuMemory, gpus: frozenset[int], pids: frozenset[int]) -> tuple[tuple[Holder, ...], str]:
    """Who holds memory on the GPUs that a server was on, once its own processes are off them or have had their time."""
    if before.unknown:
        return (), before.unknown
    if not gpus:
        return (), "none of its processes was seen on a GPU"
    deadline = time.monotonic() + _GPU_FREED_WITHIN_S
    while (now := gpu_memory()).gpus_of(pids) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return now.on(gpus), now.unknown


def _still_its_own(done: Ended) -> FoundProcess | None:
    """Another program may have taken the port by now, or have had it all the time: that is no business of this server."""
    return done.holder if done.holder and done.holder.pid in {process.pid for process in done.left} else None


def _asked_together(alike: Sequence[Server]) -> dict[str, ServerState]:
    """States of servers of one machine."""
    try:
        with _machine_of(alike[0]) as machine:
            looked = machine.look([server.known for server in alike])
    except InputError as error:
        return {server.id: ServerState("unknown", f"{error.what}: {error.evidence}") for server in alike}
    found: dict[str, ServerState] = {}
    for server in alike:
        try:
            _require_its_node(server, looked)
            found[server.id] = _state_of(server, looked.servers[server.mark])
        except InputError as error:
            found[server.id] = ServerState("unknown", error.what)
    return found


def _state_of(server: Server, look: Look) -> ServerState:
    ended = "" if look.exit_code is None else f"it ended with exit code {look.exit_code}"
    if look.processes and look.is_running:
        if look.listens:
            return ServerState("ready", "", look.processes)
        if look.holder:
            return ServerState("failed", f"its port is held by {look.holder}", look.processes)
        return ServerState(*(("failed", "its port is closed") if look.was_ready else ("starting", "")), look.processes)
    if look.processes and server.first is None and not ended:
        return ServerState("starting", "", look.processes)
    if look.processes:
        return ServerState("failed", "; ".join(filter(None, [ended, f"{len(look.processes)} processes are left"])), look.processes)
    if server.first is None and _starter_lives(server):
        return ServerState("starting", "it is being started")
    return ServerState("failed" if look.exit_code else "gone", ended)


def _starter_lives(server: Server) -> bool:
    process = process_of(server.by[0]) if (server.by_node, server.by_boot) == (platform.node(), boot()) else None
    return process is not None and process.started == server.by[1]


def _require_its_node(server: Server, looked: Looked) -> None:
    """A name of several machines leads to one of them at a time."""
    if server.host and server.node and looked.node != server.node:
        raise InputError(
            f"{server.host} is {looked.node} now; {server.id} was started on {server.node}",
            effect="nothing can be said of it, nor ended",
            fix="reach that machine by its own name, and stop it there",
        )


@contextmanager
def _machine_of(server: Server) -> Iterator[Machine]:
    if server.host is None:
        yield Machine()
    else:
        with Host.parsed(server.host) as host:
            yield Machine(host, server.python)


def _remains_of(server: Server) -> bool:
    """Whether processes of a server of this machine are there; yes if that cannot be told."""
    if server.host is None and not boot():
        return False
    try:
        with _machine_of(server) as machine:
            return bool(machine.look([server.known]).servers[server.mark].processes)
    except InputError:
        return True


def _variables(launch: Launch, host: Host | None) -> tuple[dict[str, str], dict[str, str]]:
    """What the machine's own environment may overrule, and what it may not."""
    # nothing that lies in the current folder may stand in for a package
    launched = {"PYTHONSAFEPATH": "1", **launch.env}
    if host:
        return {key: value for key, value in launched.items() if key not in _OF_THIS_MACHINE}, {}
    return launched, {key: value for key, value in launch.env.items() if key in TAKEN_UP}
