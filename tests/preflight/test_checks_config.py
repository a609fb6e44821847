"""The checks that look at configs and at the engine's facts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.core.errors import InputError
from outrider.engines.facts import EngineFacts, Listed
from preflight.folders import DRAFTER, LISTED, REFERENCE, TARGET, VLLM, L, drafter_tensors, finding_of, write_drafter, write_target, zeros


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
        assert '"kimi_k2"' in found.found and found.evidence == "vllm/config/speculative.py:689" and "0.22.0" in found.fix


@pytest.mark.parametrize(
    ("architectures", "facts", "verdict"),
    [
        (["LlamaForCausalLM"], VLLM, "pass"),
        (["OlderForCausalLM"], VLLM, "fail"),
        (["NewForCausalLM", "LlamaForCausalLM"], VLLM, "pass"),  # the first that the engine knows
        (["NewForCausalLM"], VLLM, "unknown"),
        (None, VLLM, "unknown"),
        (["LlamaForCausalLM"], replace(VLLM, interface_classes=frozenset(), interface_evidence="no class SupportsEagle3"), "unknown"),
        (["AnyForCausalLM"], REFERENCE, "pass"),  # by model_type, no interface needed
    ],
)
def test_target_interface(tmp_path: Path, drafter: Path, architectures: Any, facts: EngineFacts, verdict: str) -> None:
    folder = write_target(tmp_path / "target", TARGET | {"architectures": architectures})
    assert finding_of("target_interface", folder, drafter, facts).verdict == verdict


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
        ({"model_type": "deepseek_v3"}, REFERENCE, "pass"),
        ({"architectures": ["FooForCausalLMEagle3"]}, VLLM, "fail"),
        ({"architectures": []}, VLLM, "fail"),
        ({"architectures": "LlamaForCausalLMEagle3"}, VLLM, "fail"),
        ({"speculators_model_type": "eagle3"}, VLLM, "unknown"),
        ({}, replace(VLLM, drafters={}, drafters_evidence="registry.py cannot be read"), "unknown"),
    ],
)
def test_drafter_architecture(tmp_path: Path, target: Path, changes: dict[str, Any], facts: EngineFacts, verdict: str) -> None:
    folder = write_drafter(tmp_path / "drafter", DRAFTER | changes)
    assert finding_of("drafter_architecture", target, folder, facts).verdict == verdict


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


_KEY = "eagle_aux_hidden_state_layer_ids"
_SILENT = without(DRAFTER, _KEY, "eagle_config")
_FOUR = DRAFTER | {_KEY: [2, 4, 6, 9]}


@pytest.mark.parametrize(
    ("config", "facts", "verdict", "says"),
    [
        (DRAFTER, VLLM, "pass", "[2, 6, 9]"),
        (without(DRAFTER, "eagle_config"), VLLM, "pass", "[2, 6, 9]"),
        (DRAFTER | {_KEY: [0, 6, L], "eagle_config": {}}, VLLM, "pass", f"[0, 6, {L}]"),
        (DRAFTER | {_KEY: [2, 6, L + 1]}, VLLM, "fail", f"[{L + 1}] are outside"),
        (DRAFTER | {_KEY: [-1, 6, 9]}, VLLM, "fail", "[-1] are outside"),
        (DRAFTER | {_KEY: [2, 6, 6]}, VLLM, "fail", "not all different"),
        (DRAFTER | {_KEY: [2, 6, 6], "eagle_config": {}}, REFERENCE, "warn", "not all different"),
        (DRAFTER | {_KEY: "2, 6, 9"}, VLLM, "fail", "no list of layers"),
        (DRAFTER | {_KEY: [2, 6.5, 9]}, VLLM, "fail", "no list of layers"),
        (DRAFTER | {_KEY: [-(10**4300 - 1), 6, 9]}, VLLM, "fail", "no list of layers"),  # too long a number to be written
        (_SILENT, VLLM, "warn", "names no aux layers"),
        (_SILENT, REFERENCE, "fail", "names no aux layers"),
        (without(DRAFTER, _KEY), VLLM, "warn", "only eagle_config names aux layers: [1, 5, 8]"),
        (without(DRAFTER, _KEY), REFERENCE, "pass", "[2, 6, 9]"),
        (DRAFTER | {"eagle_config": {_KEY: [2, 6, 9]}}, VLLM, "pass", "[2, 6, 9]"),  # some targets of SGLang take them literally
        (DRAFTER | {"eagle_config": {_KEY: [0, 5, 8]}}, VLLM, "warn", "eagle_config names layers [0, 5, 8]"),
        (DRAFTER | {"eagle_config": {_KEY: [1, 5]}}, VLLM, "fail", "makes fc for 2"),
        (_FOUR | {"eagle_config": {}}, VLLM, "fail", "fc takes [24] numbers, 4 layers of the target give 32"),
        (DRAFTER | {"hidden_size": 16}, VLLM, "fail", "width 16"),
        (DRAFTER | {"hidden_size": 16, "target_hidden_size": 8}, VLLM, "pass", "[2, 6, 9]"),
    ],
)
def test_aux_layers(tmp_path: Path, target: Path, config: dict[str, Any], facts: EngineFacts, verdict: str, says: str) -> None:
    found = finding_of("aux_layers", target, write_drafter(tmp_path / "drafter", config), facts)
    assert found.verdict == verdict
    assert says in found.title


def test_every_fault_of_the_layers_is_told(tmp_path: Path, target: Path) -> None:
    folder = write_drafter(tmp_path / "drafter", DRAFTER | {_KEY: [2, 2, L + 1], "hidden_size": 16})
    title = finding_of("aux_layers", target, folder).title
    assert "outside" in title and "not all different" in title and "width 16" in title


def test_four_aux_layers_that_the_engine_can_count(tmp_path: Path, target: Path) -> None:
    tensors = drafter_tensors() | {"fc.weight": zeros("F32", 8, 32)}
    bare = write_drafter(tmp_path / "bare", _FOUR | {"eagle_config": {}}, tensors)
    assert "makes fc for 3" in finding_of("aux_layers", target, bare).title
    assert finding_of("aux_layers", target, bare, REFERENCE).verdict == "pass"
    counted = write_drafter(tmp_path / "counted", _FOUR | {"eagle_config": {_KEY: [1, 3, 5, 8]}}, tensors)
    assert finding_of("aux_layers", target, counted).verdict == "pass"


def test_aux_layers_of_a_target_that_does_not_say_how_deep_it_is(tmp_path: Path, drafter: Path) -> None:
    target = write_target(tmp_path / "target", without(TARGET, "num_hidden_layers"))
    assert finding_of("aux_layers", target, drafter).verdict == "unknown"


@pytest.mark.parametrize(
    ("config", "trained", "verdict"),
    [
        (DRAFTER, [2, 6, 9], "pass"),
        (DRAFTER, [1, 6, 9], "fail"),
        (_SILENT, [2, 6, 9], "pass"),  # what the engine takes by itself: 2, L / 2, L - 3
        (_SILENT, [1, 6, 9], "fail"),
    ],
)
def test_aux_layers_against_the_training_record(
    tmp_path: Path, target: Path, config: dict[str, Any], trained: list[int], verdict: str
) -> None:
    folder = write_drafter(tmp_path / "drafter", config)
    (folder / "outrider.json").write_text(json.dumps({"aux_layers": trained}))
    found = finding_of("aux_layers", target, folder)
    assert found.verdict == verdict
    assert "outrider.json" in found.evidence


def test_a_damaged_training_record_is_an_input_error(target: Path, drafter: Path) -> None:
    (drafter / "outrider.json").write_text("[")
    with pytest.raises(InputError, match="training record is not valid JSON"):
        finding_of("aux_layers", target, drafter)


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
