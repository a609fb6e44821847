"""The drafter's folder: written and read back bit for bit; every wrong input is told to the user and none is a traceback."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from builders import random_drafter, write_drafter
from outrider.core.errors import InputError
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.formats.llama_eagle3 import FORMAT
from outrider.formats.safetensors_file import INDEX_FILE, SINGLE_FILE, read_folder_headers, read_header
from outrider.targets.folder import TargetFolder


@pytest.fixture
def folder(tiny_target: TargetFolder, tmp_path: Path) -> Path:
    """A sound drafter's folder, to be spoilt."""
    return write_drafter(random_drafter(tiny_target), tmp_path / "drafter")


def _change_config(folder: Path, **changes: Any) -> None:
    """Set keys of config.json; None removes a key."""
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def _change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / SINGLE_FILE)
    change(tensors)
    save_file(tensors, folder / SINGLE_FILE)


def _assert_refused(folder: Path, *words: str) -> None:
    with pytest.raises(InputError) as caught:
        FORMAT.read(folder)
    told = "\n".join(caught.value.lines())
    for word in words:
        assert word in told


# --- what is written is read back ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layer_names", ["midlayer", "layers.0"])
def test_a_folder_comes_back_bit_for_bit(tiny_target: TargetFolder, tmp_path: Path, layer_names: str, dtype: torch.dtype) -> None:
    drafter = random_drafter(tiny_target)
    checkpoint = drafter.checkpoint()
    FORMAT.write(checkpoint, tmp_path / "drafter", {"layer_names": layer_names, "dtype": dtype, "sglang_aux_layers": [0, 2, 4]})
    found = FORMAT.read(tmp_path / "drafter")
    assert found.config == checkpoint.config
    assert found.draft_vocab is not None and torch.equal(found.draft_vocab, drafter.draft_vocab)
    assert found.tensors.keys() == checkpoint.tensors.keys()
    for name, tensor in checkpoint.tensors.items():
        assert found.tensors[name].dtype == dtype
        assert torch.equal(found.tensors[name], tensor.to(dtype)), name
    assert any(name.startswith(f"{layer_names}.mlp") for name in load_file(tmp_path / "drafter" / SINGLE_FILE))


def test_a_drafter_read_back_is_the_drafter_written(tiny_target: TargetFolder, folder: Path) -> None:
    drafter = random_drafter(tiny_target)
    loaded = Eagle3Drafter.from_checkpoint(FORMAT.read(folder), drafter.embed_tokens)
    assert torch.equal(loaded.draft_vocab, drafter.draft_vocab)
    for name, parameter in drafter.named_parameters():
        assert torch.equal(loaded.get_parameter(name), parameter), name


def test_what_engines_read_is_there(folder: Path, tiny_target: TargetFolder) -> None:
    """d2t holds offsets, t2d marks target ids; aux layers stand literally on top and in SGLang's numbers below."""
    tensors, config = load_file(folder / SINGLE_FILE), json.loads((folder / "config.json").read_text())
    vocab = random_drafter(tiny_target).draft_vocab
    assert torch.equal(tensors["d2t"] + torch.arange(len(vocab)), vocab)
    assert torch.equal(tensors["t2d"].nonzero().flatten(), vocab)
    assert tensors["t2d"].shape == (tiny_target.vocab_size,)
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 3, 5]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 2, 4]


def test_a_whole_vocabulary_has_no_maps(tiny_target: TargetFolder, tmp_path: Path) -> None:
    reduced = random_drafter(tiny_target)
    drafter = Eagle3Drafter(reduced.config.model_copy(update={"draft_vocab_size": 300}), reduced.embed_tokens, None)
    folder = write_drafter(drafter, tmp_path / "drafter")
    assert not {"d2t", "t2d"} & load_file(folder / SINGLE_FILE).keys()
    assert FORMAT.read(folder).draft_vocab is None


def test_a_drafters_own_embedding_is_used(tiny_target: TargetFolder, folder: Path) -> None:
    own = torch.rand(300, 64)
    _change_tensors(folder, lambda tensors: tensors.update({"embed_tokens.weight": own}))
    loaded = Eagle3Drafter.from_checkpoint(FORMAT.read(folder), torch.zeros(300, 64))
    assert torch.equal(loaded.embed_tokens, own)


def test_a_folder_is_replaced_whole(tiny_target: TargetFolder, folder: Path) -> None:
    (folder / "left-over").write_text("x")
    write_drafter(random_drafter(tiny_target), folder)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", SINGLE_FILE]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_sglangs_layers_alone_are_shifted(folder: Path) -> None:
    _change_config(folder, eagle_aux_hidden_state_layer_ids=None)
    assert FORMAT.read(folder).config.aux_layers == (1, 3, 5)


