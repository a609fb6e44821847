"""Files of a target or drafter that may hold anything: each becomes data or an InputError."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from outrider.core.errors import InputError
from outrider.core.files import json_memory, num_bytes_of
from outrider.formats.safetensors_file import INDEX_FILE, SINGLE_FILE, TensorEntry, read_cut_header, read_indexed_headers

_DEEPEST: Final = 64
_MAX_MEMORY_BYTES: Final = 150_000_000  # an index of 208,215 names takes 130 million, by `json_memory`
_NEITHER: Final = "mend or fetch the file again"
_LONGEST: Final = 200


def resolved_folder(path: Path) -> Path:
    """The folder of a model: the path itself, or the snapshot in it where it is one model of a Hugging Face cache.

    That is the snapshot that refs/main names, or the only one that is there.

    Raises:
        InputError: such a folder in which no single snapshot can be told.
    """
    snapshots = path / "snapshots"
    if (path / "config.json").exists() or not snapshots.is_dir():
        return path
    there = sorted(folder.name for folder in snapshots.iterdir() if folder.is_dir())
    try:
        named = (path / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        named = ""
    if named in there:
        return snapshots / named
    if len(there) == 1 and not named:
        return snapshots / there[0]
    raise InputError(
        f"{path} is a cached model without the snapshot that it stands for",
        evidence=f"refs/main names {shown(named)}; {len(there)} snapshots: {shown(there)}" if named else f"no refs/main; {shown(there)}",
        fix=f"name one of them: {snapshots / there[0]}" if there else "fetch the model again",
    )


def read_object(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InputError: no such file, not JSON, no object, or beyond reason: too large or nested too deep.
    """
    value = _read_json(path, what)
    if not isinstance(value, dict):
        raise InputError(f"{what} is not an object", evidence=f"{path}: {type(value).__name__}", fix=_NEITHER)
    if not _is_flat(value):
        raise InputError(f"{what} is nested more than {_DEEPEST} levels deep", evidence=str(path), fix=_NEITHER)
    return value


def _read_json(path: Path, what: str) -> Any:
    try:
        size = num_bytes_of(path)
        data = path.read_bytes() if 3 * size <= _MAX_MEMORY_BYTES else None
        if data is None or json_memory(data) > _MAX_MEMORY_BYTES:
            raise InputError(f"{what} is beyond reason", evidence=f"{path}: {size} bytes, too many lists and objects", fix=_NEITHER)
        text = data.decode("utf-8")
        del data
        return json.loads(text)
    except FileNotFoundError:
        raise InputError(f"{what} is missing", evidence=str(path), fix="check the path") from None
    except IsADirectoryError:
        raise InputError(f"{what} is a folder, not a file", evidence=str(path)) from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"{what} is not valid JSON", evidence=f"{path}: {error}", fix=_NEITHER) from None


def _is_flat(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        level = [child for item in level if isinstance(item, dict | list) for child in (item.values() if isinstance(item, dict) else item)]
        if not level:
            return True
    return False


def read_headers(folder: Path) -> tuple[Mapping[str, TensorEntry] | None, str]:
    """A folder's tensor headers, or None and why there are none. Its shards may be cut off right behind their headers.

    Raises:
        InputError: weights that are there and damaged, or there in part.
    """
    if not any(folder.glob("*.safetensors")):
        named = next((name for name in (INDEX_FILE, SINGLE_FILE) if (folder / name).exists()), None)
        return None, f"{folder} holds {named} but no shard" if named else f"{folder} holds no safetensors weights"
    if (folder / INDEX_FILE).exists():
        index = read_index(folder)
        return read_indexed_headers(index, folder / INDEX_FILE, read_cut_header), ""
    if not (folder / SINGLE_FILE).exists():
        return None, f"{folder} holds safetensors weights, and neither {SINGLE_FILE} nor {INDEX_FILE}"
    return read_cut_header(folder / SINGLE_FILE), ""


def read_index(folder: Path) -> Mapping[str, Any]:
    """The weights index of a folder: tensor → shard.

    Raises:
        InputError: missing, not JSON, beyond reason, or without tensors.
    """
    index = _read_json(folder / INDEX_FILE, "the weights index")
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict):
        raise InputError("the weights index has no weight_map", evidence=str(folder / INDEX_FILE), fix="fetch it again")
    return weight_map


def names_stamp(folder: Path) -> tuple[int, int] | None:
    """Time and size of the file that holds the names of a folder's tensors; None where there is none."""
    for name in (INDEX_FILE, SINGLE_FILE):
        if (folder / name).exists():
            found = (folder / name).stat()
            return found.st_mtime_ns, found.st_size
    return None


def tensor_names(folder: Path) -> Collection[str]:
    """The names of a folder's tensors, by its index or its only file.

    Raises:
        InputError: an index or a file that is missing or damaged.
    """
    return read_index(folder).keys() if (folder / INDEX_FILE).exists() else read_cut_header(folder / SINGLE_FILE).keys()


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
