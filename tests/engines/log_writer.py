"""A log that is written quickly, in numbered lines, and rotated in the two ways there are."""

import shutil
import threading
import time
from pathlib import Path
from typing import Self

from outrider.engines.log_following import LAST_NUMBER
from outrider.engines.log_source import LogSource


def numbered(first: int, number: int) -> bytes:
    """Lines that differ in length and tell their number."""
    return b"".join(b"line %d %s\n" % (n, b"x" * (n % 90)) for n in range(first, first + number))


def rotate(path: Path) -> None:
    """Rename the log to `path.1`, after those before it; nothing is at the path afterwards."""
    make_room(path)
    path.rename(rotated(path, 1))


def copy_and_truncate(path: Path) -> None:
    """Copy the log to `path.1`, after those before it, and cut it to nothing."""
    make_room(path)
    shutil.copyfile(path, rotated(path, 1))
    with path.open("r+b") as log:
        log.truncate(0)


def read_until(source: LogSource, length: int, timeout_s: float = 30.0) -> bytes:
    """What a source gives until that is as long; then a moment more, in which nothing should come."""
    data, deadline = b"", time.monotonic() + timeout_s
    while len(data) < length and time.monotonic() < deadline:
        data += source.read()
    for _ in range(2):
        data += source.read()
    return data


BEGUN = numbered(0, 25)


class Writer:
    """Writes BEGUN at once, and further lines in a thread while it is entered.

    Args:
        rotation: called with the path between lines; None for never.
        every: lines between rotations.
    """

    def __init__(self, path: Path, rotation: str = "none", every: int = 1000) -> None:
        path.write_bytes(BEGUN)
        self.num_lines = 25
        self.num_rotations = 0
        self._path, self._every = path, every
        self._rotation = {"none": None, "rename": rotate, "copy": copy_and_truncate}[rotation]
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    def expected(self) -> bytes:
        """All that was written; only once it was left."""
        return numbered(0, self.num_lines)

    def _write(self) -> None:
        log = self._path.open("ab", buffering=0)
        while not self._left.is_set():
            lines = numbered(self.num_lines, 25)
            cut = self.num_lines % len(lines)  # a line is written in two pieces
            log.write(lines[:cut])
            log.write(lines[cut:])
            self.num_lines += 25
            if self._rotation and self.num_lines % self._every == 0:
                self._rotation(self._path)
                log.close()
                log = self._path.open("ab", buffering=0)
                self.num_rotations += 1
            time.sleep(0.005)
        log.close()


def make_room(path: Path) -> None:
    """Rename `path.1` to `path.2`, and so on."""
    for number in range(LAST_NUMBER, 0, -1):
        if rotated(path, number).exists():
            rotated(path, number).rename(rotated(path, number + 1))


def rotated(path: Path, number: int) -> Path:
    """The name of a rotated file."""
    return path.with_name(f"{path.name}.{number}")
