"""A real sshd on loopback, run as this user with keys and configuration of its own; its connections can be cut."""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

_START_TIMEOUT_S = 20.0
_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/client_key.pub
PidFile none
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PermitRootLogin prohibit-password
MaxStartups 100
{extra}
"""
_CLIENT_CONFIG = """\
Host *
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/client_key
  IdentityAgent none
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
"""


class Sshd:
    """One sshd, with the client configuration (`options`) that logs into it.

    Args:
        extra: further lines of its configuration.
    """

    def __init__(self, folder: Path, extra: str = "") -> None:
        self._program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/sbin")
        if self._program is None or shutil.which("ssh") is None:
            pytest.skip("needs sshd and ssh: apt-get install openssh-server openssh-client")
        folder.mkdir(parents=True)
        self.folder, self.port = folder, _free_port()
        for name in ("host_key", "client_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        key = (folder / "host_key.pub").read_text()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {key}")
        (folder / "sshd_config").write_text(_CONFIG.format(port=self.port, folder=folder, extra=extra))
        (folder / "client_config").write_text(_CLIENT_CONFIG.format(port=self.port, folder=folder, user=getpass.getuser()))
        self.options = ("-F", str(folder / "client_config"))
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        # e.g. a user whose account is locked, or has no shell
        tried = subprocess.run(["ssh", *self.options, "-o", "BatchMode=yes", "box", "true"], capture_output=True, text=True)
        if tried.returncode:
            self.stop()
            pytest.skip(f"this user cannot log into an sshd of its own: {tried.stderr.strip()}")

    def start(self) -> None:
        """Listen; returns when connections are taken."""
        if os.getuid() == 0:  # where a root's sshd wants to be able to lock itself in
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with (self.folder / "sshd.log").open("ab") as log:
            command = [str(self._program), "-D", "-e", "-f", str(self.folder / "sshd_config")]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.skip(f"sshd does not start here: {(self.folder / 'sshd.log').read_text()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Take no more connections, and cut those there are."""
        assert self._process is not None
        cut = self.connections()
        self._process.kill()
        self._process.wait()
        _kill(cut)

    def cut(self) -> int:
        """Cut the connections there are, as a network or a reboot does; returns how many. New ones are taken."""
        return _kill(self.connections())

    def connections(self) -> list[psutil.Process]:
        """The processes of sshd that serve a connection: not what they run, which must find out by itself."""
        assert self._process is not None
        return [p for p in psutil.Process(self._process.pid).children(recursive=True) if _name_of(p).startswith("sshd")]

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A real sshd that the whole run of tests shares; whoever cuts it finds it listening afterwards."""
    server = Sshd(tmp_path_factory.mktemp("ssh") / "sshd")
    yield server
    server.stop()


def _kill(processes: list[psutil.Process]) -> int:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return len(processes)


def _name_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
