"""Published pairs of target and drafter: no fail where an engine serves them, and a fail where it is known not to.

published/targets and published/drafters hold what their config.json files say, and where that stands. `served` names, for
each engine, the first version that serves the pair, None where none does; a drafter whose published config an engine
cannot read leaves that engine out, and its note says why. Versions before `refused_before` lack a gate: the target's type
is not on the list, its class has no interface, or there is no class for the drafter.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.version import Version

from outrider.core.results import MatrixRow
from outrider.preflight.matrix import matrix

_FOLDER: Final = Path(__file__).parent / "published"
_NAMES: Final = sorted(path.stem for path in (_FOLDER / "drafters").glob("*.json"))


@dataclass(frozen=True)
class Published:
    """A drafter's file, and what preflight says of the pair in every known version of the engines that it names."""

    target: str
    served: Mapping[str, str | None]
    refused_before: Mapping[str, str | None]
    rows: tuple[MatrixRow, ...]


def _read(kind: str, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((_FOLDER / kind / f"{name}.json").read_text())
    return content


@pytest.fixture(scope="module", params=_NAMES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Published:
    """One pair; of the target there is only config.json, the drafter is only its config."""
    drafter = _read("drafters", request.param)
    target = tmp_path_factory.mktemp("target")
    (target / "config.json").write_text(json.dumps(_read("targets", drafter["target"])["config"]))
    rows = matrix(target, drafter["config"], list(drafter["served"]), drafter["arguments"], None)
    return Published(drafter["target"], drafter["served"], drafter["refused_before"], tuple(rows))


def _is_before(row: MatrixRow, first: str | None) -> bool:
    return first is None or Version(row.version) < Version(first)


def test_a_version_that_serves_the_pair_raises_no_fail(pair: Published) -> None:
    served = [row for row in pair.rows if not _is_before(row, pair.served[row.engine])]
    assert {row.engine for row in served} == {engine for engine, first in pair.served.items() if first}
    assert {f"{row.engine} {row.version}": (row.failing, row.title) for row in served if row.failing} == {}


def test_a_version_that_lacks_a_gate_fails(pair: Published) -> None:
    refused = [row for row in pair.rows if _is_before(row, pair.refused_before[row.engine])]
    assert [f"{row.engine} {row.version}" for row in refused if row.verdict != "fail"] == []


def test_the_pairs_are_many_and_of_many_kinds() -> None:
    drafters = [_read("drafters", name) for name in _NAMES]
    targets = {path.stem: _read("targets", path.stem)["config"] for path in (_FOLDER / "targets").glob("*.json")}
    assert len(drafters) >= 24 and {drafter["target"] for drafter in drafters} == set(targets)
    assert {engine for drafter in drafters for engine, first in drafter["served"].items() if first} == {"vllm", "sglang"}
    assert len({config["architectures"][0] for config in targets.values()}) >= 15
    assert any("speculators_model_type" in drafter["config"] for drafter in drafters)
    assert any("text_config" in config for config in targets.values())
    assert any(None in drafter["served"].values() for drafter in drafters)


@pytest.mark.parametrize("name", _NAMES)
def test_a_drafter_is_for_its_target(name: str) -> None:
    drafter = _read("drafters", name)
    target = _read("targets", drafter["target"])
    text = target["config"].get("text_config", target["config"])
    layer = drafter["config"].get("transformer_layer_config", drafter["config"])
    assert drafter["published"] and drafter["source"] and target["model"] and target["source"]
    assert (layer["hidden_size"], layer["vocab_size"]) == (text["hidden_size"], text["vocab_size"])