# --- wrong input ----------------------------------------------------------------------------------------------------


def test_no_folder_is_refused(tmp_path: Path) -> None:
    _assert_refused(tmp_path / "nothing", "missing")


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_weights_are_refused(folder: Path, keep: int) -> None:
    data = (folder / SINGLE_FILE).read_bytes()
    (folder / SINGLE_FILE).write_bytes(data[:keep])
    _assert_refused(folder, SINGLE_FILE, "truncated")


def test_missing_weights_are_refused(folder: Path) -> None:
    (folder / SINGLE_FILE).unlink()
    _assert_refused(folder, SINGLE_FILE)


@pytest.mark.parametrize("name", ["fc.weight", "midlayer.hidden_norm.weight", "midlayer.self_attn.q_proj.weight", "lm_head.weight"])
def test_a_missing_tensor_is_refused(folder: Path, name: str) -> None:
    _change_tensors(folder, lambda tensors: tensors.pop(name))
    _assert_refused(folder, name)


@pytest.mark.parametrize("name", ["fc.weight", "norm.weight", "midlayer.mlp.down_proj.weight", "lm_head.weight", "d2t"])
def test_a_wrong_shape_is_refused(folder: Path, name: str) -> None:
    _change_tensors(folder, lambda tensors: tensors.update({name: tensors[name][:-1].clone()}))
    _assert_refused(folder, name)


def test_an_unknown_tensor_is_refused(folder: Path) -> None:
    _change_tensors(folder, lambda tensors: tensors.update({"layers.1.mlp.up_proj.weight": torch.zeros(2)}))
    _assert_refused(folder, "layers.1.mlp.up_proj.weight")


@pytest.mark.parametrize(("place", "value"), [(0, -1), (-1, 5000), (5, -40), (3, 1 << 62)])
def test_offsets_out_of_range_or_order_are_refused(folder: Path, place: int, value: int) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        tensors["d2t"][place] = value

    _change_tensors(folder, spoil)
    _assert_refused(folder, "d2t")


def test_target_ids_in_place_of_offsets_are_refused(folder: Path, tiny_target: TargetFolder) -> None:
    _change_tensors(folder, lambda tensors: tensors.update(d2t=random_drafter(tiny_target).draft_vocab))
    _assert_refused(folder, "d2t", "offsets")


@pytest.mark.parametrize("name", ["d2t", "t2d"])
def test_maps_that_disagree_are_refused(folder: Path, name: str) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        tensors["t2d"] = ~tensors["t2d"] if name == "t2d" else tensors["t2d"]
        if name == "d2t":
            tensors["d2t"][-1] -= 1

    _change_tensors(folder, spoil)
    _assert_refused(folder, "d2t")


def test_a_reduced_vocabulary_without_a_map_is_refused(folder: Path) -> None:
    _change_tensors(folder, lambda tensors: tensors.pop("d2t"))
    _assert_refused(folder, "d2t")


def test_a_drafter_without_aux_layers_is_refused(folder: Path) -> None:
    _change_config(folder, eagle_aux_hidden_state_layer_ids=None, eagle_config=None)
    _assert_refused(folder, "eagle_aux_hidden_state_layer_ids")


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "null", '"x"', "\x00", "{}"])
def test_a_config_that_is_none_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    _assert_refused(folder, str(folder))


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["LlamaForCausalLM"]},
        {"architectures": "LlamaForCausalLM"},
        {"architectures": 5},
        {"hidden_size": None},
        {"hidden_size": "wide"},
        {"hidden_size": 64.5},
        {"num_attention_heads": 0, "head_dim": None},
        {"num_attention_heads": "four", "head_dim": None},
        {"vocab_size": [300]},
        {"draft_vocab_size": -5},
        {"rms_norm_eps": "small"},
        {"rope_theta": "many"},
        {"rope_theta": [1]},
        {"rope_scaling": 5},
        {"rope_scaling": [1, 2]},
        {"rope_scaling": "linear"},
        {"max_position_embeddings": None},
        {"eagle_aux_hidden_state_layer_ids": 3},
        {"eagle_aux_hidden_state_layer_ids": ["one"]},
        {"eagle_aux_hidden_state_layer_ids": [1, 3]},
        {"eagle_aux_hidden_state_layer_ids": None, "eagle_config": [1]},
        {"eagle_aux_hidden_state_layer_ids": None, "eagle_config": {"eagle_aux_hidden_state_layer_ids": ["one"]}},
        {"eagle_aux_hidden_state_layer_ids": None, "eagle_config": {"eagle_aux_hidden_state_layer_ids": 3}},
    ],
    ids=str,
)
def test_a_wrong_value_in_the_config_is_refused(folder: Path, changes: dict[str, Any]) -> None:
    _change_config(folder, **changes)
    _assert_refused(folder, str(folder))


