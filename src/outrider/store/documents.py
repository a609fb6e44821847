"""Writing and reading documents of a store. One document is one conversation: tokens, mask and states."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from outrider.core.errors import InputError
from outrider.core.files import file_digest, write_atomically, write_json
from outrider.core.names import MANIFEST_FILE
from outrider.store.manifest import Manifest, Shard, read_manifest


@dataclass(frozen=True)
class Document:
    """One conversation with the target's states.

    Attributes:
        id: the row's id in the answers file.
        input_ids: [T].
        loss_mask: [T] whether the token was written by the target.
        aux: [T, A, H].
        last: [T, H].
        argmax: [T] the id the target would say next.
        logsumexp: [T] of the target's scores, so that probabilities need no second pass over V.
    """

    id: str
    input_ids: Int[Tensor, "T"]
    loss_mask: Bool[Tensor, "T"]
    aux: Float[Tensor, "T A H"]
    last: Float[Tensor, "T H"]
    argmax: Int[Tensor, "T"]
    logsumexp: Float[Tensor, "T"]

    def __len__(self) -> int:
        return len(self.input_ids)


_TENSORS = tuple(field.name for field in fields(Document) if field.name != "id")


class StoreWriter:
    """Appends documents to a store, a shard at a time; continues where a killed writer stopped.

    Where a finished shard is missing or damaged it continues there: that shard and those behind it are made again.

    Args:
        folder: the store.
        header: what all shards have in common; an existing store must say the same.
        shard_tokens: a shard is closed once it holds this many tokens.
    """

    def __init__(self, folder: Path, header: Manifest, shard_tokens: int) -> None:
        self._folder, self._shard_tokens = folder, shard_tokens
        folder.mkdir(parents=True, exist_ok=True)
        self.manifest = header
        if (folder / MANIFEST_FILE).exists():
            existing = read_manifest(folder)
            if existing.model_copy(update={"shards": (), "is_complete": False}) != header:
                raise InputError("the store holds other states", evidence=str(folder / MANIFEST_FILE), fix="choose another folder")
            whole = existing.shards[: _num_whole(folder, existing.shards)]
            self.manifest = existing if whole == existing.shards else existing.model_copy(update={"shards": whole, "is_complete": False})
        self._pending: list[Document] = []

    @property
    def finished_ids(self) -> frozenset[str]:
        """Documents that are on disk."""
        return frozenset(i for shard in self.manifest.shards for i in shard.document_ids)

    def add(self, document: Document) -> None:
        """Queue a document; a full shard is checked and written.

        Raises:
            InputError: states that are not finite, or lengths that differ.
        """
        _check_document(document)
        self._pending.append(document)
        if sum(len(d) for d in self._pending) >= self._shard_tokens:
            self._write_shard()

    def finish(self) -> Manifest:
        """Write what is queued and mark the store complete."""
        if self._pending:
            self._write_shard()
        if not self.manifest.shards:
            raise InputError("no document is left to store", evidence=str(self._folder), fix="check the answers file and max_length")
        self._save(self.manifest.model_copy(update={"is_complete": True}))
        return self.manifest

    def _write_shard(self) -> None:
        documents, self._pending = self._pending, []
        tensors = {name: torch.cat([getattr(d, name) for d in documents]).contiguous() for name in _TENSORS}
        lengths = torch.tensor([len(d) for d in documents])
        tensors["offsets"] = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        file = self._folder / f"shard-{len(self.manifest.shards):05d}.safetensors"
        write_atomically(file, save(tensors))
        shard = Shard(
            file=file.name,
            num_bytes=file.stat().st_size,
            sha256=file_digest(file),
            document_ids=tuple(d.id for d in documents),
            num_tokens=int(lengths.sum()),
            num_supervised_tokens=int(tensors["loss_mask"].sum()),
        )
        self._save(self.manifest.model_copy(update={"shards": (*self.manifest.shards, shard)}))

    def _save(self, manifest: Manifest) -> None:
        write_json(self._folder / MANIFEST_FILE, manifest.model_dump(mode="json"))
        self.manifest = manifest


def _check_document(document: Document) -> None:
    lengths = {name: len(getattr(document, name)) for name in _TENSORS}
    if len(set(lengths.values())) != 1:
        raise InputError(f"document {document.id} has parts of different lengths", evidence=str(lengths))
    for name in ("aux", "last", "logsumexp"):
        if not torch.isfinite(getattr(document, name)).all():
            raise InputError(
                f"document {document.id} has a {name} state that is not finite",
                effect="training would turn to NaN",
                fix="compute the target in another dtype (extract.compute_dtype)",
            )


def _num_whole(folder: Path, shards: Sequence[Shard]) -> int:
    """How many shards from the first on are there in full."""
    return next((i for i, shard in enumerate(shards) if _size(folder / shard.file) != shard.num_bytes), len(shards))


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None


def check_shard(folder: Path, shard: Shard) -> None:
    """Check that a shard is there in full.

    Raises:
        InputError: missing or of another size.
    """
    path = folder / shard.file
    size = _size(path)
    if size != shard.num_bytes:
        raise InputError(
            "a shard of the store is missing or damaged",
            evidence=f"{path}: {size} bytes, the manifest says {shard.num_bytes}",
            fix="extract again: it continues there",
        )


class Store:
    """A finished store, memory-mapped: documents are read when asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        if not self.manifest.is_complete:
            raise InputError("the store is not complete", evidence=str(folder), fix="run extract again: it continues")
        self._places: list[tuple[int, int]] = []
        self._shards: list[dict[str, Tensor]] = []
        self.document_ids: list[str] = []
        for shard in self.manifest.shards:
            check_shard(folder, shard)
            self._shards.append(_load_shard(folder / shard.file))
            self._places += [(len(self._shards) - 1, i) for i in range(len(shard.document_ids))]
            self.document_ids += shard.document_ids

    def __len__(self) -> int:
        return len(self._places)

    def length(self, index: int) -> int:
        """Number of tokens of a document."""
        shard, i = self._places[index]
        first, last = self._shards[shard]["offsets"][i : i + 2].tolist()
        return int(last - first)

    def __getitem__(self, index: int) -> Document:
        shard, i = self._places[index]
        tensors = self._shards[shard]
        first, last = tensors["offsets"][i : i + 2].tolist()
        return Document(id=self.document_ids[index], **{name: tensors[name][first:last] for name in _TENSORS})

    def token_parts(self, indices: Sequence[int]) -> Iterator[tuple[Int[Tensor, "T"], Bool[Tensor, "T"]]]:
        """(input_ids, loss_mask) of documents, without touching their states."""
        for index in indices:
            shard, i = self._places[index]
            first, last = self._shards[shard]["offsets"][i : i + 2].tolist()
            yield self._shards[shard]["input_ids"][first:last], self._shards[shard]["loss_mask"][first:last]


def _load_shard(path: Path) -> dict[str, Tensor]:
    again = "remove the store and extract again"
    try:
        with safe_open(path, framework="pt") as file:
            missing = {*_TENSORS, "offsets"} - set(file.keys())
            if missing:
                raise InputError("a shard of the store lacks tensors", evidence=f"{path}: {', '.join(sorted(missing))}", fix=again)
            return {name: file.get_tensor(name) for name in (*_TENSORS, "offsets")}
    except SafetensorError as error:
        raise InputError("a shard of the store cannot be read", evidence=f"{path}: {error}", fix=again) from None
