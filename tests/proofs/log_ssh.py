"""A log on another machine is read while its connection is cut again and again: no line may be lost or doubled."""

import platform
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from engines.log_writer import BEGUN, Writer, read_until
from outrider.core.ssh import Host
from outrider.engines.log_source import RemoteLog
from sshd import Sshd

NUM_CUTS, LONGEST_S = 20, 1.0

_INTRODUCTION = """# A log over ssh, its connection cut

`make proofs` wrote this page. A real sshd on loopback; a thread writes numbered lines to a log, each now and then in two pieces; the log
is read over ssh, and the sshd process of the connection is killed {num_cuts} times, each a random time (up to {longest:g} s) after the
one before was made up for. "out" is the time from a cut to the next bytes that were read. In the second and third row the log is
rotated all the while, by renaming it or by copying it and cutting it short.

Seed {seed}, {system}.

| rotation | rotations | cuts | lines written | lines read | lost | doubled or out of order | out, median (s) | out, longest (s) |
|---|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Outcome:
    """What became of the lines of one log."""

    rotation: str
    num_rotations: int
    written: list[bytes]
    read: list[bytes]
    outages_s: list[float]

    @property
    def num_lost(self) -> int:
        """Lines that were written and never read."""
        return len(set(self.written) - set(self.read))

    @property
    def num_misplaced(self) -> int:
        """Lines read that do not come just after the one before, and torn ones."""
        numbers = {line: number for number, line in enumerate(self.written)}
        found = [numbers.get(line, -1) for line in self.read]
        return sum(number != before + 1 for before, number in zip([-1, *found], found, strict=False))

    def row(self) -> str:
        """One line of the page's table."""
        outages_s = sorted(self.outages_s)
        median_s, longest_s = outages_s[len(outages_s) // 2], outages_s[-1]
        counts = (self.num_rotations, len(outages_s), len(self.written), len(self.read), self.num_lost, self.num_misplaced)
        return f"| {self.rotation} | {' | '.join(map(str, counts))} | {median_s:.2f} | {longest_s:.2f} |\n"


def main(out_folder: Path) -> None:
    """Write `out_folder`/log-ssh.md; ends with an error if a line was lost or doubled."""
    seed = time.time_ns() % 1_000_000
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="outrider-log-") as place:
        try:
            server = Sshd(Path(place) / "sshd")
        except pytest.skip.Exception as reason:
            print(f"skipped: {reason}")
            return
        try:
            outcomes = [_cut_while_written(server, Path(place) / f"{way}.log", way, rng) for way in ("none", "rename", "copy")]
        finally:
            server.stop()
    introduction = _INTRODUCTION.format(num_cuts=NUM_CUTS, longest=LONGEST_S, seed=seed, system=f"{platform.system()} {platform.machine()}")
    (out_folder / "log-ssh.md").write_text(introduction + "".join(outcome.row() for outcome in outcomes), encoding="utf-8")
    assert all(outcome.written == outcome.read for outcome in outcomes), "see the page"


def _cut_while_written(server: Sshd, path: Path, rotation: str, rng: random.Random) -> Outcome:
    outages_s = []
    with Host.parsed("ssh://box", options=server.options) as host:
        writer, source = Writer(path, rotation, every=2500), RemoteLog(host, str(path))
        data = read_until(source, len(BEGUN))
        with writer:
            for _ in range(NUM_CUTS):
                next_s = time.monotonic() + rng.uniform(0.0, LONGEST_S)
                while time.monotonic() < next_s or not server.cut():
                    data += source.read()
                cut_s, queued = time.monotonic(), True
                while queued:  # what had been read ahead
                    piece = source.read()
                    data, queued = data + piece, bool(piece)
                while not (piece := source.read()):
                    pass
                data += piece
                outages_s.append(time.monotonic() - cut_s)
        data += read_until(source, len(writer.expected()) - len(data))
        source.close()
    return Outcome(rotation, writer.num_rotations, writer.expected().splitlines(), data.splitlines(), outages_s)
