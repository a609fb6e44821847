"""Where in a growing log we are, through rotation, truncation and cuts: no byte lost, none given twice.

A log is rotated in two ways. It is renamed to `path.1` (and `path.1` to `path.2` before), and a new file is written: the old
one is read to its end first, then the ones between, then the new one. Or it is copied to `path.1` and cut to nothing: the
copy is then the file in which we were, and is read to its end. So the place is known by the file's inode, how many bytes of
it were read, and what the last of these were: a file whose bytes there differ is not, or no longer, the one we were reading.
"""

import contextlib
import os
import stat
from pathlib import Path
from typing import NamedTuple, Protocol

from outrider.core.errors import InputError

READ_BYTES = 1 << 20
LAST_NUMBER = 9  # of a rotated file that is looked for
_REMEMBERED_BYTES = 256
_TELLING_BYTES = 64  # of these, by which a file is known again that has another inode


class LogFile(NamedTuple):
    """A file of the log: 0 is the path itself, n what rotation has made `path.n`."""

    number: int
    inode: int
    size: int


class Listing(NamedTuple):
    """The log's files there are, by number; `missing` says why the path itself is not among them."""

    files: list[LogFile]
    missing: str


class Look(NamedTuple):
    """What is at the path, None for nothing; then what the held file has, None if it ends where we are."""

    at_path: LogFile | None
    data: bytes | None


class LogFiles(Protocol):
    """Reads a log's files, one of which it holds open, whatever becomes of its name."""

    def listing(self) -> Listing:
        """The files there are."""

    def hold(self, file: LogFile) -> bool:
        """Hold this file instead; False, and nothing has changed, if it is no longer there by that name."""

    def look(self, offset: int, before: int, limit: int) -> Look:
        """At most `limit` bytes of the held file from `offset`, and the `before` bytes that come before these."""


class Following:
    """Follows a log. `waiting_for` says why there is nothing to read, "" if the log merely has not grown.

    `gaps` counts how often the rest of what was being read could not be found: a log cut short without a copy, or rotated
    away for good while no connection was there. What it lost is not known.
    """

    def __init__(self, files: LogFiles, path: str) -> None:
        self.waiting_for = ""
        self.gaps = 0
        self._files, self._path = files, path
        self._held = False
        self._inode = self._offset = 0
        self._last = b""

    def go_on_through(self, files: LogFiles) -> None:
        """Read on where we are through another connection."""
        self._files, self._held = files, False

    def read(self) -> bytes:
        """What is new, at most READ_BYTES of it; b"" if nothing, or if a next call has to look somewhere else."""
        new = self._read_on() if self._held else self._find()
        # a writer that does not append leaves a hole where its log was cut short; no log has zeros
        return new.replace(b"\0", b"")

    def _read_on(self) -> bytes:
        at_path, data = self._files.look(self._offset, len(self._last), READ_BYTES)
        if data is not None and not data.startswith(self._last):
            self._held = False  # cut short or written anew since
            return b""
        new = data[len(self._last) :] if data else b""
        self.waiting_for = "" if new or at_path else f"{self._path} was moved or removed; nothing is there yet"
        if not new and at_path and at_path.inode != self._inode and at_path.size:
            return self._turn_to_next()  # its writer writes to the new file already, so the old one is complete
        self._offset += len(new)
        self._last = (self._last + new)[-_REMEMBERED_BYTES:]
        return new

    def _find(self) -> bytes:
        """Hold the file in which we were; if there is none, begin the path's."""
        files, self.waiting_for = self._files.listing()
        if any(self._is_where_we_were(file) for file in sorted(files, key=lambda file: file.inode != self._inode)):
            return self._read_on()
        if not files or files[0].number:
            return b""
        was_elsewhere = self._offset > 0
        new = self._begin(files[0], files)
        self.gaps += bool(new) and was_elsewhere
        return new

    def _is_where_we_were(self, file: LogFile) -> bool:
        # of another file, e.g. a copy, few equal bytes mean nothing
        known = file.inode == self._inode or len(self._last) >= _TELLING_BYTES
        if not known or not self._files.hold(file):
            return False
        if self._last and self._files.look(self._offset - len(self._last), 0, len(self._last)).data != self._last:
            return False
        self._inode, self._held = file.inode, True
        return True

    def _turn_to_next(self) -> bytes:
        files, _ = self._files.listing()
        ours = min((file.number for file in files if file.inode == self._inode), default=1)
        newer = [file for file in files if file.number < ours and file.size]
        # we may have read a copy whose original is cut short only now
        if not newer or self._is_where_we_were(newer[-1]):
            return b""
        return self._begin(newer[-1], files)

    def _begin(self, file: LogFile, listed: list[LogFile]) -> bytes:
        """Read a file from its beginning, unless a rotation since it was listed may have put another in its place."""
        self._held = False
        if not self._files.hold(file):
            return b""
        data = self._files.look(0, 0, READ_BYTES).data or b""
        now, _ = self._files.listing()
        is_as_listed = [known[:2] for known in now] == [known[:2] for known in listed]
        is_complete = all(known.size == self._offset for known in now if known.inode == self._inode != file.inode)
        # of an empty file nothing is known by which to find it again, so we stay where we were
        if not is_as_listed or not is_complete or (self._offset and not data):
            return b""
        self._inode, self._offset, self._last, self._held = file.inode, len(data), data[-_REMEMBERED_BYTES:], True
        return data


class LocalFiles:
    """A log's files on this machine."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._held: int | None = None

    def listing(self) -> Listing:
        """The files there are; InputError if the path is no file or may not be seen."""
        found = [self._file(number) for number in range(LAST_NUMBER + 1)]
        files = [file for file in found if file]
        return Listing(files, "" if found[0] else missing(self._path, Path(self._path).parent.is_dir()))

    def hold(self, file: LogFile) -> bool:
        """Hold this file instead; InputError if the path may not be read."""
        try:
            opened = os.open(self._name(file.number), os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        except PermissionError as error:
            if file.number:
                return False
            raise not_allowed(self._path) from error
        if os.fstat(opened).st_ino != file.inode:
            os.close(opened)
            return False
        self.close()
        self._held = opened
        return True

    def look(self, offset: int, before: int, limit: int) -> Look:
        """What is at the path, then what the held file has."""
        assert self._held is not None
        # in this order: had the path been looked at last, the old file might have grown in between
        at_path = self._file(0)
        if os.fstat(self._held).st_size == offset:
            return Look(at_path, None)
        return Look(at_path, os.pread(self._held, before + limit, offset - before))

    def close(self) -> None:
        """Hold nothing."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _file(self, number: int) -> LogFile | None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            try:
                found = Path(self._name(number)).stat()
            except PermissionError as error:
                raise not_allowed(self._path) from error
            if stat.S_ISREG(found.st_mode):
                return LogFile(number, found.st_ino, found.st_size)
            if not number:
                raise no_file(self._path)
        return None

    def _name(self, number: int) -> str:
        return f"{self._path}.{number}" if number else self._path


def missing(path: str, folder_is_there: bool) -> str:
    """Why a log cannot be read yet."""
    return f"{path} does not exist yet" if folder_is_there else f"{path} does not exist yet, nor does its folder"


def not_allowed(path: str) -> InputError:
    """The error of a log that may not be read."""
    return InputError(f"{path} may not be read by this user", fix="read it as its owner, or have its permissions changed")


def no_file(path: str) -> InputError:
    """The error of a path that is a folder, a pipe or a device."""
    return InputError(f"{path} is no regular file", fix="name the log file; a pipe is watched as standard input: `... | outrider watch -`")
