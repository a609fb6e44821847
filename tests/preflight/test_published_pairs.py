"""Published pairs of target and drafter: no fail where an engine serves them, and a fail where it is known not to.

published/targets and published/drafters hold what their config.json files say, where that stands, and the tensors that the
publisher's exporter writes, if that is known. `served` and `refused` name versions of an engine. Those that are `refused`
lack a gate: the target's type is not on the list, its class has no interface, or there is no class for the drafter. Of
versions in neither nothing is said, nor of an engine that cannot read the config as it is published; the note says why.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.specifiers import SpecifierSet

from outrider.core.results import MatrixRow
from outrider.preflight.matrix import matrix

_FOLDER: Final = Path(__file__).parent / "published"
_ITEM_BYTES: Final = {"BF16": 2, "I64": 8, "BOOL": 1}
_NAMES: Final = sorted(path.stem for path in (_FOLDER / "drafters").glob("*.json"))


@dataclass(frozen=True)
class Published:
    """A drafter's file, and what preflight says of the pair in every known version of the engines that it names."""

    served: Mapping[str, str]
    refused: Mapping[str, str]
    rows: tuple[MatrixRow, ...]


def _read(kind: str, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((_FOLDER / kind / f"{name}.json").read_text())
    return content


@pytest.fixture(scope="module", params=_NAMES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Published:
    """One pair: of the target config.json alone, of the drafter its config or, where its tensors are known, their headers."""
    drafter = _read("drafters", request.param)
    target = tmp_path_factory.mktemp("target")
    (target / "config.json").write_text(json.dumps(_read("targets", drafter["target"])["config"]))
    subject = _folder(drafter, tmp_path_factory.mktemp("drafter")) if "tensors" in drafter else drafter["config"]
    engines = sorted({*drafter["served"], *drafter["refused"]})
    return Published(drafter["served"], drafter["refused"], tuple(matrix(target, subject, engines, drafter["arguments"], None)))


def _folder(drafter: Mapping[str, Any], folder: Path) -> Path:
    """The drafter's config.json, and its weights cut off behind their header."""
    (folder / "config.json").write_text(json.dumps(drafter["config"]))
    header: dict[str, Any] = {}
    position = 0
    for name, (dtype, shape) in drafter["tensors"].items():
        end = position + prod(shape) * _ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
        position = end
    encoded = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded)
    return folder


def _among(pair: Published, versions: Mapping[str, str]) -> list[MatrixRow]:
    """The rows of these versions; every engine that is named has some."""
    rows = [row for row in pair.rows if row.engine in versions and row.version in SpecifierSet(versions[row.engine])]
    assert {row.engine for row in rows} == set(versions)
    return rows


def test_a_version_that_serves_the_pair_raises_no_fail(pair: Published) -> None:
    served = _among(pair, pair.served)
    assert served
    assert {f"{row.engine} {row.version}": (row.failing, row.title) for row in served if row.failing} == {}


def test_a_version_that_lacks_a_gate_fails(pair: Published) -> None:
    assert [f"{row.engine} {row.version}" for row in _among(pair, pair.refused) if row.verdict != "fail"] == []


def test_the_pairs_are_many_and_of_many_kinds() -> None:
    drafters = [_read("drafters", name) for name in _NAMES]
    targets = {path.stem: _read("targets", path.stem)["config"] for path in (_FOLDER / "targets").glob("*.json")}
    assert len(drafters) >= 24 and {drafter["target"] for drafter in drafters} == set(targets)
    assert {engine for drafter in drafters for engine in drafter["served"]} == {"vllm", "sglang"}
    assert len({config["architectures"][0] for config in targets.values()}) >= 15
    assert any("speculators_model_type" in drafter["config"] for drafter in drafters)
    assert any("text_config" in config for config in targets.values())
    assert any("tensors" in drafter for drafter in drafters)


@pytest.mark.parametrize("name", _NAMES)
def test_a_drafter_is_for_its_target(name: str) -> None:
    drafter = _read("drafters", name)
    target = _read("targets", drafter["target"])
    text = target["config"].get("text_config", target["config"])
    layer = drafter["config"].get("transformer_layer_config", drafter["config"])
    assert drafter["published"] and drafter["source"] and target["model"] and target["source"]
    assert (layer["hidden_size"], layer["vocab_size"]) == (text["hidden_size"], text["vocab_size"])
