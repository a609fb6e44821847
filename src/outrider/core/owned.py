"""Servers of ours on one machine, this one or one that ssh reaches: started to live on, found again, ended as a whole.

What is done there is one program that needs a Python and nothing else (`outrider.inside.owned_processes`, which says how
a server's processes are known). It goes there on standard input, as does what is asked, for that may hold secrets.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from outrider.core.errors import InputError
from outrider.core.results import Frozen
from outrider.core.ssh import Completed, Host
from outrider.inside import owned_processes

_PROGRAM: Final = Path(owned_processes.__file__)
_ASK_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 60.0  # beyond the deadline of what is to be ended


class FoundProcess(Frozen):
    """A process, as its machine showed it; `pid` is None where that is not for us to see."""

    pid: int | None
    command: str

    def __str__(self) -> str:
        return f"{self.command} (pid {self.pid})" if self.pid else self.command


class Started(Frozen):
    """A detached server after its start.

    Attributes:
        keeper: (pid, start time in clock ticks since boot) of the process that leads its session and stays with it.
        engine: the same of its first process, which the keeper has started.
        node: the machine's own name.
        boot: names the time since it was started.
        log: absolute path of its log, on that machine.
        path: the same of the file in which the keeper notes what it sees.
    """

    keeper: tuple[int, int]
    engine: tuple[int, int]
    node: str
    boot: str
    log: str
    path: str


class Look(Frozen):
    """How a server is.

    Attributes:
        processes: all that are its own and alive.
        is_running: whether its first process is alive.
        exit_code: of that one; None if it runs or nobody has seen it end. 128 + N if signal N ended it.
        was_ready: whether it has ever listened on its port, where it has a keeper.
        holder: who listens on that port.
    """

    processes: tuple[FoundProcess, ...]
    is_running: bool
    exit_code: int | None
    was_ready: bool
    holder: FoundProcess | None

    @property
    def listens(self) -> bool:
        """Whether it is itself what listens on its port."""
        return self.holder is not None and self.holder.pid in {process.pid for process in self.processes}


class Looked(Frozen):
    """How servers of one machine are, by their marks; `node` and `boot` as in `Started`."""

    node: str
    boot: str
    servers: dict[str, Look]


class Ended(Frozen):
    """What was ended.

    Attributes:
        ended: all that there was; killed: those of them that had not ended by the deadline.
        left: what could not be killed.
        holder: who listens on the port now.
    """

    ended: tuple[FoundProcess, ...]
    killed: tuple[FoundProcess, ...]
    left: tuple[FoundProcess, ...]
    holder: FoundProcess | None


class _Port(Frozen):
    port: int | None
    holder: FoundProcess | None


@dataclass(frozen=True)
class Known:
    """What must be known of a server to find its processes.

    Attributes:
        mark: in the environment of all its processes.
        state: path of its keeper's file; empty without a keeper.
        port: what it listens on.
        first: (pid, start time) of its first process; None if it is not known.
        boot: during which that is so.
    """

    mark: str
    state: str
    port: int
    first: tuple[int, int] | None = None
    boot: str = ""


@dataclass(frozen=True)
class Machine:
    """Where servers run.

    Attributes:
        host: None for this machine.
        python: any Python there; this one's own by default.
    """

    host: Host | None = None
    python: str = field(default=sys.executable)

    def free_port(self, wanted: int) -> int:
        """`wanted` if nothing listens there, any free loopback port for 0.

        Raises:
            InputError: it is taken; by whom is said.
        """
        answer = _Port.model_validate(self._asked({"do": "port", "port": wanted}))
        if answer.port is None:
            raise InputError(
                f"port {wanted} is taken{self._there}",
                evidence=f"{answer.holder}",
                fix="stop what listens there (`outrider ps` lists servers of ours), or choose another port",
            )
        return answer.port

    def start(
        self, known: Known, command: Sequence[str], log: str, defaults: Mapping[str, str], required: Mapping[str, str], folder: str | None
    ) -> Started:
        """Start a command that lives on when we, or the connection, are gone.

        Args:
            log: where its outputs go, and what it leaves to say; on that machine, relative to the home folder there.
            defaults: variables for it that the machine's own environment overrules.
            required: variables for it that nothing overrules.
            folder: to start it in; None for the home folder there, or here the current one.

        Raises:
            InputError: it cannot be started, or the machine not be asked.
        """
        request = {"do": "start", "command": list(command), "defaults": dict(defaults), "required": dict(required)}
        answer = self._asked(request | vars(known) | {"log": log, "folder": folder}, marked=known.mark)
        kept = {key: answer[key] for key in Started.model_fields if key in answer}
        return Started.model_validate(kept)

    def look(self, servers: Sequence[Known]) -> Looked:
        """How servers of this machine are.

        Raises:
            InputError: it cannot be asked.
        """
        return Looked.model_validate(self._asked({"do": "look", "servers": [vars(known) for known in servers]}))

    def end(self, known: Known, deadline_s: float) -> Ended:
        """End all processes of a server: by SIGTERM, and what is there after `deadline_s` by SIGKILL.

        Raises:
            InputError: the machine cannot be asked.
        """
        request = {"do": "end", "grace_s": deadline_s} | vars(known)
        return Ended.model_validate(self._asked(request, timeout_s=deadline_s + _END_TIMEOUT_S))

    @property
    def _there(self) -> str:
        return f" on {self.host}" if self.host else ""

    def _asked(self, request: Mapping[str, Any], marked: str = "", timeout_s: float = _ASK_TIMEOUT_S) -> dict[str, Any]:
        """The answer; what is started has the mark from its first moment, so that it is found whatever happens then."""
        text = TypeAdapter(dict[str, Any]).dump_json(dict(request)).decode()
        program = f"{_PROGRAM.read_text(encoding='utf-8')}\nmain({text!r})\n"
        mark = ["env", f"{owned_processes.MARK}={marked}"] if marked else []
        done = self._run([*mark, self.python, "-I", "-S", "-", *filter(None, [marked])], program.encode(), timeout_s)
        try:
            answer: dict[str, Any] = TypeAdapter(dict[str, Any]).validate_json(done.stdout)
        except ValidationError:
            raise InputError(
                f"{self.python} is no Python that can be asked{self._there}",
                evidence=(done.stderr.strip().splitlines() or [f"exit code {done.exit_code}"])[-1],
                fix="name the interpreter of the engine's environment there",
            ) from None
        if "error" in answer:
            raise InputError(f"this cannot be done{self._there}", evidence=str(answer["error"]))
        return answer

    def _run(self, argv: list[str], program: bytes, timeout_s: float) -> Completed:
        if self.host:
            return self.host.run(argv, program, timeout_s)
        try:
            # a session of its own: an interrupt from the keyboard is ours to handle
            done = subprocess.run(argv, input=program, capture_output=True, timeout=timeout_s, start_new_session=True)
        except OSError as error:
            return Completed(127, b"", str(error))
        except subprocess.TimeoutExpired:
            raise InputError(f"the processes of a server were not looked through within {timeout_s:g} s") from None
        return Completed(done.returncode, done.stdout, done.stderr.decode(errors="replace"))
