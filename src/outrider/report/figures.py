"""How a number is written, the same in the terminal and on the page; what is not known is said in words, never as a number."""

import math
import re

from outrider.core.results import Interval

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")

NO_DATA = "no data"
NOT_FINITE = "not finite"


def visible(text: str) -> str:
    """`text` with control characters, text-direction marks and lone surrogates spelled out; newlines and tabs stay."""
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def number(value: float | None, decimals: int = 2) -> str:
    """A number with thousands separators."""
    if value is None:
        return NO_DATA
    return f"{value:,.{decimals}f}" if math.isfinite(value) else NOT_FINITE


def times(value: float | None) -> str:
    """A speedup: 1.42×."""
    text = number(value)
    return f"{text}×" if value is not None and math.isfinite(value) else text


def bounds(interval: Interval | None) -> str:
    """The interval's two ends: [1.31, 1.55]. Empty without an interval."""
    return f"[{number(interval.low)}, {number(interval.high)}]" if interval else ""


def signed(value: float | None) -> str:
    """A difference: +0.02."""
    text = number(value)
    return f"+{text}" if value is not None and value >= 0 and math.isfinite(value) else text


def with_bounds(value: str, interval: Interval | None) -> str:
    """A written value and the ends of its interval, where there is one."""
    return f"{value} {bounds(interval)}".rstrip()


def size(num_bytes: int | None) -> str:
    """Bytes in the nearest decimal unit: 1.23 GB."""
    if num_bytes is None:
        return NO_DATA
    amount = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.3g} TB"


def duration(seconds: float | None) -> str:
    """Seconds in the units a person reads: 4.2 s, 3 min 05 s, 2 h 05 min."""
    if seconds is None:
        return NO_DATA
    if not math.isfinite(seconds):
        return NOT_FINITE
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def counted(count: int, noun: str) -> str:
    """1 prompt, 2 prompts."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
