"""Watching an engine that is not ours: by its log, and by its process and answers where those can be reached."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from outrider.core.errors import InputError
from outrider.engines.engine import Engine
from outrider.engines.line_times import LineTimes
from outrider.engines.log_events import Event
from outrider.engines.log_reader import LogReader
from outrider.engines.log_source import LogSource
from outrider.engines.probing import Probe
from outrider.engines.watching import Watched, Watcher, end_of

# a file that gave nothing in one read has nothing more; a connection may only be slow
_EMPTY_READS = 3


@contextmanager
def watching_log(engine: Engine, source: LogSource, name: str, pid: int | None, url: str | None) -> Iterator[Watcher]:
    """A watcher of a log as it is written.

    Args:
        name: where the log is, for the reader of an error.
        pid: the server's process on this machine; None if it is not to be looked at.
        url: where it is asked for a token; None for never.

    Raises:
        InputError: there is no such process.
    """
    with ExitStack() as stack:
        stack.callback(source.close)
        how_ended = end_of(pid) if pid is not None else (lambda: "")
        probe = stack.enter_context(Probe(url)) if url else None
        yield Watcher(Watched(f"engine {engine.id}", name, source, LogReader(engine.log), pid, how_ended, None, probe))


def events_so_far(engine: Engine, source: LogSource) -> Iterator[Event]:
    """What a log says by now, on the clock of its own lines where they carry one; the last event is an `EndEvent`.

    Raises:
        InputError: it cannot be read, or is not there.
    """
    reader, empty = LogReader(engine.log, time_of=LineTimes(b"")), 0
    try:
        while empty < _EMPTY_READS and not source.ended:
            data = source.read()
            empty = 0 if data else empty + 1
            yield from reader.feed(data, 0.0)
        if source.waiting_for:
            raise InputError("there is no log to read by now", evidence=source.waiting_for, fix="check the path, or wait for it: --follow")
    finally:
        source.close()
    yield from reader.end(0.0)
    yield reader.verdict()
