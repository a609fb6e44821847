"""A log's place is kept whatever is done to its files between any two looks at them."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engines.log_writer import make_room, numbered, rotated
from outrider.engines.log_following import LAST_NUMBER, Following, Listing, LocalFiles, LogFile, Look

_BEGUN_LINES = 20
_COPIED_AT_ONCE = 2000  # bytes; a copy is not made in one go


class Disturbed:
    """A log's files, to which something is done before every look at them."""

    def __init__(self, path: Path, disturb: Callable[[], None]) -> None:
        self._files, self._disturb = LocalFiles(str(path)), disturb

    def listing(self) -> Listing:
        self._disturb()
        return self._files.listing()

    def hold(self, file: LogFile) -> bool:
        self._disturb()
        return self._files.hold(file)

    def look(self, offset: int, before: int, limit: int) -> Look:
        self._disturb()
        return self._files.look(offset, before, limit)

    def close(self) -> None:
        self._files.close()


class Life:
    """What happens to a log, one step at a time: lines, and now and then a rotation, itself in steps."""

    def __init__(self, path: Path, way: str, seed: int) -> None:
        self.num_lines = self.num_read = 0
        self.rotated_at = list[int]()  # after which line
        self.is_over = False
        self._path, self._rng = path, random.Random(seed)
        self._rotation = {"rename": self._rename, "copy": self._copy}[way]
        self._log = path.open("ab", buffering=0)
        self._steps: Iterator[None] = iter(())
        self._write(_BEGUN_LINES)

    def step(self) -> None:
        """Something, or nothing, happens."""
        if next(self._steps, self) is not self or self.is_over:
            return
        behind = sum(number >= self.num_read for number in self.rotated_at)
        if self._rng.random() < 0.06 and behind < LAST_NUMBER - 1:  # rotation forgets what is older
            self._steps = self._rotation()
            self.rotated_at.append(self.num_lines)
        elif self._rng.random() < 0.5:
            self._write(self._rng.randint(1, 40))

    def end(self) -> None:
        """Nothing happens any more."""
        for _ in self._steps:
            pass
        self.is_over = True
        self._write(1)
        self._log.close()

    def _write(self, number: int) -> None:
        self._log.write(numbered(self.num_lines, number))
        self.num_lines += number

    def _rename(self) -> Iterator[None]:
        make_room(self._path)
        yield
        self._path.rename(rotated(self._path, 1))
        yield
        self._write(3)  # its writer has not heard of it
        yield
        old, self._log = self._log, self._path.open("ab", buffering=0)
        old.close()
        yield

    def _copy(self) -> Iterator[None]:
        make_room(self._path)
        yield
        data = self._path.read_bytes()
        with rotated(self._path, 1).open("wb", buffering=0) as copy:
            for first in range(0, len(data), _COPIED_AT_ONCE):
                copy.write(data[first : first + _COPIED_AT_ONCE])
                yield from [None] * self._rng.choice((1, 1, 8))  # long enough to be taken for the end of it
        self._log.truncate(0)
        yield


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("way", ["rename", "copy"])
def test_nothing_is_lost_or_doubled_whatever_happens_between_two_looks(tmp_path: Path, way: str, is_cut: bool) -> None:
    num_rotations = 0
    for seed in range(20):
        path = tmp_path / f"{seed}.log"
        life, rng = Life(path, way, seed), random.Random(-seed)
        following = Following(LocalFiles(str(path)), str(path))
        data = following.read()
        files = Disturbed(path, life.step)
        following.go_on_through(files)
        for number in range(300):
            data += following.read()
            life.num_read = data.count(b"\n")
            if number == 250:
                life.end()
            if is_cut and rng.random() < 0.1:
                files.close()
                files = Disturbed(path, life.step)
                following.go_on_through(files)
        files.close()
        assert data == numbered(0, life.num_lines), f"seed {seed}"
        assert following.gaps == 0
        num_rotations += len(life.rotated_at)
    assert num_rotations > 100


def test_a_rest_that_is_nowhere_to_be_found_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(numbered(0, 100))
    following = Following(LocalFiles(str(path)), str(path))
    assert following.read() == numbered(0, 100)
    path.unlink()
    path.write_bytes(numbered(200, 10))
    following.go_on_through(LocalFiles(str(path)))
    assert following.read() == numbered(200, 10)
    assert following.gaps == 1
