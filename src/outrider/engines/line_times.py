"""The times that the lines of an engine's log carry, for a log that is read when all is over."""

import calendar
import re
from typing import Final


class LineTimes:
    """The times that the lines of a log carry, in seconds since the first of them; as both engines write them, to the second.

    Args:
        head: the beginning of the log.
    """

    _TIME: Final = re.compile(rb"(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")
    _YEAR: Final = 2000  # where none is written; a leap year, so that each date exists
    _DAY_S: Final = 86_400

    def __init__(self, head: bytes) -> None:
        first = self._TIME.search(head)
        self._first_s = self._since_epoch_s(first.groups()) if first else None

    def __call__(self, text: bytes) -> float | None:
        """The time of the last line of the text, or of the last before it that carries one; None if none does."""
        last_line = text[text.rfind(b"\n", 0, -1) + 1 :]
        found = self._TIME.findall(last_line)[:1] or self._TIME.findall(text)[-1:]
        if not found:
            return None
        time_s = self._since_epoch_s(found[0])
        if time_s is None:
            return None
        self._first_s = time_s if self._first_s is None else self._first_s
        since_s = time_s - self._first_s
        return since_s + 366 * self._DAY_S if since_s < -180 * self._DAY_S else since_s  # New Year without a year

    def _since_epoch_s(self, parts: tuple[bytes, ...]) -> float | None:
        year, month, day, hour, minute, second = (int(part or self._YEAR) for part in parts)
        if not (1 <= month <= 12 and 1 <= day <= 31 and year >= 1970):
            return None
        return float(calendar.timegm((year, month, day, hour, minute, second)))
