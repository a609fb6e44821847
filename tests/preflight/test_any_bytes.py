"""Whatever a file holds, a preflight ends in findings or in an InputError."""

import io
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from outrider.core.errors import InputError
from outrider.core.results import PreflightResult
from outrider.engines.known import facts_of_version
from outrider.preflight.planned import PLANS
from outrider.preflight.stage import preflight
from outrider.preflight.terminal import print_preflight
from preflight.folders import DRAFTER, LISTED, REFERENCE, TARGET, VLLM, drafter_tensors, write_drafter, write_target

_RUNS = settings(max_examples=60, deadline=None)
_REAL = (("vllm", "0.16.0"), ("vllm", "0.33.0"), ("sglang", "0.5.2"), ("sglang", "0.5.23"))
_ENGINES = (VLLM, LISTED, REFERENCE, *(facts_of_version(engine, version) for engine, version in _REAL))
_MOST_KILOBYTES = 200_000
_TEXT = st.one_of(st.sampled_from(["llama", "LlamaForCausalLMEagle3", "deepseek_v3", "\ud800", "\x1b[2J"]), st.text(max_size=8))
_NUMBER = st.one_of(st.integers(-3, 50), st.sampled_from([0, 10**30, -(10**4000), 2**63]), st.floats(), st.booleans(), st.none())
_ODD: tuple[Any, ...] = ("\ud800", [2, "\ud800"], [10**4300 - 1, 6, 9], [-(10**4300 - 1)], 10**4300 - 1, float("nan"), {"\ud800": {}})
_ANY = st.recursive(
    st.one_of(_NUMBER, _TEXT), lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_TEXT, inner, max_size=3)), max_leaves=8
)
_VALUE = st.one_of(st.sampled_from(_ODD), _ANY)
_MLA = {"q_lora_rank": 6, "kv_lora_rank": 5, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 3}
_KEYS = (
    *DRAFTER,
    *_MLA,
    *("text_config", "target_hidden_size", "num_aux_hidden_states", "rope_scaling", "rope_parameters", "rope_theta", "fc_norm"),
    *("norm_before_fc", "norm_output", "attention_bias", "bias", "tie_word_embeddings"),
    *("quantization_config", "speculators_model_type", "transformer_layer_config"),
)
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


def header_of(data: bytes) -> bytes:
    """Bytes as the header of a file that ends behind it."""
    return struct.pack("<Q", len(data)) + data


def folders(place: str) -> tuple[Path, Path]:
    return write_target(Path(place) / "target"), write_drafter(Path(place) / "drafter")


@_RUNS
@given(
    st.sampled_from(
        [
            f"{whose}/{file}"
            for whose in ("target", "drafter")
            for file in ("config.json", "model.safetensors.index.json", "model.safetensors")
        ]
    ),
    st.one_of(
        st.binary(max_size=200),
        _VALUE.map(lambda value: json.dumps(value).encode()),
        _VALUE.map(lambda value: header_of(json.dumps(value).encode())),
        st.binary(max_size=60).map(lambda data: header_of(data)),
    ),
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
        for config in (DRAFTER | changes, DRAFTER | _MLA | {"architectures": ["Eagle3DeepseekV2ForCausalLM"]} | changes):
            (drafter / "config.json").write_text(json.dumps(config))
            run(target, drafter)
            run(target, json.loads(json.dumps(config)))


@_RUNS
@given(_CHANGES)
def test_any_target_config(changes: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as place:
        target, drafter = folders(place)
        (target / "config.json").write_text(json.dumps(TARGET | _MLA | changes))
        run(target, drafter)
        for plan in PLANS.values():
            try:
                planned = plan(target)
            except InputError:
                continue
            run(target, planned)


@_RUNS
@given(
    st.sampled_from(sorted(drafter_tensors())),
    st.sampled_from(["dtype", "shape", "data_offsets"]),
    st.one_of(_VALUE, st.lists(st.integers(-2, 400), max_size=3), st.sampled_from(["I64", "BOOL", "U8", "F64"])),
    _TEXT,
    st.booleans(),
)
def test_any_header(name: str, key: str, value: Any, other: str, is_cut: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        target, drafter = folders(place)
        path = drafter / "model.safetensors"
        data = path.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + size])
        header[name][key] = value
        header[other or "x"] = header.pop(name)
        encoded = json.dumps(header).encode()
        path.write_bytes(header_of(encoded) + (b"" if is_cut else data[8 + size :]))
        run(target, drafter)


_LARGE = """
import sys
from pathlib import Path
from outrider.core.errors import InputError
from outrider.engines.known import facts_of_version
from outrider.preflight.stage import preflight
try:
    preflight(Path(sys.argv[1]), Path(sys.argv[2]), facts_of_version("vllm", "0.33.0"))
    print("findings")
except InputError as error:
    print(error.what)
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
_CONFIG, _INDEX, _WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("whose", ["target", "drafter"])
@pytest.mark.parametrize(
    ("file", "data"),
    [
        (_CONFIG, b"[" * 40_000_000),
        (_CONFIG, b"[" + b"{}," * 10_000_000 + b"{}]"),
        (_CONFIG, b'{"a": "' + "\U0001f600".encode() * 9_000_000 + b'"}'),
        (_CONFIG, b"1" * 120_000_000),
        (_INDEX, b'{"weight_map": {' + b",".join(b'"%d": 1' % i for i in range(1_500_000)) + b"}}"),
        (_INDEX, b'{"weight_map": {"a": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}}"),
        (_WEIGHTS, header_of(b"{" + b",".join(b'"%d": {}' % i for i in range(1_000_000)) + b"}")),
        (_WEIGHTS, header_of(b'{"a": {"dtype": "F32", "shape": [' + b"9," * 5_000_000 + b'9], "data_offsets": [0, 0]}}')),
        (_WEIGHTS, header_of(b" " * 99_000_000 + b"{}")),
        (_WEIGHTS, header_of(b'{"a": {"dtype": "F32", "shape": [' + b"9" * 4_000 + b",9" * 20_000 + b'], "data_offsets": [0, 0]}}')),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_large_files_take_little_memory(tmp_path: Path, whose: str, file: str, data: bytes) -> None:
    target, drafter = folders(str(tmp_path))
    (tmp_path / whose / file).write_bytes(data)
    command = [sys.executable, "-c", _LARGE, str(target), str(drafter)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    what, kilobytes = done.stdout.splitlines()
    assert what != "findings" and int(kilobytes) < _MOST_KILOBYTES
