"""The check of aux layers: what the drafter's folder says, and what each engine makes of it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.core.errors import InputError
from outrider.engines.facts import EngineFacts, LayerKey
from preflight.folders import DRAFTER, REFERENCE, TARGET, VLLM, L, drafter_tensors, finding_of, write_drafter, write_target, zeros


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target")


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return write_drafter(tmp_path / "drafter")


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


_TOP, _NESTED = LayerKey(_KEY, 0), LayerKey(f"eagle_config.{_KEY}", 0)


def reading(*keys: LayerKey, facts: EngineFacts = VLLM, **others: Any) -> EngineFacts:
    """An engine that looks for aux layers in these places."""
    runner = next(iter(facts.runners))
    return replace(facts, runners={runner: replace(facts.runners[runner], layer_keys=keys)}, **others)


V2 = reading(_TOP)
NONE = reading()
SGLANG = reading(LayerKey(f"eagle_config.{_KEY}", 1), engine="sglang", version="0.5.23")
BY_CLASS = replace(SGLANG, layer_shifts={"LlamaForCausalLM": "plus_one_if_first_is_1"})
UNLESS_LAST = replace(SGLANG, layer_shifts={"LlamaForCausalLM": "plus_one_unless_largest_is_L"})


def config_of(top: list[int] | None, nested: list[int] | None) -> dict[str, Any]:
    """A drafter that names its layers in these places."""
    config = without(DRAFTER, _KEY, "eagle_config") | ({} if top is None else {_KEY: top})
    return config | ({} if nested is None else {"eagle_config": {_KEY: nested}})


@pytest.mark.parametrize(
    ("top", "nested", "facts", "verdict", "says"),
    [
        ([2, 6, 9], None, V2, "pass", "[2, 6, 9]"),
        ([3, 6, 10], None, V2, "pass", "[3, 6, 10]"),
        ([3, 6, 10], None, NONE, "fail", "where vllm 0.32.0 does not look"),  # the default is captured
        ([2, 6, 9], None, NONE, "pass", "[2, 6, 9]"),  # which is the same here
        (None, [2, 5, 9], V2, "warn", "where vllm 0.32.0 does not look"),
        (None, [1, 5, 8], V2, "pass", "[2, 6, 9]"),  # the default, which is what is meant
        (None, [1, 5, 8], VLLM, "warn", "takes them for layers [1, 5, 8]"),  # read literally: one too shallow
        (None, [1, 5, 8], SGLANG, "pass", "[2, 6, 9]"),
        (None, [2, 5, 9], SGLANG, "warn", "takes them for layers [3, 6, 10]"),  # SGLang's own classes differ
        ([3, 6, 10], [2, 5, 9], SGLANG, "pass", "[3, 6, 10]"),
        ([2, 5, 9], [2, 5, 9], SGLANG, "fail", "for layers [3, 6, 10], the drafter is for [2, 5, 9]"),
        ([2, 5, 9], [2, 5, 9], BY_CLASS, "pass", "[2, 5, 9]"),
        ([3, 6, 10], [2, 5, 9], BY_CLASS, "fail", "for layers [2, 5, 9], the drafter is for [3, 6, 10]"),
        ([2, 6, 9], [1, 5, 8], BY_CLASS, "pass", "[2, 6, 9]"),
        ([3, 6, L], [3, 6, L], UNLESS_LAST, "pass", f"[3, 6, {L}]"),
        ([3, 6, L - 1], [2, 5, L - 2], UNLESS_LAST, "pass", f"[3, 6, {L - 1}]"),
        ([3, 6, 10], None, SGLANG, "fail", "where sglang 0.5.23 does not look"),
        ([9, 6, 2], None, VLLM, "warn", "not in the order"),
        (None, None, SGLANG, "warn", "names no aux layers"),
        ([2, 6, 9], None, replace(VLLM, runners={}), "unknown", "could not be read"),
        (None, [1, 5, 8], replace(SGLANG, layer_shifts={"LlamaForCausalLM": "minus_one"}), "unknown", "minus_one"),
        (None, None, replace(VLLM, default_layers=("2", "mid", "L - 3")), "unknown", "mid"),
    ],
)
def test_what_the_engine_makes_of_them(
    tmp_path: Path, target: Path, top: list[int] | None, nested: list[int] | None, facts: EngineFacts, verdict: str, says: str
) -> None:
    found = finding_of("aux_layers", target, write_drafter(tmp_path / "drafter", config_of(top, nested)), facts)
    assert (found.verdict, says in found.title) == (verdict, True), found


def test_the_default_layers_of_a_shallow_target(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", TARGET | {"num_hidden_layers": 6})
    found = finding_of("aux_layers", target, config_of(None, None))
    assert found.verdict == "fail" and "[2, 3, 3] are not all different" in found.title
    assert finding_of("aux_layers", target, config_of([1, 3, 5], None)).verdict == "pass"


def test_a_version_that_makes_fc_for_three_states_whatever_the_config_says(tmp_path: Path, target: Path) -> None:
    tensors = drafter_tensors() | {"fc.weight": zeros("F32", 8, 32)}
    folder = write_drafter(tmp_path / "drafter", _FOUR | {"eagle_config": {}, "num_aux_hidden_states": 4}, tensors)
    assert finding_of("aux_layers", target, folder).verdict == "pass"
    old = finding_of("aux_layers", target, folder, replace(VLLM, version="0.21.0", drafter_keys=("attention_bias",)))
    assert old.verdict == "fail" and "makes fc for 3" in old.title


def test_layers_of_another_algorithm_are_not_judged(target: Path) -> None:
    found = finding_of("aux_layers", target, DRAFTER | {"architectures": ["DFlashDraftModel"]})
    assert found.verdict == "unknown" and "dflash" in found.title
