"""Another machine, reached through the system's own OpenSSH client, with the user's configuration, keys and agent.

One connection is shared by all that is asked of a host: the first one opens it, the others pass through its socket. Where
the user's configuration already shares connections, theirs is used.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Self

from outrider.core.errors import InputError

EXTRA_OPTIONS = "OUTRIDER_SSH_OPTIONS"
_ADDRESS = re.compile(r"ssh://(?:(?P<user>\w[\w.+-]*)@)?(?:(?P<name>\w[\w.-]*)|\[(?P<ipv6>[0-9a-fA-F:]+)\])(?::(?P<port>\d{1,5}))?/?")
# it is never asked for anything, and a dead connection is noticed within 15 s
_ALWAYS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3", "LogLevel=ERROR")
# a terminal, a command or ports that the user's configuration gives to every session of their own would break ours
_SESSION = ("RequestTTY=no", "RemoteCommand=none", "ClearAllForwardings=yes")
_SHARED_FOR_S = 10  # after the last use, should we not be there to end it
_SSH_FAILED = 255  # OpenSSH's own exit code; a far command that exits so is not told apart
_ASK_TIMEOUT_S = 10.0
# what OpenSSH says, what that means, what mends it; `{}` is the command by which the user connects
_FAILURES = (
    ("Could not resolve hostname", "its name is not known", "check the name, or add it to ~/.ssh/config"),
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key has changed", "find out why; then `ssh-keygen -R` its name and `{}`"),
    ("Host key verification failed", "its host key is not known", "connect once by hand and accept the key: `{}`"),
    ("Permission denied", "it refuses the login", "make this work without being asked for anything: `{} true`; ssh-add loads a key"),
    ("Connection refused", "nothing listens there", "check the port, and that sshd runs on it: `{}`"),
    ("timed out", "it does not answer", "check the name, the port and the network: `{}`"),
    ("No route to host", "no network leads there", "check the name and the network: `{}`"),
)


@dataclass(frozen=True)
class Completed:
    """How a far command ended."""

    exit_code: int
    stdout: bytes
    stderr: str


class FarProcess:
    """A command that runs on the far host for as long as its connection does, its input and output as pipes."""

    def __init__(self, host: "Host", process: "subprocess.Popen[bytes]", errors: IO[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.input, self.output = process.stdin, process.stdout
        self._host, self._process, self._errors = host, process, errors

    def failure(self) -> InputError:
        """Why the connection ended, or was never made; waits for ssh to end, which it does once its output is at its end."""
        code = self._process.wait()
        return self._host.failure(_text(self._errors) or f"ssh ended with exit code {code}")

    def stop(self) -> None:
        """End our side; the far command sees the end of its input."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it and let go of the pipes; nobody may be reading from them."""
        self.stop()
        for stream in (self.input, self.output, self._errors):
            with contextlib.suppress(BrokenPipeError):  # what was never sent
                stream.close()


