"""The story that preflight is for: Kimi-K2.5 with an EAGLE-3 drafter, against every version whose facts are kept.

fixtures/ holds a target that is put together from figures that public repositories state, and the configs of the two
drafters that lightseekorg/TorchSpec (MIT) trains for it.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.version import Version

from outrider.core.results import Finding
from outrider.engines.known import facts_of_version, known_versions
from outrider.preflight.stage import preflight

_FIXTURES: Final = Path(__file__).parent / "fixtures"
# the checks that this story turns on, in the order of the engine's gates
_GATES: Final = (
    "method_known",
    "target_types",
    "drafter_architecture",
    "method_fits",
    "serve_flags",
    "image_token",
    "target_interface",
    "drafter_class",
)
_VLLM, _SGLANG = known_versions("vllm"), known_versions("sglang")


@pytest.fixture(params=["kimi_k2", "deepseek_v3"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The target, of whose checkpoints some say the one type and some the other."""
    config: dict[str, Any] = json.loads((_FIXTURES / "kimi-k2.5" / "config.json").read_text())
    config["text_config"]["model_type"] = request.param
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def findings(engine: str, version: str, target: Path, drafter: str) -> dict[str, Finding]:
    """What the gates find, in their order."""
    result = preflight(target, _FIXTURES / drafter, facts_of_version(engine, version))
    return {finding.id: finding for finding in result.findings if finding.id in _GATES}


def failing(found: dict[str, Finding]) -> list[str]:
    """The gates that fail, in their order."""
    return [check_id for check_id, finding in found.items() if finding.verdict == "fail"]


def test_the_facts_are_there() -> None:
    assert {"0.9.2", "0.16.0", "0.18.0", "0.33.0"} <= set(_VLLM) and {"0.5.2", "0.5.9", "0.5.10", "0.5.23"} <= set(_SGLANG)


def test_three_gates_of_vllm_0_16(target: Path) -> None:
    """The list, then the attribute, then the interface: lifting the first would have led to the second, minutes later."""
    found = findings("vllm", "0.16.0", target, "drafter-llama")
    assert failing(found) == ["target_types", "image_token", "target_interface"]
    assert {finding.verdict for check_id, finding in found.items() if check_id not in failing(found)} == {"pass"}
    types, image, interface = (found[check_id] for check_id in failing(found))
    model_type = json.loads((target / "config.json").read_text())["text_config"]["model_type"]
    assert model_type in types.found and "speculative.py:689" in types.evidence and "seconds after its start" in types.effect
    assert "vllm 0.18.0 or later" in types.fix and f"gate lift --model-type {model_type}" in types.fix
    assert "image_token and target_interface would still fail" in types.fix
    assert "image_token_index" in image.title and "eagle.py:" in image.evidence and "after all weights" in image.effect
    assert image.fix == "vllm 0.18.0 or later"
    assert "KimiK25ForConditionalGeneration" in interface.title and "after all weights" in interface.effect
    assert "vllm 0.18.0 or later, or sglang 0.5.10 or later" in interface.fix


@pytest.mark.parametrize("version", [version for version in _VLLM if Version(version) >= Version("0.18.0")])
def test_those_gates_pass_from_0_18_on(target: Path, version: str) -> None:
    found = findings("vllm", version, target, "drafter-llama")
    assert {finding.verdict for finding in found.values()} == {"pass"}, found


@pytest.mark.parametrize("version", [version for version in _VLLM if Version(version) < Version("0.18.0")])
def test_no_version_before_serves_it(target: Path, version: str) -> None:
    assert failing(findings("vllm", version, target, "drafter-llama"))[0] == "target_types"


@pytest.mark.parametrize("version", _SGLANG)
def test_sglang_serves_it_from_0_5_10_on(target: Path, version: str) -> None:
    found = findings("sglang", version, target, "drafter-llama")
    expected = [] if Version(version) >= Version("0.5.10") else ["target_interface"]
    assert failing(found) == expected
    assert not expected or "sglang 0.5.10 or later, or vllm 0.18.0 or later" in found["target_interface"].fix


def test_the_mla_drafter_has_obstacles_of_its_own(target: Path) -> None:
    old = findings("vllm", "0.16.0", target, "drafter-mla")
    assert failing(old) == ["target_types", "drafter_architecture", "image_token", "target_interface"]
    own = old["drafter_architecture"]
    assert 'knows a config of type "kimi_k2"' in own.title and "no drafter of this architecture" in own.title
    assert own.fix == "vllm 0.18.0 or later, or sglang 0.5.12 or later"
    assert failing(findings("vllm", "0.18.0", target, "drafter-mla")) == []
    between = findings("sglang", "0.5.11", target, "drafter-mla")
    assert failing(between) == ["drafter_architecture"]
    assert "sglang 0.5.12 or later" in between["drafter_architecture"].fix
    assert failing(findings("sglang", "0.5.12", target, "drafter-mla")) == []


@pytest.mark.parametrize(("model_type", "fails"), [("deepseek_v3", True), ("deepseek_v2", False), ("kimi_k2", False)])
def test_an_mla_drafter_that_vllm_takes_for_an_mtp_model(tmp_path: Path, model_type: str, fails: bool) -> None:
    config = json.loads((_FIXTURES / "drafter-mla" / "config.json").read_text()) | {"model_type": model_type}
    facts = facts_of_version("vllm", "0.32.0")
    found = {finding.id: finding for finding in preflight(_FIXTURES / "kimi-k2.5", config, facts).findings}["drafter_architecture"]
    assert (found.verdict == "fail") == fails
    assert not fails or ("Eagle3DeepSeekMTPModel" in found.title and "deepseek_v2" in found.fix)


def test_lifting_the_list_is_enough_where_nothing_else_is_in_the_way(tmp_path: Path) -> None:
    """A Llama of another name: its class has the interface, and takes no images."""
    target: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "mine",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 12,
        "vocab_size": 163840,
    }
    (tmp_path / "config.json").write_text(json.dumps(target))
    found = findings("vllm", "0.16.0", tmp_path, "drafter-llama")
    assert failing(found) == ["target_types"]
    assert "and the gates behind it pass" in found["target_types"].fix and "vllm 0.22.0 or later" in found["target_types"].fix
