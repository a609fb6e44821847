"""Commands on another machine, over a real sshd on loopback."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from outrider.core.errors import InputError
from outrider.core.ssh import EXTRA_OPTIONS, Host
from sshd import Sshd, sshd

__all__ = ["sshd"]
_AWKWARD = [
    "plain",
    "",
    "two words",
    "it's",
    '"double"',
    "$(touch pwned)",
    "`touch pwned`",
    "$HOME",
    "a;touch pwned",
    "a && touch pwned",
    "line\nline",
    "*",
    "-n",
    "\\",
    "~",
    "!!",
    "ü",
]


@pytest.fixture
def host(sshd: Sshd) -> Iterator[Host]:
    with Host.parsed("ssh://box", options=sshd.options) as host:
        yield host


@pytest.mark.parametrize(
    ("url", "name", "user", "port"),
    [
        ("ssh://box", "box", None, None),
        ("ssh://me@box.example.com:2222", "box.example.com", "me", 2222),
        ("ssh://me@[::1]:22", "::1", "me", 22),
        ("ssh://gpu_1/", "gpu_1", None, None),
    ],
)
def test_an_address_is_read(url: str, name: str, user: str | None, port: int | None) -> None:
    host = Host.parsed(url)
    assert (host.name, host.user, host.port) == (name, user, port)
    assert str(host) == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        "box",
        "http://box",
        "ssh://",
        "ssh://-oProxyCommand=touch pwned",
        "ssh://-l@box",
        "ssh://me:secret@box",
        "ssh://box:0",
        "ssh://box:99999",
        "ssh://box:x",
        "ssh://box/path",
        "ssh://two words",
        "ssh://box\n",
    ],
)
def test_anything_else_is_refused_with_a_fix(url: str) -> None:
    with pytest.raises(InputError, match="no ssh address") as caught:
        Host.parsed(url)
    assert "ssh://user@box:port" in caught.value.fix


def test_arguments_arrive_as_they_were_given(host: Host, tmp_path: Path) -> None:
    show = 'cd "$1" && shift && printf "[%s]\\0" "$@"'
    done = host.run(["sh", "-c", show, "sh", str(tmp_path), *_AWKWARD])
    assert done.stdout.decode().split("\0")[:-1] == [f"[{text}]" for text in _AWKWARD]
    assert not list(tmp_path.iterdir())


def test_input_outputs_and_exit_code_are_those_of_the_far_command(host: Host) -> None:
    data = os.urandom(300_000)
    assert host.run(["cat"], input=data).stdout == data
    failed = host.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (failed.exit_code, failed.stdout, failed.stderr) == (3, b"out\n", "err")


def test_a_command_goes_on_until_it_is_stopped(host: Host) -> None:
    process = host.start(["cat"])
    for line in (b"one\n", b"two\n"):
        process.input.write(line)
        process.input.flush()
        assert process.output.readline() == line
    process.close()


def test_the_far_command_of_a_process_sees_the_end_of_its_input(host: Host, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    process = host.start(["sh", "-c", 'echo $$; cat; : >"$1"', "sh", str(ended)])
    process.output.readline()
    process.close()
    deadline = time.monotonic() + 10
    while not ended.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert ended.exists()


def test_a_lost_connection_says_so(host: Host, sshd: Sshd) -> None:
    process = host.start(["sh", "-c", "echo ready; cat"])
    process.output.readline()
    assert sshd.cut() > 0
    assert process.output.read() == b""
    assert "box cannot be reached" in process.failure().what
    process.close()
    assert host.run(["echo", "again"]).stdout == b"again\n"


def test_connections_are_shared_and_none_is_left(sshd: Sshd) -> None:
    before = _ssh_processes()
    with Host.parsed("ssh://box", options=sshd.options) as host:
        ports = {host.run(["sh", "-c", "echo $SSH_CLIENT"]).stdout for _ in range(3)}
        assert len(ports) == 1
        assert len(_ssh_processes() - before) == 1
    deadline = time.monotonic() + 10
    while _ssh_processes() - before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _ssh_processes() - before


def test_a_host_that_nobody_closes_leaves_nothing(sshd: Sshd) -> None:
    before = _ssh_processes()
    code = "import sys; from outrider.core.ssh import Host; Host.parsed('ssh://box', sys.argv[1:]).run(['true'])"
    subprocess.run([sys.executable, "-c", code, *sshd.options], check=True)
    assert not _ssh_processes() - before


def test_a_machine_without_ssh_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(InputError, match="no ssh command here") as caught:
        Host.parsed("ssh://box").run(["true"])
    assert "openssh-client" in caught.value.fix


def test_where_the_user_shares_connections_theirs_is_used(sshd: Sshd, tmp_path: Path) -> None:
    socket = Path(f"/tmp/outrider-test-{os.getpid()}")
    config = tmp_path / "config"
    config.write_text(f"Host *\n  ControlMaster auto\n  ControlPath {socket}\n  ControlPersist 60\nInclude {sshd.options[1]}\n")
    with Host.parsed("ssh://box", options=("-F", str(config))) as host:
        host.run(["true"])
    asked = ["ssh", "-F", str(config), "-O"]
    try:
        assert subprocess.run([*asked, "check", "box"], capture_output=True).returncode == 0
    finally:
        subprocess.run([*asked, "exit", "box"], capture_output=True)


def test_extra_options_come_from_the_environment(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXTRA_OPTIONS, " ".join(sshd.options))
    with Host.parsed("ssh://any-name") as host:
        assert host.run(["echo", "there"]).stdout == b"there\n"


def test_what_user_configuration_gives_its_own_sessions_does_not_disturb(sshd: Sshd, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        f"Host *\n  RemoteCommand echo other\n  RequestTTY force\n  LocalForward {sshd.port} 127.0.0.1:1\n"
        f"  ExitOnForwardFailure yes\nInclude {sshd.options[1]}\n"
    )
    with Host.parsed("ssh://box", options=("-F", str(config))) as host:
        assert host.run(["echo", "ours"]).stdout == b"ours\n"


@pytest.mark.parametrize(
    ("spoilt", "meaning", "fix"),
    [
        (("-o", "UserKnownHostsFile=/dev/null"), "host key is not known", "accept the key"),
        (("-o", "User=no-such-user"), "refuses the login", "ssh-add"),
        (("-o", "Port=1"), "nothing listens", "check the port"),
        (("-o", "HostName=no-such-host.invalid"), "name is not known", "check the name"),
        (("-o", "ProxyCommand=sh -c 'exit 7'"), "cannot be reached", "see whether this works"),
    ],
)
def test_a_host_that_cannot_be_reached_is_one_error_with_its_fix(sshd: Sshd, spoilt: tuple[str, str], meaning: str, fix: str) -> None:
    with Host.parsed("ssh://box", options=(*spoilt, *sshd.options)) as host, pytest.raises(InputError) as caught:
        host.run(["true"])
    assert "ssh://box cannot be reached" in caught.value.what and meaning in caught.value.what
    assert fix in caught.value.fix
    assert caught.value.evidence


def test_a_command_that_takes_too_long_is_given_up(host: Host) -> None:
    began = time.monotonic()
    with pytest.raises(InputError, match=r"not answered within 0\.5 s"):
        host.run(["sleep", "60"], timeout_s=0.5)
    assert time.monotonic() - began < 5


def _ssh_processes() -> set[psutil.Process]:
    """Shared connections that are ours: they have no parent any more, and are told by their socket's folder."""
    return {process for process in psutil.process_iter() if "outrider-ssh-" in _title(process)}


def _title(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is one of them
        return " ".join(process.cmdline())
    return ""
