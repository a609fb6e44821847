"""The stage: one store from one file of answers; resumable by shard."""

import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outrider.core.errors import InputError
from outrider.core.files import file_digest, read_jsonl
from outrider.core.names import MANIFEST_FILE
from outrider.core.progress import Track
from outrider.core.record import output_file
from outrider.core.results import OutputFile, StoreSummary
from outrider.store.documents import Document, StoreWriter
from outrider.store.manifest import Manifest, bytes_per_token
from outrider.targets.model import TargetModel

_WINDOW_DOCUMENTS = 64
_SCORED_POSITIONS = 512


@dataclass(frozen=True)
class TokenRow:
    """One row of an answers file, as far as extraction needs it."""

    id: str
    input_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    template_hash: str


def read_answers(path: Path) -> list[TokenRow]:
    """Read the rows of an answers file.

    Raises:
        InputError: missing, not JSONL, or a row that lacks ids or has a mask of another length.
    """
    rows: list[TokenRow] = []
    for number, row in read_jsonl(path, "the answers file"):
        try:
            found = TokenRow(
                str(row["id"]), tuple(map(int, row["input_ids"])), tuple(map(int, row["loss_mask"])), str(row["template_hash"])
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                "an answers row lacks a part", evidence=f"{path}:{number}: {error!r}", fix="make it with `outrider synthesize`"
            ) from None
        if not found.input_ids or len(found.input_ids) != len(found.loss_mask):
            raise InputError(
                "an answers row has a mask of another length than its ids",
                evidence=f"{path}:{number}: {len(found.input_ids)} ids, {len(found.loss_mask)} in the mask",
            )
        rows.append(found)
    if not rows:
        raise InputError("the answers file is empty", evidence=str(path))
    if len({row.id for row in rows}) != len(rows):
        raise InputError("the answers file has an id twice", evidence=str(path))
    return rows


@dataclass(frozen=True)
class Capture:
    """How states are captured and kept.

    Attributes:
        max_length: longer documents are cut.
        batch_tokens: padded tokens of one pass.
        shard_tokens: tokens of one file of the store.
    """

    dtype: str
    max_length: int
    batch_tokens: int
    shard_tokens: int


def extract(label: str, model: TargetModel, answers: Path, folder: Path, capture: Capture) -> StoreSummary:
    """Store the states of every row of `answers` below `folder`; continues after the last finished shard.

    Args:
        model: the target, with the aux layers to capture.

    Raises:
        InputError: rows from another template, no room on the disk, states that are not finite.
    """
    rows = read_answers(answers)
    target = model.folder
    outside = next((row for row in rows if not 0 <= min(row.input_ids) <= max(row.input_ids) < target.vocab_size), None)
    if outside:
        raise InputError(
            "the answers hold token ids that the target does not have",
            evidence=f"{answers}: row {outside.id}; the vocabulary has {target.vocab_size} tokens",
            fix="synthesize again with this target",
        )
    foreign = next((row for row in rows if row.template_hash != target.template_hash), None)
    if foreign:
        raise InputError(
            "the answers were made with another chat template",
            evidence=f"{answers}: row {foreign.id}",
            effect="the drafter would learn tokens that serving never sees",
            fix="synthesize again with this target",
        )
    header = Manifest(
        target_digest=target.digest,
        hidden_size=target.hidden_size,
        aux_layers=model.aux_layers,
        final_norm_applied=True,
        dtype=capture.dtype,
        template_hash=target.template_hash,
        answers_sha256=file_digest(answers),
    )
    writer = StoreWriter(folder, header, capture.shard_tokens)
    if not writer.manifest.is_complete:
        finished = writer.finished_ids
        _require_room(folder, [row for row in rows if row.id not in finished], header, capture)
        num_tokens = sum(min(len(row.input_ids), capture.max_length) for row in rows)
        with Track(label, num_tokens, "tokens", done=writer.manifest.num_tokens) as track:
            for document in _documents(model, rows, finished, capture):
                writer.add(document)
                track.advance(len(document))
        writer.finish()
    manifest = writer.manifest
    return StoreSummary(
        manifest=output_file(folder / MANIFEST_FILE, folder.parent),
        shards=tuple(
            OutputFile(path=f"{folder.name}/{shard.file}", num_bytes=shard.num_bytes, sha256=shard.sha256) for shard in manifest.shards
        ),
        num_documents=manifest.num_documents,
        num_tokens=manifest.num_tokens,
        num_supervised_tokens=manifest.num_supervised_tokens,
        num_bytes=sum(shard.num_bytes for shard in manifest.shards),
    )


