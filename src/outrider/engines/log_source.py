"""Where a log's bytes come from: a file here, a pipe, or a file on another machine."""

import os
import queue
import select
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO, Protocol

from outrider.core.errors import InputError
from outrider.core.ssh import FarProcess, Host
from outrider.engines.log_far import CutOff, FarFiles, far_command
from outrider.engines.log_following import READ_BYTES, Following, LocalFiles

_PAUSE_S = 0.05  # before a file that had nothing new is looked at again
_FAR_PAUSE_S = 0.1
_WAIT_S = 0.2  # of one read
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.2, 5.0
_LONG_S = 3.0  # for a host to answer one request
_KEPT_READS = 4  # that were read ahead of whoever reads us


class LogSource(Protocol):
    """A log as it is written."""

    @property
    def waiting_for(self) -> str:
        """Why there can be nothing new: the file is missing, the connection is cut; "" otherwise."""

    @property
    def ended(self) -> bool:
        """Nothing more will ever come."""

    def read(self) -> bytes:
        """What is new, at most about 1 MB of it; b"" if nothing has come within 0.3 s.

        Errors:
            InputError: it can never be read.
        """

    def close(self) -> None:
        """Let go of it."""


def log_named(name: str) -> LogSource:
    """The log that a user names: `-` for standard input, `ssh://[user@]host[:port]/path`, or a file here."""
    if name == "-":
        return PipedLog(sys.stdin.buffer)
    if not name.startswith("ssh://"):
        return LocalLog(Path(name))
    address, slash, path = name.removeprefix("ssh://").partition("/")
    if not path:
        raise InputError(f"{name!r} names no log file", fix="write it as ssh://user@box/path/server.log")
    return RemoteLog(Host.parsed(f"ssh://{address}"), slash + path)


class LocalLog:
    """A file on this machine; it may still be missing, and may be rotated or cut short."""

    ended = False

    def __init__(self, path: Path) -> None:
        self._files = LocalFiles(str(path))
        self._following = Following(self._files, str(path))
        self._not_before_s = 0.0

    @property
    def waiting_for(self) -> str:
        """Why there can be nothing new."""
        return self._following.waiting_for

    @property
    def gaps(self) -> int:
        """How often the rest of what was being read could not be found."""
        return self._following.gaps

    def read(self) -> bytes:
        """What is new, at most 1 MB; b"" if nothing."""
        time.sleep(max(0.0, self._not_before_s - time.monotonic()))
        data = self._following.read()
        self._not_before_s = 0.0 if data else time.monotonic() + _PAUSE_S
        return data

    def close(self) -> None:
        """Close the file."""
        self._files.close()


class PipedLog:
    """A stream that another program writes, e.g. standard input; ended when that program has closed it."""

    waiting_for = ""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.ended = False

    def read(self) -> bytes:
        """What has come, at most 1 MB; b"" if nothing has within 0.2 s."""
        if self.ended or not select.select([self._stream], [], [], _WAIT_S)[0]:
            return b""
        data = os.read(self._stream.fileno(), READ_BYTES)
        self.ended = not data
        return data

    def close(self) -> None:
        """Nothing: the stream is its opener's."""


class RemoteLog:
    """A file on another machine. After the first connection was made, a cut is waited out for ever.

    A thread asks for it, piece by piece, so that reading never waits for the network. A piece that a cut tore is thrown away and
    asked for again.

    Args:
        host: who closes it is its owner.
        path: absolute.
    """

    ended = False

    def __init__(self, host: Host, path: str) -> None:
        self._host, self._path = host, path
        self._pieces: queue.Queue[bytes | Exception] = queue.Queue(_KEPT_READS)
        self._closed = threading.Event()
        self._process: FarProcess | None = None
        self._following: Following | None = None
        self._cut = ""
        self._asked_s: float | None = None
        self._thread = threading.Thread(target=self._follow, name=f"log of {host}", daemon=True)
        self._thread.start()

    @property
    def waiting_for(self) -> str:
        """Why there can be nothing new: the connection, or the file."""
        asked_s = self._asked_s
        if asked_s is not None and time.monotonic() - asked_s > _LONG_S:
            return f"{self._host} has not answered for {time.monotonic() - asked_s:.0f} s"
        return self._cut or (self._following.waiting_for if self._following else f"{self._host} is being connected to")

    @property
    def gaps(self) -> int:
        """How often the rest of what was being read could not be found."""
        return self._following.gaps if self._following else 0

    def read(self) -> bytes:
        """What is new; b"" if nothing has come within 0.2 s.

        Errors:
            InputError: the first connection could not be made, or the file may not be read.
        """
        try:
            piece = self._pieces.get(timeout=_WAIT_S)
        except queue.Empty:
            return b""
        if isinstance(piece, Exception):
            raise piece
        return piece

    def close(self) -> None:
        """End the connection; returns when nothing of it is left here."""
        self._closed.set()
        if process := self._process:
            process.stop()
        self._thread.join()

    def _follow(self) -> None:
        delay_s = _FIRST_DELAY_S
        try:
            while not self._closed.is_set():
                began_s = time.monotonic()
                lost = self._follow_until_cut()
                if self._following is None:
                    raise lost
                delay_s = _FIRST_DELAY_S if not self._cut else min(2 * delay_s, _LONGEST_DELAY_S)
                self._cut = f"the connection to {self._host} is lost and made again: {lost.evidence}"
                self._closed.wait(max(0.0, began_s + delay_s - time.monotonic()))
        except Exception as error:  # for whoever reads
            self._put(error)

    def _follow_until_cut(self) -> InputError:
        """Read through one connection; returns why it ended."""
        self._process = process = self._host.start(far_command(self._path))
        if self._closed.is_set():  # by whom did not see the process yet
            process.stop()
        try:
            files = FarFiles(process, self._path)
            if self._following is None:
                self._following = Following(files, self._path)
            else:
                self._following.go_on_through(files)
            while not self._closed.is_set():
                self._asked_s = time.monotonic()
                data = self._following.read()
                self._asked_s, self._cut = None, ""
                if data:
                    self._put(data)
                else:
                    self._closed.wait(_FAR_PAUSE_S)
        except CutOff:
            return process.failure()
        finally:
            self._asked_s = None
            process.close()
        return InputError(f"the log of {self._host} was closed")

    def _put(self, piece: bytes | Exception) -> None:
        while not self._closed.is_set():
            try:
                return self._pieces.put(piece, timeout=_WAIT_S)
            except queue.Full:
                continue
        return None