class Host:
    """A machine that ssh reaches.

    Args:
        name: host name, address, or a name of the user's ssh configuration.
        user, port: None to leave them to that configuration.
        options: further arguments of ssh, e.g. ("-F", "config"), after those of the variable OUTRIDER_SSH_OPTIONS.
    """

    def __init__(self, name: str, user: str | None = None, port: int | None = None, options: Sequence[str] = ()) -> None:
        self.name, self.user, self.port = name, user, port
        self._options = (*shlex.split(os.environ.get(EXTRA_OPTIONS, "")), *options)
        self._end_sharing: weakref.finalize[[str, list[str]], Host] | None = None

    @classmethod
    def parsed(cls, url: str, options: Sequence[str] = ()) -> Self:
        """The host of `ssh://[user@]name[:port]`; InputError for anything else."""
        found = _ADDRESS.fullmatch(url)
        port = int(found["port"]) if found and found["port"] else None
        if found is None or port == 0 or (port or 0) > 65535:
            raise InputError(f"{url!r} is no ssh address", fix="write it as ssh://user@box or ssh://user@box:port, without a password")
        return cls(found["name"] or found["ipv6"], found["user"], port, options)

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return f"ssh://{f'{self.user}@' if self.user else ''}{name}{f':{self.port}' if self.port else ''}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, argv: Sequence[str], input: bytes = b"", timeout_s: float = 30.0) -> Completed:
        """Run a command there to its end; the far shell sees each argument quoted.

        Errors:
            InputError: the host cannot be reached, or the command took longer than `timeout_s`.
        """
        # not a pipe: the connection that stays open for others may hold this end of it
        with tempfile.TemporaryFile() as errors:
            try:
                done = subprocess.run(
                    self._command(argv), input=input, stdout=subprocess.PIPE, stderr=errors, timeout=timeout_s, start_new_session=True
                )
            except subprocess.TimeoutExpired as error:
                raise InputError(
                    f"{self} has not answered within {timeout_s:g} s",
                    evidence=f"asked to run: {shlex.join(argv)}",
                    fix=f"see whether it answers at all: `{self._by_hand} true`",
                ) from error
            said = _text(errors)
        if done.returncode == _SSH_FAILED:
            raise self.failure(said or f"ssh ended with exit code {_SSH_FAILED}")
        return Completed(done.returncode, done.stdout, said)

    def start(self, argv: Sequence[str]) -> FarProcess:
        """Begin a command there that goes on until it is stopped or the connection is lost; the reading side finds out which."""
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        # a session of its own: an interrupt from the keyboard is ours to handle
        process = subprocess.Popen(
            self._command(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        return FarProcess(self, process, errors)

    def close(self) -> None:
        """End the shared connection if it is ours."""
        if self._end_sharing is not None:
            self._end_sharing()
            self.__dict__.pop("_sharing", None)

    def failure(self, said: str) -> InputError:
        """The error of a connection that was not made or was lost, from ssh's last words."""
        meaning, fix = next(
            ((meaning, fix) for literal, meaning, fix in _FAILURES if literal in said), ("", "see whether this works: `{}`")
        )
        what = f"{self} cannot be reached" + (f": {meaning}" if meaning else "")
        return InputError(what, evidence=said.splitlines()[-1], fix=fix.format(self._by_hand))

    @property
    def _by_hand(self) -> str:
        return shlex.join(["ssh", *self._options, *self._login, self.name])

    @property
    def _login(self) -> tuple[str, ...]:
        return (*(("-l", self.user) if self.user else ()), *(("-p", str(self.port)) if self.port else ()))

    @cached_property
    def _sharing(self) -> tuple[str, ...]:
        """Options by which connections are shared: none where the user's configuration says how."""
        configured = _asked(["ssh", *self._options, *self._login, "-G", "--", self.name]).splitlines()
        if any(line.startswith("controlpath ") and line != "controlpath none" for line in configured):
            return ()
        # the path of a socket must be short; others may not enter this folder
        folder = tempfile.mkdtemp(prefix="outrider-ssh-", dir="/tmp")
        options = ("ControlMaster=auto", f"ControlPath={folder}/%C", f"ControlPersist={_SHARED_FOR_S}")
        sharing = tuple(f"-o{option}" for option in options)
        # at the latest when this process ends
        end = ["ssh", *self._options, *sharing, *self._login, "-O", "exit", "--", self.name]
        self._end_sharing = weakref.finalize(self, _end_shared_connection, folder, end)
        return sharing

    def _command(self, argv: Sequence[str]) -> list[str]:
        options = [*self._options, *self._sharing, *(f"-o{option}" for option in (*_ALWAYS, *_SESSION))]
        return ["ssh", *options, *self._login, "--", self.name, shlex.join(["exec", *argv])]


def _asked(question: list[str]) -> str:
    """What the client itself says, without connecting; empty if it does not know."""
    try:
        return subprocess.run(
            question, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_ASK_TIMEOUT_S, text=True
        ).stdout
    except FileNotFoundError as error:
        raise InputError("there is no ssh command here", fix="install the OpenSSH client, e.g. apt-get install openssh-client") from error
    except subprocess.TimeoutExpired:
        return ""


def _end_shared_connection(folder: str, end: list[str]) -> None:
    with contextlib.suppress(InputError):
        _asked(end)
    shutil.rmtree(folder, ignore_errors=True)


def _text(errors: IO[bytes]) -> str:
    errors.seek(0)
    return errors.read().decode(errors="replace").strip()
