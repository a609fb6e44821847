"""A target of a trillion parameters: config and index alone are read within 2 s and 200 MB, without torch."""

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.engines.known import known_versions
from preflight.folders import TARGET, write_drafter, write_target

NUM_SHARDS = 64
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
_CODE = """
import json, sys, time
from pathlib import Path
started = time.perf_counter()
from outrider.cli.preflight import preflight  # as the command imports it
from outrider.engines.known import facts_of_version
from outrider.preflight.planned import PLANS
from outrider.preflight.stage import preflight as work
target, drafter, plan, engine, version = sys.argv[1:]
meant = PLANS[plan](Path(target)) if plan else Path(drafter)
result = work(Path(target), meant, facts_of_version(engine, version))
print(json.dumps({
    "findings": {finding.id: finding.verdict for finding in result.findings},
    "megabytes": next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) // 1024,
    "seconds": time.perf_counter() - started,
    "heavy": sorted({"torch", "transformers", "numpy", "vllm"} & set(sys.modules)),
}))
"""

# the command whole, where every connection is an error
_COMMAND = """
import socket, sys, time
started = time.perf_counter()
def refused(*_, **__):
    raise AssertionError("a connection")
socket.socket.connect = socket.getaddrinfo = refused
from outrider.cli.main import main
sys.argv[0] = "outrider"
try:
    main()
finally:
    heavy = sorted({"torch", "transformers", "numpy", "vllm"} & set(sys.modules))
    megabytes = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) // 1024
    print(time.perf_counter() - started, megabytes, *heavy, file=sys.stderr)
"""


def tensor_names(num_layers: int, num_experts: int) -> Iterator[str]:
    """As a wrapper around a model of experts with packed weights calls them."""
    yield from (f"language_model.{name}.weight" for name in ("model.embed_tokens", "model.norm", "lm_head"))
    for layer in range(num_layers):
        place = f"language_model.model.layers.{layer}"
        yield from (f"{place}.self_attn.{name}_proj.weight" for name in ("q_a", "q_b", "kv_b", "o"))
        for expert in range(num_experts):
            for name in ("gate", "up", "down"):
                yield from (
                    f"{place}.mlp.experts.{expert}.{name}_proj.{part}" for part in ("weight_packed", "weight_scale", "weight_shape")
                )


def shard_of(i: int, total: int) -> str:
    return f"model-{i * NUM_SHARDS // total + 1:05d}-of-{NUM_SHARDS:06d}.safetensors"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wrapper's config and an index of 208,000 names, without shards."""
    text = TARGET | {
        "num_hidden_layers": 61,
        "kv_lora_rank": 5,
        "q_lora_rank": 6,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 2,
        "v_head_dim": 3,
    }
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": text | {"model_type": "kimi_k2"},
    }
    folder = write_target(tmp_path_factory.mktemp("large") / "target", config)
    (folder / "model.safetensors").unlink()
    names = list(tensor_names(60, 385))
    assert len(names) > 208_000
    index = {"weight_map": {name: shard_of(i, len(names)) for i, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def looked_at(target: Path, drafter: Path, plan: str, engine: str, version: str) -> dict[str, Any]:
    command = [sys.executable, "-c", _CODE, str(target), str(drafter), plan, engine, version]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["heavy"] == []
    return told


@pytest.mark.parametrize(
    ("plan", "engine", "version"), [("eagle3-mla", "vllm", "0.33.0"), ("eagle3", "sglang", "0.5.23"), ("", "vllm", "0.16.0")]
)
def test_an_index_of_a_trillion_parameters(tmp_path: Path, large: Path, plan: str, engine: str, version: str) -> None:
    told = looked_at(large, write_drafter(tmp_path / "drafter"), plan, engine, version)
    assert told["findings"]["target_tensors"] == "pass"
    assert told["megabytes"] < 200
    assert told["seconds"] < 2


@pytest.mark.parametrize(("arguments", "limit_s"), [(("--engine", "vllm==0.33.0", "--json"), 2), (("--matrix",), 20)])
def test_the_command_on_a_trillion_parameters(large: Path, arguments: tuple[str, ...], limit_s: float) -> None:
    """One version, and all of them, from the import on; nothing is asked over the network."""
    command = [sys.executable, "-c", _COMMAND, "preflight", "--target", str(large), "--drafter", "eagle3", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    seconds, megabytes, *heavy = done.stderr.split()
    assert float(seconds) < limit_s and int(megabytes) < 200 and heavy == []
    if "--json" in arguments:
        assert {finding["id"]: finding["verdict"] for finding in json.loads(done.stdout)["findings"]}["target_tensors"] == "pass"
    else:
        rows = [line for line in done.stdout.splitlines() if line.split()[1] in ("vllm", "sglang")]
        assert len(rows) == len(known_versions("vllm")) + len(known_versions("sglang"))


def test_shards_cut_behind_their_headers(tmp_path: Path, large: Path) -> None:
    """The same with the headers of all shards at hand."""
    index = json.loads((large / "model.safetensors.index.json").read_text())["weight_map"]
    folder = write_target(tmp_path / "target", json.loads((large / "config.json").read_text()))
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_bytes((large / "model.safetensors.index.json").read_bytes())
    headers: dict[str, dict[str, Any]] = {}
    for name, shard in index.items():
        there = headers.setdefault(shard, {})
        there[name] = {"dtype": "BF16", "shape": [2, 4], "data_offsets": [16 * len(there), 16 * len(there) + 16]}
    for shard, header in headers.items():
        encoded = json.dumps(header).encode()
        (folder / shard).write_bytes(struct.pack("<Q", len(encoded)) + encoded)
    told = looked_at(folder, write_drafter(tmp_path / "drafter"), "eagle3", "vllm", "0.33.0")
    assert told["findings"]["target_tensors"] == "pass"
    assert told["megabytes"] < 200
