"""A log's bytes, from a file here, a pipe, and a file on a real sshd's machine, with the tools of dash and of busybox there."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from engines.log_writer import BEGUN, Writer, copy_and_truncate, numbered, read_until, rotate
from outrider.core.errors import InputError
from outrider.core.ssh import EXTRA_OPTIONS, Host
from outrider.engines.log_source import LocalLog, LogSource, PipedLog, RemoteLog, log_named
from sshd import Sshd, sshd

__all__ = ["sshd"]
_FAR_TOOLS = ("sh", "ls", "dd", "cat", "head")
Opened = Callable[[Path], LogSource]


@pytest.fixture(scope="session")
def busybox_sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """An sshd whose sessions find busybox, and nothing else."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("needs busybox")
    tools = tmp_path_factory.mktemp("busybox")
    for name in _FAR_TOOLS:
        (tools / name).symlink_to(busybox)
    server = Sshd(tmp_path_factory.mktemp("ssh") / "busybox", f"SetEnv PATH={tools}")
    yield server
    server.stop()


@pytest.fixture(params=["here", "ssh", "ssh to busybox"])
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    """Opens a log from each place a file can be in."""
    with contextlib.ExitStack() as closing:

        def here(path: Path) -> LogSource:
            return LocalLog(path)

        def far(path: Path) -> LogSource:
            server: Sshd = request.getfixturevalue("sshd" if request.param == "ssh" else "busybox_sshd")
            return RemoteLog(closing.enter_context(Host.parsed("ssh://box", options=server.options)), str(path))

        def open_it(path: Path) -> LogSource:
            source = here(path) if request.param == "here" else far(path)
            closing.callback(source.close)
            return source

        yield open_it


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "a server's log, $(really); it is.log"


def test_what_is_written_is_read_once_and_in_order(opened: Opened, log: Path) -> None:
    log.write_bytes(numbered(0, 100))
    source = opened(log)
    assert read_until(source, len(numbered(0, 100))) == numbered(0, 100)
    for part in (b"half a li", b"ne\n\nand ", "ü".encode()[:1], "ü".encode()[1:], b"\xff\x01\x1b[0m\r\n"):
        with log.open("ab") as file:
            file.write(part)
        assert read_until(source, len(part)) == part
    assert not source.waiting_for and not source.ended


def test_more_than_one_piece_is_read_whole(opened: Opened, log: Path) -> None:
    data = os.urandom(3_300_001).replace(b"\0", b"0")
    log.write_bytes(data)
    assert read_until(opened(log), len(data)) == data


def test_a_missing_file_is_waited_for_with_the_reason(opened: Opened, tmp_path: Path) -> None:
    log = tmp_path / "later" / "server.log"
    source = opened(log)
    _wait_until(source, lambda: "nor does its folder" in source.waiting_for)
    log.parent.mkdir()
    _wait_until(source, lambda: source.waiting_for == f"{log} does not exist yet")
    log.write_bytes(b"here\n")
    assert read_until(source, 5) == b"here\n"
    assert source.waiting_for == ""


@pytest.mark.parametrize("way", [rotate, copy_and_truncate])
def test_a_rotated_file_is_read_to_its_end_first(opened: Opened, log: Path, way: Callable[[Path], None]) -> None:
    log.write_bytes(numbered(0, 50))
    source = opened(log)
    assert read_until(source, len(numbered(0, 50))) == numbered(0, 50)
    # all of this happens between two looks, or nearly so
    for first in (50, 60, 70):
        with log.open("ab") as file:
            file.write(numbered(first, 10))
        way(log)
    with log.open("ab") as file:
        file.write(numbered(80, 10))
    assert read_until(source, len(numbered(50, 40))) == numbered(50, 40)
    assert source.gaps == 0  # type: ignore[attr-defined]


def test_the_writer_may_go_on_with_the_old_file_until_the_new_one_has_something(opened: Opened, log: Path) -> None:
    with log.open("ab", buffering=0) as old:
        old.write(b"one\n")
        source = opened(log)
        assert read_until(source, 4) == b"one\n"
        rotate(log)
        _wait_until(source, lambda: "moved or removed" in source.waiting_for)
        log.touch()
        _wait_until(source, lambda: source.waiting_for == "")
        old.write(b"two\n")
        assert read_until(source, 4) == b"two\n"
    log.write_bytes(b"three\n")
    assert read_until(source, 6) == b"three\n"


def test_a_removed_file_is_read_to_its_end_and_then_the_new_one(opened: Opened, log: Path) -> None:
    with log.open("ab", buffering=0) as old:
        old.write(b"one\n")
        source = opened(log)
        assert read_until(source, 4) == b"one\n"
        log.unlink()
        old.write(b"two\n")
        assert read_until(source, 4) == b"two\n"
    log.write_bytes(b"three\n")
    assert read_until(source, 6) == b"three\n"


