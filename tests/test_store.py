"""The store of hidden states: read back bit for bit, resumed after a kill, and every damage told to the user."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.core.errors import InputError
from outrider.core.files import file_digest
from outrider.core.names import MANIFEST_FILE
from outrider.store.documents import Document, Store, StoreWriter
from outrider.store.manifest import Manifest, bytes_per_token, read_manifest

_HEADER = Manifest(
    target_digest="a", hidden_size=4, aux_layers=(1, 2), final_norm_applied=True, dtype="bfloat16", template_hash="b", answers_sha256="c"
)
_FIRST_SHARD = "shard-00000.safetensors"


def _document(name: str, length: int) -> Document:
    generator = torch.Generator().manual_seed(length)
    return Document(
        id=name,
        input_ids=torch.randint(0, 99, (length,), generator=generator, dtype=torch.int32),
        loss_mask=torch.arange(length) >= length // 2,
        aux=torch.randn(length, 2, 4, generator=generator).bfloat16(),
        last=torch.randn(length, 4, generator=generator).bfloat16(),
        argmax=torch.randint(0, 99, (length,), generator=generator, dtype=torch.int32),
        logsumexp=torch.randn(length, generator=generator),
    )


_DOCUMENTS = [_document(f"d{length}", length) for length in (3, 1, 7, 2, 5)]


def _write(folder: Path, documents: list[Document], shard_tokens: int = 6) -> Manifest:
    writer = StoreWriter(folder, _HEADER, shard_tokens)
    for document in documents:
        writer.add(document)
    return writer.finish()


def _assert_equal(found: Document, expected: Document) -> None:
    for field in fields(Document):
        mine, theirs = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "id":
            assert mine == theirs
        else:
            assert mine.dtype == theirs.dtype and torch.equal(mine, theirs), field.name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished store, to be spoilt."""
    _write(tmp_path / "store", _DOCUMENTS)
    return tmp_path / "store"


@pytest.mark.parametrize("shard_tokens", [1, 6, 1000])
def test_documents_come_back_bit_for_bit(tmp_path: Path, shard_tokens: int) -> None:
    manifest = _write(tmp_path, _DOCUMENTS, shard_tokens)
    store = Store(tmp_path)
    assert store.manifest == manifest
    assert len(store) == len(_DOCUMENTS)
    for index, document in enumerate(_DOCUMENTS):
        assert store.length(index) == len(document)
        _assert_equal(store[index], document)
    for (ids, mask), index in zip(store.token_parts([4, 0]), (4, 0), strict=True):
        assert torch.equal(ids, _DOCUMENTS[index].input_ids)
        assert torch.equal(mask, _DOCUMENTS[index].loss_mask)


def test_the_manifest_counts_what_is_there(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert [len(shard.document_ids) for shard in manifest.shards] == [3, 2]
    assert manifest.num_documents == 5
    assert manifest.num_tokens == sum(len(d) for d in _DOCUMENTS)
    assert manifest.num_supervised_tokens == sum(int(d.loss_mask.sum()) for d in _DOCUMENTS)
    for shard in manifest.shards:
        assert shard.num_bytes == (folder / shard.file).stat().st_size
        assert shard.sha256 == file_digest(folder / shard.file)


def test_bytes_of_a_token_are_those_on_disk(tmp_path: Path) -> None:
    document = _document("long", 4000)
    _write(tmp_path, [document])
    assert (tmp_path / _FIRST_SHARD).stat().st_size == pytest.approx(4000 * bytes_per_token(4, 2, 2), rel=0.02)


@settings(max_examples=25, derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8), shard_tokens=st.integers(1, 20), killed_after=st.integers(0, 8))
def test_a_killed_writer_goes_on_and_gives_the_same_documents(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], shard_tokens: int, killed_after: int
) -> None:
    folder = tmp_path_factory.mktemp("store")
    documents = [_document(f"{i}", length) for i, length in enumerate(lengths)]
    killed = StoreWriter(folder, _HEADER, shard_tokens)
    for document in documents[:killed_after]:
        killed.add(document)
    before = {path.name: path.read_bytes() for path in folder.glob("shard-*")}
    writer = StoreWriter(folder, _HEADER, shard_tokens)
    assert writer.finished_ids == killed.finished_ids
    for document in documents:
        if document.id not in writer.finished_ids:
            writer.add(document)
    writer.finish()
    assert {name: (folder / name).read_bytes() for name in before} == before, "a finished shard is not touched"
    store = Store(folder)
    assert store.document_ids == [document.id for document in documents]
    for index, document in enumerate(documents):
        _assert_equal(store[index], document)


