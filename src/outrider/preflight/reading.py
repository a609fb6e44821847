"""Files of a target or drafter that may hold anything: each becomes data or an InputError."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from outrider.core.errors import InputError
from outrider.core.files import read_json
from outrider.formats.safetensors_file import INDEX_FILE, SINGLE_FILE, TensorEntry, read_folder_headers

_DEEPEST: Final = 64
_LONGEST: Final = 200


def read_object(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InputError: no such file, not JSON, no object, or nested beyond reason.
    """
    try:
        value = read_json(path, what)
    except (RecursionError, ValueError) as error:  # what the JSON reader itself does not call bad JSON
        raise InputError(f"{what} is not valid JSON", evidence=f"{path}: {error}", fix="mend or fetch the file again") from None
    if not isinstance(value, dict):
        raise InputError(f"{what} is not an object", evidence=f"{path}: {type(value).__name__}", fix="mend or fetch the file again")
    if not _is_flat(value):
        raise InputError(f"{what} is nested more than {_DEEPEST} levels deep", evidence=str(path), fix="mend or fetch the file again")
    return value


def _is_flat(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        level = [child for item in level if isinstance(item, dict | list) for child in (item.values() if isinstance(item, dict) else item)]
        if not level:
            return True
    return False


def read_headers(folder: Path) -> tuple[Mapping[str, TensorEntry] | None, str]:
    """A folder's tensor headers, or None and why there are none.

    Raises:
        InputError: weights that are there and damaged, or there in part.
    """
    if not any(folder.glob("*.safetensors")):
        named = next((name for name in (INDEX_FILE, SINGLE_FILE) if (folder / name).exists()), None)
        return None, f"{folder} holds {named} but no shard" if named else f"{folder} holds no safetensors weights"
    try:
        return read_folder_headers(folder), ""
    except RecursionError:
        raise InputError("the weights index is nested beyond reason", evidence=str(folder / INDEX_FILE), fix="fetch it again") from None
    except ValueError as error:
        raise InputError("the weights index is not valid", evidence=f"{folder / INDEX_FILE}: {error}", fix="fetch it again") from None


def eos_token_ids(folder: Path, text_config: Mapping[str, Any]) -> tuple[int, ...]:
    """Ids that end the target's answers, as far as its files say: the generation config's, else the config's.

    Raises:
        InputError: a generation config that cannot be read.
    """
    path = folder / "generation_config.json"
    generation = read_object(path, "the generation config") if path.exists() else {}
    return token_ids(generation.get("eos_token_id", text_config.get("eos_token_id")))


def token_ids(value: Any) -> tuple[int, ...]:
    """The ids that a config's value holds: one, a list of them, or none."""
    ids = value if isinstance(value, list) else [value]
    return tuple(i for i in ids if isinstance(i, int) and not isinstance(i, bool))


def shown(value: Any) -> str:
    """A value from a file as a finding shows it: JSON, ASCII, short."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
