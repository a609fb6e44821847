"""An append-only JSONL file that a killed process can go on with: a torn last line is dropped, whole lines count."""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Journal:
    """Rows finished so far.

    Args:
        path: the file; rows already in it are in `rows`.
    """

    def __init__(self, path: Path) -> None:
        self.rows: list[dict[str, Any]] = []
        whole_bytes = 0
        if path.exists():
            for line in path.read_bytes().splitlines(keepends=True):
                row = _parsed(line)
                if row is None:
                    break
                self.rows.append(row)
                whole_bytes += len(line)
            os.truncate(path, whole_bytes)
        self._file = path.open("ab")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def append(self, row: dict[str, Any]) -> None:
        """Add a finished row; it is in the file when this returns."""
        self._file.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
        self._file.flush()
        self.rows.append(row)


def _parsed(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