def test_a_finished_store_is_left_as_it_is(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    writer = StoreWriter(folder, _HEADER, 6)
    assert writer.finished_ids == {document.id for document in _DOCUMENTS}
    writer.finish()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("change", [{"target_digest": "x"}, {"aux_layers": (1, 3)}, {"dtype": "float32"}, {"template_hash": "x"}], ids=str)
def test_a_store_of_other_states_is_not_continued(folder: Path, change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="other states"):
        StoreWriter(folder, _HEADER.model_copy(update=change), 6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("part", ["aux", "last", "logsumexp"])
def test_states_that_are_not_finite_are_refused_and_not_written(tmp_path: Path, part: str, value: float) -> None:
    document = _DOCUMENTS[0]
    spoilt = getattr(document, part).clone()
    spoilt.view(-1)[-1] = value
    writer = StoreWriter(tmp_path, _HEADER, 1)
    with pytest.raises(InputError, match=f"{document.id} has a {part}"):
        writer.add(replace(document, **{part: spoilt}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", ["input_ids", "loss_mask", "aux", "last", "argmax", "logsumexp"])
def test_parts_of_different_lengths_are_refused(tmp_path: Path, part: str) -> None:
    document = _DOCUMENTS[0]
    with pytest.raises(InputError, match="different lengths"):
        StoreWriter(tmp_path, _HEADER, 1).add(replace(document, **{part: getattr(document, part)[:-1]}))


def test_a_store_without_documents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no document"):
        StoreWriter(tmp_path, _HEADER, 1).finish()


def test_a_store_that_is_not_complete_is_not_read(tmp_path: Path) -> None:
    StoreWriter(tmp_path, _HEADER, 1).add(_DOCUMENTS[0])
    with pytest.raises(InputError, match="not complete"):
        Store(tmp_path)


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [Path.unlink, _truncate, lambda file: file.write_bytes(b"")])
@pytest.mark.parametrize("number", [0, 1])
def test_a_shard_that_is_not_whole_is_refused_by_the_reader_and_made_again_by_the_writer(
    folder: Path, number: int, damage: Callable[[Path], object]
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    shards = Store(folder).manifest.shards
    assert number < len(shards)
    damage(folder / shards[number].file)
    with pytest.raises(InputError, match="shard") as caught:
        Store(folder)
    assert shards[number].file in caught.value.evidence
    writer = StoreWriter(folder, _HEADER, 6)
    assert writer.finished_ids == {name for shard in shards[:number] for name in shard.document_ids}
    assert not writer.manifest.is_complete
    for document in _DOCUMENTS:
        if document.id not in writer.finished_ids:
            writer.add(document)
    writer.finish()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@settings(max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_changed_header_byte_is_documents_or_a_refusal(tmp_path_factory: pytest.TempPathFactory, place: int, byte: int) -> None:
    folder = tmp_path_factory.mktemp("store")
    _write(folder, _DOCUMENTS[:2], 4)
    content = bytearray((folder / _FIRST_SHARD).read_bytes())
    header_end = 8 + int.from_bytes(content[:8], "little")
    content[place % header_end] = byte
    (folder / _FIRST_SHARD).write_bytes(bytes(content))
    try:
        store = Store(folder)
        documents = [store[0], store[1]]
    except InputError as error:
        assert str(folder) in error.evidence
    else:
        assert [document.id for document in documents] == ["d3", "d1"]


@pytest.mark.parametrize("part", ["offsets", "aux", "logsumexp"])
def test_a_shard_that_lacks_a_part_is_refused(folder: Path, part: str) -> None:
    """The header's name of a part is spoilt, and nothing else: the size is still right."""
    content = (folder / _FIRST_SHARD).read_bytes()
    (folder / _FIRST_SHARD).write_bytes(content.replace(f'"{part}"'.encode(), f'"{part[:-1]}?"'.encode()))
    with pytest.raises(InputError, match="shard"):
        _ = Store(folder)[0]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "5", "null", "{}", '{"version": 1, "shards": 5}', "\x00"],
    ids=["empty", "open", "list", "5", "null", "{}", "keys", "nul"],
)
def test_a_manifest_that_is_none_is_refused(folder: Path, text: str) -> None:
    (folder / MANIFEST_FILE).write_text(text)
    with pytest.raises(InputError, match="manifest"):
        Store(folder)
    with pytest.raises(InputError, match="manifest"):
        StoreWriter(folder, _HEADER, 6)


def test_a_manifest_with_an_unknown_key_is_refused(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest | {"colour": "red"}))
    with pytest.raises(InputError, match="manifest"):
        read_manifest(folder)


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing"):
        Store(tmp_path)