def _require_room(folder: Path, rows: Sequence[TokenRow], header: Manifest, capture: Capture) -> None:
    dtype_bytes = getattr(torch, capture.dtype).itemsize
    tokens = sum(min(len(row.input_ids), capture.max_length) for row in rows)
    needed = tokens * bytes_per_token(header.hidden_size, len(header.aux_layers), dtype_bytes)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(
            f"the states need {needed / 1e9:.1f} GB, the disk has {free / 1e9:.1f} GB",
            evidence=f"{tokens} tokens to go; {folder}",
            effect="the disk would fill up before the stage ends",
            fix="free space, train on fewer answers, or choose another run folder",
        )


def _documents(model: TargetModel, rows: Sequence[TokenRow], finished: Collection[str], capture: Capture) -> Iterator[Document]:
    """Documents that are not finished, in the order of the rows; within a window, rows of like length share a pass.

    Passes are cut from all rows, whatever is finished: a row's neighbours, and so its rounding, are always the same.
    """
    for start in range(0, len(rows), _WINDOW_DOCUMENTS):
        window = rows[start : start + _WINDOW_DOCUMENTS]
        made: dict[str, Document] = {}
        for batch in _batches(window, capture):
            if not all(row.id in finished for row in batch):
                made.update({document.id: document for document in _captured(model, batch, capture)})
        yield from (made[row.id] for row in window if row.id not in finished)


def _batches(rows: Sequence[TokenRow], capture: Capture) -> Iterator[list[TokenRow]]:
    batch: list[TokenRow] = []
    for row in sorted(rows, key=lambda r: len(r.input_ids), reverse=True):
        longest = min(len((batch or [row])[0].input_ids), capture.max_length)
        if batch and longest * (len(batch) + 1) > capture.batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


@torch.inference_mode()
def _captured(model: TargetModel, rows: Sequence[TokenRow], capture: Capture) -> Iterator[Document]:
    """One pass over rows padded on the right: causal attention keeps padding out of real positions."""
    dtype = getattr(torch, capture.dtype)
    ids = [torch.tensor(row.input_ids[: capture.max_length]) for row in rows]
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True).to(model.device)
    states = model.states(padded)
    for i, (row, own) in enumerate(zip(rows, ids, strict=True)):
        last = states.last[i, : len(own)]
        best, logsumexp = _of_scores(model, last)
        yield Document(
            id=row.id,
            input_ids=own.to(torch.int32),
            loss_mask=torch.tensor(row.loss_mask[: len(own)], dtype=torch.bool),
            aux=states.aux[i, : len(own)].to("cpu", dtype).contiguous(),
            last=last.to("cpu", dtype).contiguous(),
            argmax=best,
            logsumexp=logsumexp,
        )


def _of_scores(model: TargetModel, last: Float[Tensor, "T H"]) -> tuple[Int[Tensor, "T"], Float[Tensor, "T"]]:
    """The best next token and the log-sum-exp of all scores at each position, a part of the [T, V] scores at a time."""
    best, logsumexp = [], []
    for some in torch.split(last, _SCORED_POSITIONS):
        scores = model.logits(some).float()
        best.append(scores.argmax(-1))
        logsumexp.append(scores.logsumexp(-1))
    return torch.cat(best).to("cpu", torch.int32), torch.cat(logsumexp).cpu()
