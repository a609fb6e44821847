"""Which lines of a log are looked at: most of it is never taken apart, which is what makes reading fast."""

from bisect import bisect_left
from collections.abc import Callable, Iterator


def telling_lines(block: bytes, start: int, literals: tuple[bytes, ...], is_waiting: Callable[[], bool]) -> Iterator[tuple[int, bool]]:
    """Where the lines begin that are to be looked at, and whether a literal is in them: each such line, and as long as something
    is waited for each line.
    """
    hits = sorted(_hits(block, start, literals))
    position, index = start, 0
    while position < len(block):
        index = bisect_left(hits, position, index)
        if not is_waiting():
            if index == len(hits):
                return
            position = hits[index]
        yield position, index < len(hits) and hits[index] == position
        position = block.find(b"\n", position) + 1


def _hits(block: bytes, start: int, literals: tuple[bytes, ...]) -> set[int]:
    """Where the lines begin that have a literal in them: most of a log is never taken apart."""
    hits: set[int] = set()
    for literal in literals:
        at = block.find(literal, start)
        while at >= 0:
            hits.add(block.rfind(b"\n", start, at) + 1 or start)
            at = block.find(literal, block.find(b"\n", at))
    return hits
