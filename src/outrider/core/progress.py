"""Progress of long work: a live bar on a terminal, a line every few seconds elsewhere."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_LINE_EVERY_S = 5.0


class Track:
    """Context of one piece of work with a known amount.

    Args:
        label: what is being done, e.g. "extract".
        total: how many units in all.
        unit: name of the unit, e.g. "tokens".
        done: units that an earlier start has finished already.
    """

    def __init__(self, label: str, total: int, unit: str, done: int = 0) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._done = self._done_before = done
        self._note = ""
        self._printed = -1
        self._started = self._last_line = time.monotonic()
        self._bar: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
            self._bar = Progress(*columns, TimeRemainingColumn(), console=console)
            self._task = self._bar.add_task(f"{label} ({unit})", total=total, completed=done, note="")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        elif self._done:
            self._print(f"{self._label}: continues at {self._done} of {self._total} {self._unit}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()
        elif kind is None and self._printed != self._done:
            self._print_line()

    def advance(self, units: int = 1, note: str = "") -> None:
        """Count finished units; `note` stands behind them, e.g. a loss."""
        self._done += units
        self._note = note or self._note
        if self._bar:
            self._bar.update(self._task, completed=self._done, note=self._note)
        elif time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._print_line()

    def _print_line(self) -> None:
        now = self._last_line = time.monotonic()
        self._printed = self._done
        rate = (self._done - self._done_before) / max(now - self._started, 1e-9)
        left = f", {(self._total - self._done) / rate:.0f} s left" if rate > 0 and self._done < self._total else ""
        note = f"  {self._note}" if self._note else ""
        self._print(f"{self._label}: {self._done}/{self._total} {self._unit} ({rate:.3g}/s{left}){note}")

    @staticmethod
    def _print(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
