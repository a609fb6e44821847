"""The checks that look at configs and at the engine's facts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.engines.facts import EngineFacts, Listed
from outrider.engines.known import facts_of_version
from preflight.folders import DRAFTER, LISTED, REFERENCE, TARGET, VLLM, finding_of, write_drafter, write_target


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target")


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return write_drafter(tmp_path / "drafter")


def nested(model_type: str) -> dict[str, Any]:
    """A vision model around a language model of that type."""
    return {
        "architectures": ["LookingForConditionalGeneration"],
        "model_type": "looking_llama",
        "text_config": TARGET | {"model_type": model_type},
    }


@pytest.mark.parametrize(
    ("config", "facts", "verdict"),
    [
        (TARGET, LISTED, "pass"),
        (TARGET | {"model_type": "qwen3_moe"}, LISTED, "pass"),  # a name of the list is part of it
        (TARGET | {"model_type": "kimi_k2"}, LISTED, "fail"),
        (nested("qwen2"), LISTED, "pass"),
        (nested("kimi_k2"), LISTED, "fail"),  # the wrapper's own type does not count
        (TARGET | {"model_type": ["llama"]}, LISTED, "unknown"),
        (TARGET | {"model_type": "kimi_k2"}, VLLM, "pass"),  # this version has no list
        (TARGET, replace(VLLM, target_types=Listed((), "no _verify_args")), "unknown"),
    ],
)
def test_target_types(tmp_path: Path, drafter: Path, config: dict[str, Any], facts: EngineFacts, verdict: str) -> None:
    found = finding_of("target_types", write_target(tmp_path / "target", config), drafter, facts)
    assert found.verdict == verdict
    if verdict == "fail":
        assert '"kimi_k2"' in found.found and found.evidence == "vllm/config/speculative.py:689" and "gate lift" in found.fix


@pytest.mark.parametrize(
    ("architectures", "facts", "verdict"),
    [
        (["LlamaForCausalLM"], VLLM, "pass"),
        (["OlderForCausalLM"], VLLM, "fail"),
        (["NewForCausalLM", "LlamaForCausalLM"], VLLM, "pass"),  # the first that the engine knows
        (["NewForCausalLM"], VLLM, "unknown"),  # the general class may serve it, and has the interface
        (["NewForCausalLM"], replace(VLLM, interface_classes=frozenset({"LlamaForCausalLM"})), "fail"),
        (["NewForCausalLM"], replace(VLLM, targets={"LlamaForCausalLM": "LlamaForCausalLM"}), "fail"),
        (["NewForCausalLM"], replace(VLLM, targets={"A": "A"}, interface_evidence="not told by the source: NewForCausalLM"), "unknown"),
        (None, VLLM, "unknown"),
        (["LlamaForCausalLM"], replace(VLLM, interface_classes=frozenset(), interface_evidence="no class SupportsEagle3"), "unknown"),
        (["AnyForCausalLM"], REFERENCE, "pass"),  # by model_type, no interface needed
    ],
)
def test_target_interface(tmp_path: Path, drafter: Path, architectures: Any, facts: EngineFacts, verdict: str) -> None:
    folder = write_target(tmp_path / "target", TARGET | {"architectures": architectures})
    assert finding_of("target_interface", folder, drafter, facts).verdict == verdict


@pytest.mark.parametrize(
    ("method", "facts", "verdict"),
    [
        ("eagle3", VLLM, "fail"),
        ("mtp", VLLM, "pass"),  # takes the last layer's states, as every model has them
        ("dflash", VLLM, "fail"),
        ("dflash", replace(VLLM, engine="sglang"), "unknown"),
    ],
)
def test_target_interface_of_a_method(tmp_path: Path, drafter: Path, method: str, facts: EngineFacts, verdict: str) -> None:
    folder = write_target(tmp_path / "target", TARGET | {"architectures": ["OlderForCausalLM"]})
    assert finding_of("target_interface", folder, drafter, facts, method=method).verdict == verdict


def test_a_target_that_is_served_by_the_general_class(target: Path, drafter: Path) -> None:
    general = ["--model-impl", "transformers"]
    assert finding_of("target_interface", target, drafter, VLLM, general).verdict == "unknown"
    older = replace(VLLM, interface_classes=frozenset({"LlamaForCausalLM"}))
    assert finding_of("target_interface", target, drafter, older, general).verdict == "fail"
    assert finding_of("target_interface", target, drafter, older).verdict == "pass"


def test_a_drafter_that_wants_no_aux_states(tmp_path: Path) -> None:
    folder = write_target(tmp_path / "target", TARGET | {"architectures": ["OlderForCausalLM"]})
    drafter = write_drafter(tmp_path / "drafter", DRAFTER | {"eagle_config": {"use_aux_hidden_state": False}})
    assert finding_of("target_interface", folder, drafter).verdict == "unknown"


def test_a_list_that_is_for_another_method(tmp_path: Path, drafter: Path) -> None:
    folder = write_target(tmp_path / "target", TARGET | {"model_type": "kimi_k2"})
    assert finding_of("target_types", folder, drafter, LISTED).verdict == "fail"
    assert finding_of("target_types", folder, drafter, LISTED, method="mtp").verdict == "pass"


@pytest.mark.parametrize(("version", "is_there"), [("0.33.0", True), ("0.12.0", False)])
def test_the_general_class_is_a_way_where_it_has_the_interface(tmp_path: Path, drafter: Path, version: str, is_there: bool) -> None:
    folder = write_target(tmp_path / "target", TARGET | {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"})
    found = finding_of("target_interface", folder, drafter, facts_of_version("vllm", version))
    assert found.verdict == "fail" and ("--model-impl transformers" in found.fix) == is_there


def test_a_target_without_a_class_of_its_own_in_any_version(tmp_path: Path, drafter: Path) -> None:
    """Later versions may serve it by the general class."""
    folder = write_target(tmp_path / "target", TARGET | {"architectures": ["FooForCausalLM"]})
    found = finding_of("target_interface", folder, drafter, facts_of_version("vllm", "0.12.0"))
    assert found.verdict == "fail" and "its general class TransformersForCausalLM" in found.title
    assert found.fix.startswith("vllm 0.13.0 or later, by TransformersForCausalLM")


def test_target_interface_of_a_family_that_our_engine_does_not_know(tmp_path: Path, drafter: Path) -> None:
    folder = write_target(tmp_path / "target", TARGET | {"model_type": "mamba"})
    found = finding_of("target_interface", folder, drafter, REFERENCE)
    assert (found.verdict, found.expected) == ("unknown", "one of llama")


@pytest.mark.parametrize(
    ("changes", "facts", "verdict"),
    [
        ({}, VLLM, "pass"),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"}, VLLM, "pass"),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v3"}, VLLM, "fail"),  # becomes an MTP model
        ({"model_type": "deepseek_v3"}, REFERENCE, "pass"),  # reads the config by itself
        ({"architectures": ["FooForCausalLMEagle3"]}, VLLM, "fail"),
        ({"architectures": []}, VLLM, "fail"),
        ({"architectures": "LlamaForCausalLMEagle3"}, VLLM, "fail"),
        ({}, replace(VLLM, drafters={}, registered={}, drafters_evidence="registry.py cannot be read"), "unknown"),
    ],
)
def test_drafter_architecture(tmp_path: Path, target: Path, changes: dict[str, Any], facts: EngineFacts, verdict: str) -> None:
    folder = write_drafter(tmp_path / "drafter", DRAFTER | changes)
    assert finding_of("drafter_architecture", target, folder, facts).verdict == verdict


def test_tokenizer_sound(target: Path, drafter: Path) -> None:
    assert finding_of("tokenizer", target, drafter).verdict == "pass"


def test_tokenizer_files_missing(target: Path, drafter: Path) -> None:
    (target / "tokenizer.json").rename(target / "vocab.json")
    assert finding_of("tokenizer", target, drafter).verdict == "fail"
    (target / "merges.txt").write_text("")  # with vocab.json, a tokenizer
    assert finding_of("tokenizer", target, drafter).verdict == "pass"
    (target / "merges.txt").unlink()
    (target / "model.safetensors").unlink()  # only a config: to plan with
    assert finding_of("tokenizer", target, drafter).verdict == "unknown"


def test_tokenizer_template(target: Path, drafter: Path) -> None:
    (target / "chat_template.jinja").unlink()
    assert "no chat template" in finding_of("tokenizer", target, drafter).title
    (target / "tokenizer_config.json").write_text(json.dumps({"chat_template": ""}))
    assert finding_of("tokenizer", target, drafter).verdict == "warn"
    (target / "tokenizer_config.json").write_text("{")
    assert finding_of("tokenizer", target, drafter).verdict == "unknown"
    (target / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert finding_of("tokenizer", target, drafter).verdict == "pass"


@pytest.mark.parametrize(
    ("changes", "verdict", "says"),
    [
        ({"vocab_size": 41}, "fail", "41 tokens, the target's has 40"),
        ({"vocab_size": None}, "unknown", "does not say how large"),
        ({"eos_token_id": 7}, "warn", "eos_token_id"),
        ({"eos_token_id": [7, 1]}, "pass", ""),
        ({"eos_token_id": None, "bos_token_id": None}, "pass", ""),
        ({"bos_token_id": 7}, "warn", "bos_token_id"),
    ],
)
def test_tokenizer_against_the_drafter(tmp_path: Path, target: Path, changes: dict[str, Any], verdict: str, says: str) -> None:
    found = finding_of("tokenizer", target, write_drafter(tmp_path / "drafter", DRAFTER | changes))
    assert found.verdict == verdict
    assert says in found.title


def test_the_generation_config_may_name_more_ends(tmp_path: Path, target: Path) -> None:
    folder = write_drafter(tmp_path / "drafter", DRAFTER | {"eos_token_id": 7})
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 7]}))
    assert finding_of("tokenizer", target, folder).verdict == "pass"
    (target / "generation_config.json").write_text("no JSON")
    assert finding_of("tokenizer", target, folder).verdict == "unknown"
