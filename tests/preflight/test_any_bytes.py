"""Whatever a file holds, a preflight ends in findings or in an InputError."""

import io
import json
import struct
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from outrider.core.errors import InputError
from outrider.core.results import PreflightResult
from outrider.preflight.planned import planned_eagle3
from outrider.preflight.stage import preflight
from outrider.preflight.terminal import print_preflight
from preflight.folders import DRAFTER, LISTED, REFERENCE, TARGET, VLLM, drafter_tensors, write_drafter, write_target

_RUNS = settings(max_examples=60, deadline=None)
_ENGINES = (VLLM, LISTED, REFERENCE)
_TEXT = st.one_of(st.sampled_from(["llama", "LlamaForCausalLMEagle3", "deepseek_v3", "\ud800", "\x1b[2J"]), st.text(max_size=8))
_NUMBER = st.one_of(st.integers(-3, 50), st.sampled_from([0, 10**30, -(10**4000), 2**63]), st.floats(), st.booleans(), st.none())
_ODD: tuple[Any, ...] = ("\ud800", [2, "\ud800"], [10**4300 - 1, 6, 9], [-(10**4300 - 1)], 10**4300 - 1, float("nan"), {"\ud800": {}})
_ANY = st.recursive(
    st.one_of(_NUMBER, _TEXT), lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_TEXT, inner, max_size=3)), max_leaves=8
)
_VALUE = st.one_of(st.sampled_from(_ODD), _ANY)
_KEYS = (*DRAFTER, "text_config", "target_hidden_size", "num_aux_hidden_states", "rope_scaling", "rope_parameters", "rope_theta", "fc_norm")
_CHANGES = st.dictionaries(st.sampled_from(_KEYS), _VALUE, min_size=1, max_size=4)


def run(target: Path, drafter: Path | dict[str, Any]) -> None:
    """Nothing but an InputError may come out, and what is found can be written and printed."""
    for facts in _ENGINES:
        try:
            result = preflight(target, drafter, facts)
        except InputError as error:
            assert error.what and "\n".join(error.lines()).encode(errors="backslashreplace")
            continue
        assert all(finding.evidence for finding in result.findings)
        assert PreflightResult.model_validate_json(result.model_dump_json()) == result
        print_preflight(result, Console(file=io.StringIO()))


def folders(place: str) -> tuple[Path, Path]:
    return write_target(Path(place) / "target"), write_drafter(Path(place) / "drafter")


@_RUNS
@given(
    st.sampled_from(["target/config.json", "drafter/config.json", "target/model.safetensors.index.json", "drafter/model.safetensors"]),
    st.one_of(st.binary(max_size=200), _VALUE.map(lambda value: json.dumps(value).encode())),
)
def test_any_bytes(name: str, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        target, drafter = folders(place)
        (Path(place) / name).write_bytes(data)
        run(target, drafter)


@_RUNS
@given(
    st.sampled_from(
        ["target/generation_config.json", "target/tokenizer_config.json", "drafter/outrider.json", "drafter/model.safetensors.index.json"]
    ),
    st.one_of(
        st.binary(max_size=60),
        _VALUE.map(lambda value: json.dumps(value).encode()),
        _VALUE.map(lambda value: json.dumps({"eos_token_id": value, "chat_template": value, "aux_layers": value}).encode()),
        st.dictionaries(_TEXT, _VALUE, max_size=3).map(lambda value: json.dumps({"weight_map": value}).encode()),
    ),
)
def test_any_bytes_beside_them(name: str, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        target, drafter = folders(place)
        (target / "chat_template.jinja").unlink()
        (Path(place) / name).write_bytes(data)
        run(target, drafter)


@_RUNS
@given(_CHANGES)
def test_any_drafter_config(changes: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as place:
        target, drafter = folders(place)
        (drafter / "config.json").write_text(json.dumps(DRAFTER | changes))
        run(target, drafter)
        run(target, json.loads(json.dumps(DRAFTER | changes)))


@_RUNS
@given(_CHANGES)
def test_any_target_config(changes: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as place:
        target, drafter = folders(place)
        (target / "config.json").write_text(json.dumps(TARGET | changes))
        run(target, drafter)
        try:
            planned = planned_eagle3(target)
        except InputError:
            return
        run(target, planned)


@_RUNS
@given(
    st.sampled_from(sorted(drafter_tensors())),
    st.sampled_from(["dtype", "shape", "data_offsets"]),
    st.one_of(_VALUE, st.lists(st.integers(-2, 400), max_size=3), st.sampled_from(["I64", "BOOL", "U8", "F64"])),
    _TEXT,
)
def test_any_header(name: str, key: str, value: Any, other: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        target, drafter = folders(place)
        path = drafter / "model.safetensors"
        data = path.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + size])
        header[name][key] = value
        header[other or "x"] = header.pop(name)
        encoded = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data[8 + size :])
        run(target, drafter)
