"""Safetensors headers, read without torch and without loading a tensor."""

import json
import struct
import sys
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.core.errors import InputError
from outrider.core.files import json_memory, num_bytes_of, read_json

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_MAX_MEMORY_BYTES = 4_000_000_000
_MAX_MEMORY_TO_LOOK_BYTES = 150_000_000  # about 100,000 tensors in one file
_ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "U64": 8,
}
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor as a header states it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Read and check one file's header.

    Raises:
        InputError: missing, not safetensors, or shorter than its header says.
    """
    entries, end, num_data_bytes = _read_header(path, _MAX_MEMORY_BYTES)
    if end != num_data_bytes:
        raise _damaged(path, f"tensors take {end} bytes, the file holds {num_data_bytes}")
    return entries


def read_cut_header(path: Path) -> dict[str, TensorEntry]:
    """The same for a file that may be cut off right behind its header: it can be looked at in little memory, and not loaded.

    Raises:
        InputError: missing, not safetensors, cut off anywhere else, or with a header beyond reason.
    """
    entries, end, num_data_bytes = _read_header(path, _MAX_MEMORY_TO_LOOK_BYTES)
    if num_data_bytes not in (0, end):
        raise _damaged(path, f"tensors take {end} bytes, the file holds {num_data_bytes}")
    return entries


def _read_header(path: Path, max_memory_bytes: int) -> tuple[dict[str, TensorEntry], int, int]:
    """The entries, where the last one ends, and how many bytes stand behind the header."""
    try:
        num_bytes = num_bytes_of(path)
        with path.open("rb") as file:
            start = file.read(8)
            if len(start) < 8:
                raise _damaged(path, f"{num_bytes} bytes, too short for a header")
            (header_bytes,) = struct.unpack("<Q", start)
            if header_bytes > min(_MAX_HEADER_BYTES, num_bytes - 8):
                raise _damaged(path, f"the header claims {header_bytes} bytes, the file has {num_bytes}")
            text = file.read(header_bytes) if 3 * header_bytes <= max_memory_bytes else None
        if text is None or json_memory(text) > max_memory_bytes:
            raise _damaged(path, f"a header of {header_bytes} bytes, beyond reason")
        header = json.loads(text)
    except FileNotFoundError:
        raise InputError("a weights file is missing", evidence=str(path), fix="fetch it again") from None
    except IsADirectoryError:
        raise InputError("a weights file is a folder", evidence=str(path)) from None
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"the header is not JSON: {error}") from None
    return *_entries(path, header), num_bytes - 8 - header_bytes


def _entries(path: Path, header: Any) -> tuple[dict[str, TensorEntry], int]:
    if not isinstance(header, dict):
        raise _damaged(path, "the header is not an object")
    entries: dict[str, TensorEntry] = {}
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}  # experts by the thousand share a few
    end = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
            first, last = (int(n) for n in entry["data_offsets"])
        except (KeyError, TypeError, ValueError, OverflowError):
            raise _damaged(path, f"the entry of {name!r} is incomplete") from None
        num_items = 1
        for n in shape:
            num_items *= n
        if min((*shape, first)) < 0 or last < first or (dtype in _ITEM_BYTES and last - first != num_items * _ITEM_BYTES[dtype]):
            raise _damaged(path, f"the entry of {name!r} contradicts itself: {dtype} {list(shape)} in {last - first} bytes")
        entries[name] = TensorEntry(name, sys.intern(dtype), shapes.setdefault(shape, shape), path)
        end = max(end, last)
    return entries, end


def _damaged(path: Path, evidence: str) -> InputError:
    return InputError(
        f"{path.name} is truncated or damaged", evidence=f"{path}: {evidence}", effect="it cannot be loaded", fix="copy or fetch it again"
    )


def has_data(entry: TensorEntry) -> bool:
    """Whether anything stands behind the header of a tensor's file."""
    with entry.file.open("rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
    return entry.file.stat().st_size > 8 + int(header_bytes)


def read_bytes(entry: TensorEntry) -> bytes:
    """A tensor's bytes as they are stored, little-endian.

    Raises:
        InputError: the file is not what it was when its header was read.
    """
    if read_header(entry.file).get(entry.name) != entry:
        raise _damaged(entry.file, f"{entry.name!r} changed while it was read")
    with entry.file.open("rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        first, last = json.loads(file.read(header_bytes))[entry.name]["data_offsets"]
        file.seek(8 + header_bytes + int(first))
        return file.read(int(last) - int(first))


def read_int64(entry: TensorEntry) -> "array[int]":
    """The numbers of an I64 tensor, row by row.

    Raises:
        InputError: another dtype, or the file is not what it was when its header was read.
    """
    if entry.dtype != "I64":
        raise InputError(f"{entry.name} is {entry.dtype}, not I64", evidence=str(entry.file))
    numbers = array("q", read_bytes(entry))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def read_folder_headers(folder: Path) -> dict[str, TensorEntry]:
    """All tensors of a checkpoint folder: a single file, or the shards that its index names.

    Raises:
        InputError: no weights, a shard missing or damaged, or a tensor that the index places wrongly.
    """
    index_path = folder / INDEX_FILE
    if not index_path.exists():
        if not (folder / SINGLE_FILE).exists():
            raise InputError(
                f"no safetensors weights in {folder}",
                evidence=f"neither {SINGLE_FILE} nor {INDEX_FILE}",
                fix="`outrider target import SRC DIR` makes such a folder",
            )
        return read_header(folder / SINGLE_FILE)
    index = read_json(index_path, "the weights index")
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict):
        raise InputError("the weights index has no weight_map", evidence=str(index_path), fix="fetch it again")
    return read_indexed_headers(weight_map, index_path, read_header)


def read_indexed_headers(
    weight_map: Mapping[str, Any], index_path: Path, read: Callable[[Path], dict[str, TensorEntry]]
) -> dict[str, TensorEntry]:
    """All tensors of the shards that an index names.

    Args:
        weight_map: tensor → shard, as the index holds it.
        read: one shard's header.

    Raises:
        InputError: a shard missing or damaged, or a tensor that the index places wrongly.
    """
    found: dict[str, TensorEntry] = {}
    for shard in sorted({str(name) for name in weight_map.values()}):
        found.update(read(index_path.parent / shard))
    for name, shard in weight_map.items():
        if name not in found or found[name].file.name != shard:
            raise InputError(f"tensor {name} is not where the index says", evidence=f"{index_path}: {shard}", fix="fetch the shard again")
    return found