def test_a_file_written_anew_is_read_from_its_beginning_even_if_it_is_longer(opened: Opened, log: Path) -> None:
    log.write_bytes(numbered(0, 10))
    source = opened(log)
    assert read_until(source, len(numbered(0, 10))) == numbered(0, 10)
    log.write_bytes(numbered(500, 20))  # the same inode
    assert read_until(source, len(numbered(500, 20))) == numbered(500, 20)
    assert source.gaps == 1  # type: ignore[attr-defined]


def test_an_older_log_that_began_alike_is_not_taken_for_a_copy(opened: Opened, log: Path) -> None:
    log.with_name(f"{log.name}.1").write_bytes(b"INFO starting\nof another time\n")
    log.write_bytes(b"INFO starting\n")
    source = opened(log)
    assert read_until(source, 14) == b"INFO starting\n"
    log.write_bytes(b"anew\n")
    assert read_until(source, 5) == b"anew\n"


def test_the_hole_that_a_writer_leaves_where_its_log_was_cut_is_no_text(opened: Opened, log: Path) -> None:
    with log.open("wb", buffering=0) as writer:  # it does not append
        writer.write(numbered(0, 100))
        source = opened(log)
        assert read_until(source, len(numbered(0, 100))) == numbered(0, 100)
        copy_and_truncate(log)
        writer.write(b"after\n")
        assert log.read_bytes().startswith(b"\0\0")
        assert read_until(source, 6) == b"after\n"


def test_a_link_is_followed_to_where_it_leads_next(opened: Opened, log: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).write_bytes(f"{name}\n".encode())
    log.symlink_to("first")
    source = opened(log)
    assert read_until(source, 6) == b"first\n"
    (tmp_path / "new").symlink_to("second")
    (tmp_path / "new").rename(log)
    assert read_until(source, 7) == b"second\n"


