"""Folders as they come: an index alone, shards cut behind their headers, a model of a Hugging Face cache."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from outrider.core.errors import InputError
from outrider.preflight.planned import planned_eagle3
from outrider.preflight.reading import names_stamp, read_headers, read_object, resolved_folder, tensor_names
from outrider.preflight.stage import subject_of
from preflight.folders import DRAFTER, TARGET, VLLM, drafter_tensors, finding_of, write_drafter, write_target, write_tensors, zeros

INDEX = "model.safetensors.index.json"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target")


def cut(path: Path, more: int = 0) -> None:
    """Leave a file's header, and so many bytes behind it."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    path.write_bytes(data[: 8 + size + more])


def test_headers_alone_are_as_good_as_the_whole(tmp_path: Path, target: Path) -> None:
    folder = write_drafter(tmp_path / "drafter")
    whole, _ = read_headers(folder)
    cut(folder / "model.safetensors")
    headers, _ = read_headers(folder)
    assert headers == whole and headers is not None and "fc.weight" in headers
    assert finding_of("tensor_names", target, folder).verdict == "pass"


@pytest.mark.parametrize("more", [-1, 1, 40])
def test_a_file_that_is_cut_anywhere_else_is_damaged(tmp_path: Path, more: int) -> None:
    folder = write_drafter(tmp_path / "drafter")
    cut(folder / "model.safetensors", more)
    with pytest.raises(InputError, match="truncated or damaged"):
        read_headers(folder)


def test_the_map_in_a_cut_file_is_not_judged(tmp_path: Path, target: Path) -> None:
    folder = write_drafter(tmp_path / "drafter")
    assert finding_of("vocabulary_map", target, folder).verdict == "pass"
    cut(folder / "model.safetensors")
    found = finding_of("vocabulary_map", target, folder)
    assert found.verdict == "unknown" and "cut off" in found.title


def test_shards_of_an_index(tmp_path: Path) -> None:
    tensors = drafter_tensors()
    write_tensors(tmp_path / "a.safetensors", {"fc.weight": tensors["fc.weight"]})
    write_tensors(tmp_path / "b.safetensors", {"norm.weight": tensors["norm.weight"]})
    cut(tmp_path / "b.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"fc.weight": "a.safetensors", "norm.weight": "b.safetensors"}}))
    headers, _ = read_headers(tmp_path)
    assert headers is not None and set(headers) == {"fc.weight", "norm.weight"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"fc.weight": "b.safetensors"}}))
    with pytest.raises(InputError, match="not where the index says"):
        read_headers(tmp_path)


def cached(place: Path, refs: str | None, *snapshots: str) -> Path:
    """A model of a cache."""
    root = place / "models--org--name"
    for name in snapshots:
        write_target(root / "snapshots" / name)
    if refs is not None:
        (root / "refs").mkdir(parents=True)
        (root / "refs" / "main").write_text(refs)
    return root


def test_a_folder_is_itself(target: Path) -> None:
    assert resolved_folder(target) == target
    assert resolved_folder(target / "nowhere") == target / "nowhere"


@pytest.mark.parametrize(("refs", "snapshots"), [("b2\n", ("a1", "b2")), (None, ("b2",)), ("", ("b2",))])
def test_the_snapshot_of_a_cached_model(tmp_path: Path, refs: str | None, snapshots: tuple[str, ...]) -> None:
    root = cached(tmp_path, refs, *snapshots)
    assert resolved_folder(root) == root / "snapshots" / "b2"


@pytest.mark.parametrize(("refs", "snapshots"), [(None, ("a1", "b2")), ("c3", ("a1",)), ("../../..", ("a1",)), ("c3", ())])
def test_a_cached_model_of_which_no_snapshot_can_be_told(tmp_path: Path, refs: str | None, snapshots: tuple[str, ...]) -> None:
    root = cached(tmp_path, refs, *snapshots)
    (root / "snapshots").mkdir(parents=True, exist_ok=True)
    with pytest.raises(InputError, match="without the snapshot") as caught:
        resolved_folder(root)
    assert caught.value.fix


def test_a_cached_model_is_checked_like_its_snapshot(tmp_path: Path) -> None:
    target, drafter = cached(tmp_path / "a", "b2", "b2"), tmp_path / "b" / "models--org--drafter"
    write_drafter(drafter / "snapshots" / "c3")
    for planned in (False, True):
        found = subject_of(target, planned_eagle3(target) if planned else drafter, VLLM)
        assert found.target_path == target / "snapshots" / "b2" and found.target_tensors
        assert found.drafter_path == (None if planned else drafter / "snapshots" / "c3")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("is_pipe", [True, False])
def test_a_pipe_or_a_device_is_not_waited_for(target: Path, name: str, is_pipe: bool) -> None:
    (target / name).unlink()
    os.mkfifo(target / name) if is_pipe else (target / name).symlink_to("/dev/zero")
    with pytest.raises(InputError, match="is no file"):
        subject_of(target, DRAFTER, VLLM)


@pytest.mark.parametrize("text", ["[" * 2_000_000, '{"a": [' + "[]," * 3_000_000 + "[]]}", " " * 60_000_000 + "{}"])
def test_a_file_beyond_reason_is_not_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"beyond reason|not valid JSON"):
        read_object(path, "the target's config")


def test_a_header_beyond_reason_is_not_read(tmp_path: Path) -> None:
    text = b"[" + b"[]," * 3_000_000 + b"[]]"
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(InputError, match="truncated or damaged") as caught:
        read_headers(tmp_path)
    assert "beyond reason" in caught.value.evidence


@pytest.mark.parametrize(
    ("config", "names", "verdict", "says"),
    [
        (TARGET, ("model.embed_tokens.weight", "lm_head.weight"), "pass", '"lm_head.weight"'),
        (TARGET | {"tie_word_embeddings": True}, ("model.embed_tokens.weight",), "pass", '"model.embed_tokens.weight"'),
        (TARGET, ("vision.patch.embeddings.weight", "language_model.wte.weight", "lm_head.qweight"), "pass", "wte"),
        (TARGET, ("model.embed_tokens.weight",), "warn", "head"),
        (TARGET, ("model.layers.0.mlp.up_proj.weight", "lm_head.weight"), "warn", "embedding"),
    ],
)
def test_target_tensors(tmp_path: Path, config: dict[str, Any], names: tuple[str, ...], verdict: str, says: str) -> None:
    target = write_target(tmp_path / "target", config)
    (target / "model.safetensors").unlink()
    (target / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, "model-00001-of-00002.safetensors")}))
    found = finding_of("target_tensors", target, DRAFTER)
    assert (found.verdict, says in found.title) == (verdict, True), found.title


def test_target_tensors_of_a_config_alone(target: Path) -> None:
    assert set(tensor_names(target)) == {"model.embed_tokens.weight", "lm_head.weight"}
    (target / "model.safetensors").unlink()
    assert names_stamp(target) is None
    assert finding_of("target_tensors", target, DRAFTER).verdict == "unknown"


def test_a_target_that_changed_is_looked_at_again(target: Path) -> None:
    assert finding_of("target_tensors", target, DRAFTER).verdict == "pass"
    write_tensors(target / "model.safetensors", {"lm_head.weight": zeros("F32", 1)})
    assert finding_of("target_tensors", target, DRAFTER).verdict == "warn"