# --- safetensors headers ----------------------------------------------------------------------------------------------


def _file_of(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def _entries_or_refusal(path: Path, content: bytes) -> None:
    """The one rule of the reader: entries, or an error made for people."""
    path.write_bytes(content)
    try:
        entries = read_header(path)
    except InputError as error:
        assert str(path) in error.evidence
    else:
        assert all(entry.file == path and all(n >= 0 for n in entry.shape) for entry in entries.values())


_SOUND = json.dumps({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {"format": "pt"}}).encode()
_fuzz = settings(
    max_examples=200, derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@_fuzz
@given(content=st.binary(max_size=200))
def test_random_bytes_are_entries_or_a_refusal(tmp_path: Path, content: bytes) -> None:
    _entries_or_refusal(tmp_path / "fuzz", content)
    _entries_or_refusal(tmp_path / "fuzz", _file_of(content))


@_fuzz
@given(place=st.integers(0, len(_SOUND) + 31), byte=st.integers(0, 255), cut=st.integers(0, 40))
def test_a_mutated_file_is_entries_or_a_refusal(tmp_path: Path, place: int, byte: int, cut: int) -> None:
    content = bytearray(_file_of(_SOUND, bytes(24)))
    content[place] = byte
    _entries_or_refusal(tmp_path / "fuzz", bytes(content))
    _entries_or_refusal(tmp_path / "fuzz", bytes(content[: len(content) - cut]))


_json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@_fuzz
@given(
    header=_json_values
    | st.dictionaries(
        st.text(max_size=3),
        st.fixed_dictionaries({}, optional={"dtype": st.just("F32") | _json_values, "shape": _json_values, "data_offsets": _json_values}),
        max_size=3,
    ),
    num_bytes=st.integers(0, 8),
)
def test_a_header_of_any_json_is_entries_or_a_refusal(tmp_path: Path, header: Any, num_bytes: int) -> None:
    _entries_or_refusal(tmp_path / "fuzz", _file_of(json.dumps(header).encode(), bytes(num_bytes)))


@pytest.mark.parametrize(
    ("shape", "offsets"),
    [
        ("[1e999]", "[0, 24]"),
        ("[2, 3]", "[0, 1e999]"),
        ("[2, 3]", "[0, NaN]"),
        ("[-2, -3]", "[0, 24]"),
        ("[2, 3]", "[-24, 0]"),
        ("[2, 3]", "[24, 0]"),
        ("[2, 3]", "[0, 24, 48]"),
        ("[2, 3]", "[8, 32]"),
        ("[" + "9" * 5000 + "]", "[0, 24]"),
        ("[" * 5000 + "]" * 5000, "[0, 24]"),
    ],
)
def test_numbers_that_no_tensor_has_are_refused(tmp_path: Path, shape: str, offsets: str) -> None:
    header = f'{{"a": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}}}'
    (tmp_path / "file").write_bytes(_file_of(header.encode(), bytes(24)))
    with pytest.raises(InputError):
        read_header(tmp_path / "file")


def test_a_sound_header_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(_file_of(_SOUND, bytes(24)))
    (entry,) = read_header(tmp_path / "file").values()
    assert (entry.name, entry.dtype, entry.shape, entry.file) == ("a", "F32", (2, 3), tmp_path / "file")


def _write_sharded(folder: Path) -> None:
    folder.mkdir()
    save_file({"a": torch.zeros(2)}, folder / "one.safetensors")
    save_file({"b": torch.zeros(3)}, folder / "two.safetensors")
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    _write_sharded(tmp_path / "m")
    assert {name: entry.file.name for name, entry in read_folder_headers(tmp_path / "m").items()} == {
        "a": "one.safetensors",
        "b": "two.safetensors",
    }


@pytest.mark.parametrize(
    "index",
    [
        [],
        {},
        {"weight_map": []},
        {"weight_map": {"a": "two.safetensors", "b": "two.safetensors"}},
        {"weight_map": {"a": "one.safetensors", "c": "two.safetensors"}},
        {"weight_map": {"a": "three.safetensors"}},
        {"weight_map": {"a": 5}},
        {"weight_map": {"a": None}},
        {"weight_map": {"a": ""}},
    ],
    ids=str,
)
def test_an_index_that_does_not_fit_is_refused(tmp_path: Path, index: Any) -> None:
    _write_sharded(tmp_path / "m")
    (tmp_path / "m" / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(InputError):
        read_folder_headers(tmp_path / "m")


def test_a_lost_shard_is_refused(tmp_path: Path) -> None:
    _write_sharded(tmp_path / "m")
    (tmp_path / "m" / "two.safetensors").unlink()
    with pytest.raises(InputError, match="missing"):
        read_folder_headers(tmp_path / "m")