def test_what_is_no_file_is_refused(opened: Opened, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(InputError, match="no regular file"):
            read_until(opened(path), 1, timeout_s=10)


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(opened: Opened, log: Path) -> None:
    log.write_bytes(b"secret\n")
    log.chmod(0)
    with pytest.raises(InputError, match="may not be read"):
        read_until(opened(log), 1, timeout_s=10)


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root, who becomes somebody else")
def test_a_file_that_may_not_be_read_is_refused_to_others(log: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from outrider.engines.log_following import LocalFiles, LogFile\n"
        "from outrider.core.errors import InputError\n"
        "files = LocalFiles(sys.argv[1])\n"
        "try: files.hold(files.listing().files[0])\n"
        "except InputError as error: print(error.what)\n"
    )
    log.write_bytes(b"secret\n")
    log.chmod(0)
    # no right is left but that to pass through folders of others, where the tests lie
    mine = ["setpriv", "--bounding-set=-all,+dac_read_search", "--inh-caps=-all", "--reuid=65534", "--clear-groups"]
    said = subprocess.run([*mine, sys.executable, "-c", code, str(log)], capture_output=True, text=True)
    if "Permission denied" in said.stderr or "ModuleNotFoundError" in said.stderr:
        pytest.skip("nobody else may enter the tests' folders")
    assert said.stdout == f"{log} may not be read by this user\n", said.stderr


@pytest.mark.parametrize("rotation", ["none", "rename", "copy"])
def test_a_log_written_quickly_is_read_whole(opened: Opened, log: Path, rotation: str) -> None:
    writer, source = Writer(log, rotation), opened(log)
    data = read_until(source, len(BEGUN))
    with writer:
        while writer.num_lines < 3500:
            data += source.read()
    data += read_until(source, len(writer.expected()) - len(data))
    assert data == writer.expected()
    assert (writer.num_rotations > 0) == (rotation != "none")


@pytest.mark.parametrize("rotation", ["none", "rename", "copy"])
def test_nothing_is_lost_or_doubled_when_the_connection_is_cut(sshd: Sshd, log: Path, rotation: str) -> None:
    with Host.parsed("ssh://box", options=sshd.options) as host:
        writer, source = Writer(log, rotation), RemoteLog(host, str(log))
        data = read_until(source, len(BEGUN))
        with writer:
            for number in range(3):
                while writer.num_lines < 1000 * (number + 1) or not sshd.cut():
                    data += source.read()
        data += read_until(source, len(writer.expected()) - len(data))
        source.close()
    assert data == writer.expected()
    assert source.gaps == 0


@pytest.mark.parametrize("way", [rotate, copy_and_truncate])
def test_what_was_rotated_while_there_was_no_connection_is_read(sshd: Sshd, log: Path, way: Callable[[Path], None]) -> None:
    log.write_bytes(numbered(0, 50))
    with Host.parsed("ssh://box", options=sshd.options) as host:
        source = RemoteLog(host, str(log))
        assert read_until(source, len(numbered(0, 50))) == numbered(0, 50)
        sshd.stop()
        _wait_until(source, lambda: "nothing" not in source.waiting_for and "is lost and made again" in source.waiting_for)
        for first in (50, 60, 70):
            with log.open("ab") as file:
                file.write(numbered(first, 10))
            way(log)
        with log.open("ab") as file:
            file.write(numbered(80, 10))
        sshd.start()
        assert read_until(source, len(numbered(50, 40))) == numbered(50, 40)
        assert source.waiting_for == "" and source.gaps == 0
        source.close()


def test_a_host_that_was_never_reached_is_an_error_and_no_wait(sshd: Sshd) -> None:
    with Host.parsed("ssh://box", options=("-o", "Port=1", *sshd.options)) as host:
        source = RemoteLog(host, "/any.log")
        with pytest.raises(InputError, match="cannot be reached: nothing listens there"):
            read_until(source, 1, timeout_s=10)
        source.close()


def test_a_read_never_takes_long_even_if_the_host_says_nothing(sshd: Sshd, log: Path) -> None:
    log.write_bytes(b"one\n")
    with Host.parsed("ssh://box", options=sshd.options) as host:
        source = RemoteLog(host, str(log))
        assert read_until(source, 4) == b"one\n"
        with _frozen(sshd):
            reads_s = []
            while "has not answered for" not in source.waiting_for:
                began_s = time.monotonic()
                source.read()
                reads_s.append(time.monotonic() - began_s)
        assert max(reads_s) < 0.4
        log.write_bytes(b"one\ntwo\n")
        assert read_until(source, 4) == b"two\n"
        source.close()


def test_a_line_is_read_well_within_half_a_second(opened: Opened, log: Path) -> None:
    log.write_bytes(b"")
    source = opened(log)
    _wait_until(source, lambda: source.waiting_for == "")
    waited_s = []
    for number in range(12):
        time.sleep(0.03 * number)
        with log.open("ab") as file:
            file.write(b"now\n")
        written_s = time.monotonic()
        while source.read() != b"now\n":
            assert time.monotonic() - written_s < 5
        waited_s.append(time.monotonic() - written_s)
    assert sorted(waited_s)[len(waited_s) // 2] < 0.4


def test_nothing_is_left_of_a_closed_log(opened: Opened, log: Path) -> None:
    before, threads = set(psutil.Process().children()), threading.active_count()
    log.write_bytes(b"one\n")
    source = opened(log)
    assert read_until(source, 4) == b"one\n"
    source.close()
    assert threading.active_count() == threads
    assert not [process for process in set(psutil.Process().children()) - before if process.status() != psutil.STATUS_ZOMBIE]


def test_a_pipe_is_read_until_it_is_closed() -> None:
    for_reading, for_writing = os.pipe()
    with os.fdopen(for_reading, "rb") as stream:
        source = PipedLog(stream)
        began_s = time.monotonic()
        assert source.read() == b"" and not source.ended
        assert time.monotonic() - began_s < 0.4
        for part in (b"half a li", b"ne\n"):
            os.write(for_writing, part)
            assert source.read() == part
        os.write(for_writing, b"last")
        os.close(for_writing)
        assert (source.read(), source.ended) == (b"last", False)
        assert (source.read(), source.ended) == (b"", True)


def test_a_log_is_named_as_users_name_it(sshd: Sshd, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write_bytes(b"one\n")
    assert read_until(log_named(str(log)), 4) == b"one\n"
    monkeypatch.setenv(EXTRA_OPTIONS, " ".join(sshd.options))
    source = log_named(f"ssh://box{log}")
    assert read_until(source, 4) == b"one\n"
    source.close()
    for_reading, for_writing = os.pipe()
    os.close(for_writing)
    with os.fdopen(for_reading) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        source = log_named("-")
        assert source.read() == b"" and source.ended
    with pytest.raises(InputError, match="names no log file"):
        log_named("ssh://box")


def _wait_until(source: LogSource, holds: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert source.read() == b""
        assert time.monotonic() < deadline, f"waiting for: {source.waiting_for}"


@contextlib.contextmanager
def _frozen(sshd: Sshd) -> Iterator[None]:
    """Its connections are there and answer nothing."""
    stopped = sshd.connections()
    for process in stopped:
        process.suspend()
    try:
        yield
    finally:
        for process in stopped:
            process.resume()
