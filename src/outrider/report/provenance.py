"""What a report was made from: versions, and the configuration as TOML that can be run again."""

import json
import platform
import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any, Final

from outrider import __version__

REPEAT_COMMAND: Final = "outrider run run.toml"

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def versions() -> dict[str, str]:
    """Versions where the report is made; nothing is imported to learn them."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "not installed"
    return {"outrider": __version__, "python": platform.python_version(), "torch": torch}


def as_toml(config: Mapping[str, Any]) -> str:
    """A nested JSON object as TOML. TOML has no null: keys without a value are left out, and mean the default."""
    return "\n".join(_lines(config, ())).strip() + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    for key, value in table.items():
        if value is not None and not isinstance(value, dict):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        if isinstance(value, dict):
            yield f"\n[{'.'.join(map(_key, (*path, key)))}]"
            yield from _lines(value, (*path, key))


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items() if item is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value if item is not None) + "]"
    return repr(value)
