"""Reading option values that are more than a word."""

from typing import get_args

from outrider.core.config import Dtype
from outrider.core.errors import InputError

_DTYPES = get_args(Dtype)


def dtype_named(name: str) -> str:
    """A dtype that states and weights may have.

    Raises:
        InputError: another one.
    """
    if name not in _DTYPES:
        raise InputError(f"no dtype named {name!r}", fix=f"choose one of {', '.join(_DTYPES)}")
    return name


def layer_list(text: str) -> tuple[int, ...]:
    """Numbers between commas.

    Raises:
        InputError: something else.
    """
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InputError(f"{text!r} is not a list of layers", fix="e.g. 2,15,27") from None


def named_paths(items: list[str]) -> dict[str, str]:
    """`NAME=PATH` or `PATH`, whose stem is then its name."""
    found: dict[str, str] = {}
    for item in items:
        name, equals, path = item.partition("=")
        if not equals:
            name, path = item.rsplit("/", 1)[-1].removesuffix(".jsonl"), item
        found[name] = path
    return found
