"""Files written whole or not at all, and digests of what was read."""

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outrider.core.errors import InputError

_CHUNK_BYTES = 1 << 20


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` beside `path`, flush it to the disk, then rename: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path, what: str) -> Any:
    """Read a JSON file.

    Args:
        what: how to call the file in an error, e.g. "the target's config".

    Raises:
        InputError: no such file, or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{what} is missing", evidence=str(path), fix="check the path") from None
    except IsADirectoryError:
        raise InputError(f"{what} is a folder, not a file", evidence=str(path)) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{what} is not valid JSON", evidence=f"{path}: {error}", fix="mend or fetch the file again") from None


def num_bytes_of(path: Path) -> int:
    """The size of a file that may be read: a pipe would never end, nor some devices.

    Raises:
        InputError: neither a file nor a folder.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise InputError(f"{path.name} is no file", evidence=f"{path}: a pipe or a device", fix="put a file there")
    return found.st_size


def json_memory(data: bytes) -> int:
    """At most how many bytes a JSON document takes in memory while it is read: text and objects together."""
    characters = 1 if data.isascii() else 4
    num_objects, num_lists, num_items = data.count(b"{"), data.count(b"["), data.count(b",") + data.count(b":")
    return (1 + 2 * characters) * len(data) + 300 * num_objects + 100 * num_lists + 150 * num_items


def read_jsonl(path: Path, what: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for each non-empty line of a JSONL file.

    Raises:
        InputError: no such file, or a line that is not a JSON object; the line is named.
    """
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, _json_object(line, f"{path}:{number}", what)
    except FileNotFoundError:
        raise InputError(f"{what} is missing", evidence=str(path), fix="check the path") from None
    except IsADirectoryError:
        raise InputError(f"{what} is a folder, not a file", evidence=str(path)) from None
    except UnicodeDecodeError as error:
        raise InputError(f"{what} is not UTF-8 text", evidence=f"{path}: {error}") from None


def _json_object(line: str, place: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{what} has a line that is not JSON", evidence=f"{place}: {error}", fix="mend or remove the line") from None
    if not isinstance(value, dict):
        raise InputError(f"{what} has a line that is not a JSON object", evidence=f"{place}: {line.strip()[:80]}", fix="one object a line")
    return value


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def value_digest(value: Any) -> str:
    """SHA-256 of a JSON-able value in canonical form, in hexadecimal."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()
