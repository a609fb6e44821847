"""The checks that look at the drafter's tensors: headers, and the bytes of the vocabulary map."""

from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.engines.facts import EngineFacts
from preflight.folders import (
    DRAFTER,
    REFERENCE,
    TARGET,
    VLLM,
    H,
    Tensors,
    U,
    V,
    d2t_of,
    draft_ids,
    drafter_tensors,
    finding_of,
    t2d_of,
    write_drafter,
    write_target,
    zeros,
)

WHOLE = DRAFTER | {"draft_vocab_size": V}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target")


def renamed(prefix: str, other: str) -> Tensors:
    return {other + name.removeprefix(prefix) if name.startswith(prefix) else name: tensor for name, tensor in drafter_tensors().items()}


def lacking(*names: str) -> Tensors:
    return {name: tensor for name, tensor in drafter_tensors().items() if name not in names}


def whole_tensors() -> Tensors:
    return lacking("d2t", "t2d") | {"lm_head.weight": zeros("F32", V, H)}


MASKED = drafter_tensors() | {"mask_hidden": zeros("F32", 1, 3 * H)}
PARALLEL = ("--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 3, "parallel_drafting": true}')


@pytest.mark.parametrize(
    ("tensors", "facts", "arguments", "verdict"),
    [
        (MASKED, VLLM, PARALLEL, "pass"),
        (MASKED, VLLM, (), "pass"),  # left out with a warning
        (drafter_tensors(), VLLM, PARALLEL, "fail"),
        (MASKED, replace(VLLM, version="0.15.1", speculative_keys=("method",)), (), "fail"),
        (MASKED, REFERENCE, (), "fail"),
    ],
)
def test_the_mask_of_a_drafter_that_drafts_in_parallel(
    tmp_path: Path, target: Path, tensors: Tensors, facts: EngineFacts, arguments: tuple[str, ...], verdict: str
) -> None:
    folder = write_drafter(tmp_path / "drafter", DRAFTER | {"ptd_token_id": 0}, tensors)
    found = finding_of("tensor_names", target, folder, facts, arguments)
    assert found.verdict == verdict
    assert "mask_hidden" not in tensors or verdict == "pass" or "mask_hidden" in found.found
    assert "mask_hidden" in tensors or found.effect == "the start ends while the drafter is loaded: parallel drafting needs mask_hidden"


@pytest.mark.parametrize(
    ("config", "tensors", "facts", "verdict", "says"),
    [
        (DRAFTER, drafter_tensors(), VLLM, "pass", "all 13"),
        (DRAFTER, renamed("midlayer.", "layers.0."), VLLM, "pass", "all 13"),
        (DRAFTER, drafter_tensors() | {"embed_tokens.weight": zeros("F32", V, H)}, VLLM, "pass", "all 13"),
        (DRAFTER, lacking("fc.weight"), VLLM, "fail", "1 tensors are missing and 0"),
        (DRAFTER, lacking("fc.weight"), REFERENCE, "fail", "1 tensors are missing and 0"),
        (DRAFTER, drafter_tensors() | {"foo.weight": zeros("F32", 1)}, VLLM, "fail", "0 tensors are missing and 1"),
        (DRAFTER, renamed("midlayer.", "layer."), VLLM, "fail", "10 tensors are missing and 10"),
        (DRAFTER, renamed("midlayer.", "model.midlayer."), VLLM, "fail", "10 tensors are missing and 10"),
        (DRAFTER, renamed("midlayer.", "model.midlayer."), REFERENCE, "pass", "all 13"),
        (DRAFTER, lacking("lm_head.weight"), VLLM, "fail", "1 tensors are missing"),  # the target's head has other rows
        (WHOLE, lacking("d2t", "t2d", "lm_head.weight"), VLLM, "warn", "no lm_head of its own"),
        (WHOLE, lacking("d2t", "t2d", "lm_head.weight"), REFERENCE, "fail", "1 tensors are missing"),
        (DRAFTER | {"hidden_size": 16, "target_hidden_size": H}, drafter_tensors(), VLLM, "fail", "1 tensors are missing"),
        (DRAFTER | {"attention_bias": True}, drafter_tensors(), replace(VLLM, drafter_keys=()), "unknown", "attention_bias"),
        (DRAFTER | {"architectures": ["Eagle3Qwen3ForCausalLM"]}, drafter_tensors(), VLLM, "unknown", "Eagle3Qwen3ForCausalLM"),
        (DRAFTER | {"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, drafter_tensors(), VLLM, "unknown", "lacks q_lora_rank"),
        (DRAFTER | {"speculators_model_type": "eagle3"}, drafter_tensors(), VLLM, "unknown", "`speculators`"),
        (DRAFTER | {"quantization_config": {"bits": 4}}, drafter_tensors(), VLLM, "unknown", "quantization_config"),
        (DRAFTER | {"num_hidden_layers": "two"}, drafter_tensors(), VLLM, "unknown", "num_hidden_layers"),
        (DRAFTER, drafter_tensors() | {"midlayer.self_attn.rotary_emb.inv_freq": zeros("F32", 2)}, VLLM, "pass", "all 13"),
        (DRAFTER, drafter_tensors() | {"midlayer.self_attn.rotary_emb.inv_freq": zeros("F32", 2)}, REFERENCE, "fail", "and 1"),
        (DRAFTER | {"intermediate_size": "wide"}, drafter_tensors(), VLLM, "unknown", "wrong value"),
        (DRAFTER | {"hidden_size": 10**20}, drafter_tensors(), VLLM, "unknown", "beyond reason"),
    ],
)
def test_tensor_names(
    tmp_path: Path, target: Path, config: dict[str, Any], tensors: Tensors, facts: EngineFacts, verdict: str, says: str
) -> None:
    found = finding_of("tensor_names", target, write_drafter(tmp_path / "drafter", config, tensors), facts)
    assert found.verdict == verdict
    assert says in found.title


def test_a_missing_tensor_is_silent_in_vllm(tmp_path: Path, target: Path) -> None:
    folder = write_drafter(tmp_path / "drafter", tensors=lacking("midlayer.self_attn.q_proj.weight"))
    found = finding_of("tensor_names", target, folder)
    assert found.expected == 'missing: ["midlayer.self_attn.q_proj.weight"]'
    assert "without a word" in found.effect


def test_a_prefix_is_told_as_such(tmp_path: Path, target: Path) -> None:
    folder = write_drafter(tmp_path / "drafter", tensors=renamed("midlayer.", "model.midlayer."))
    assert finding_of("tensor_names", target, folder).fix.startswith("take `model.` off")


@pytest.mark.parametrize("check_id", ["tensor_names", "tensor_shapes", "vocabulary_map"])
def test_without_weights_nothing_is_claimed(tmp_path: Path, target: Path, check_id: str) -> None:
    folder = write_drafter(tmp_path / "drafter")
    (folder / "model.safetensors").unlink()
    found = finding_of(check_id, target, folder)
    assert found.verdict == "unknown" and "no safetensors weights" in found.evidence
    planned = finding_of(check_id, target, DRAFTER)
    assert planned.verdict == "unknown" and "only planned" in planned.evidence


@pytest.mark.parametrize(
    ("config", "tensors", "verdict", "says"),
    [
        (DRAFTER, drafter_tensors(), "pass", "13 tensors"),
        (DRAFTER, drafter_tensors() | {"embed_tokens.weight": zeros("F32", V, H)}, "pass", "14 tensors"),
        (DRAFTER, drafter_tensors() | {"embed_tokens.weight": zeros("F32", V - 1, H)}, "fail", "1 tensors"),
        (DRAFTER, drafter_tensors() | {"midlayer.mlp.up_proj.weight": zeros("F32", H, 16)}, "fail", "1 tensors"),
        (DRAFTER | {"intermediate_size": 32}, drafter_tensors(), "fail", "3 tensors"),
        (DRAFTER | {"draft_vocab_size": U + 1}, drafter_tensors(), "fail", "1 tensors"),
        (DRAFTER, {"foo": zeros("F32", 1)}, "unknown", "none of the tensors"),
    ],
)
def test_tensor_shapes(tmp_path: Path, target: Path, config: dict[str, Any], tensors: Tensors, verdict: str, says: str) -> None:
    found = finding_of("tensor_shapes", target, write_drafter(tmp_path / "drafter", config, tensors))
    assert found.verdict == verdict
    assert says in found.title


def test_shapes_are_told_side_by_side(tmp_path: Path, target: Path) -> None:
    folder = write_drafter(tmp_path / "drafter", tensors=drafter_tensors() | {"fc.weight": zeros("F32", H, 2 * H)})
    found = finding_of("tensor_shapes", target, folder)
    assert (found.found, found.expected) == ('"fc.weight" [8, 16]', '"fc.weight" [8, 24]')


def test_shapes_of_a_drafter_that_names_no_layers_are_those_of_three(tmp_path: Path, target: Path) -> None:
    silent = {key: value for key, value in DRAFTER.items() if key not in ("eagle_aux_hidden_state_layer_ids", "eagle_config")}
    assert finding_of("tensor_shapes", target, write_drafter(tmp_path / "drafter", silent)).verdict == "pass"


def with_map(ids: list[int], **others: tuple[str, tuple[int, ...], bytes]) -> Tensors:
    return lacking("d2t", "t2d") | {"d2t": d2t_of(ids)} | others


SWAPPED = [draft_ids()[1], draft_ids()[0], *draft_ids()[2:]]
ABSOLUTE: tuple[str, tuple[int, ...], bytes] = ("I64", (U,), array("q", draft_ids()).tobytes())


@pytest.mark.parametrize(
    ("config", "tensors", "facts", "verdict", "says"),
    [
        (DRAFTER, drafter_tensors(), VLLM, "pass", "24 of the target's 40 tokens"),
        (DRAFTER, lacking("t2d"), VLLM, "pass", "24 of the target's 40 tokens"),
        (DRAFTER, lacking("d2t"), VLLM, "fail", "there is no d2t"),
        (DRAFTER, with_map([*draft_ids()[:-1], V]), VLLM, "fail", "outside the target's 40 tokens"),
        (DRAFTER, with_map([-1, *draft_ids()[1:]]), VLLM, "fail", "draft token 0 to -1"),
        (DRAFTER, lacking("d2t", "t2d") | {"d2t": ABSOLUTE}, VLLM, "fail", "seems to hold the target's ids themselves"),
        (DRAFTER, with_map([0, 0, *draft_ids()[2:]]), VLLM, "fail", "only 23 tokens"),
        (DRAFTER, with_map(SWAPPED), VLLM, "warn", "out of order"),
        (DRAFTER, with_map(SWAPPED), REFERENCE, "fail", "out of order"),
        (DRAFTER, with_map(draft_ids(), t2d=t2d_of(draft_ids()[1:])), VLLM, "warn", "name different tokens"),
        (DRAFTER, with_map(draft_ids(), t2d=t2d_of(draft_ids(), V - 1)), REFERENCE, "fail", "name different tokens"),
        (DRAFTER, with_map(draft_ids()[:-1]), VLLM, "fail", "I64 [24]"),
        (DRAFTER, lacking("d2t") | {"d2t": zeros("F32", U)}, VLLM, "fail", '"F32" [24]'),
        (DRAFTER | {"draft_vocab_size": U - 1}, drafter_tensors(), VLLM, "fail", "lm_head is [24, 8]"),
        (DRAFTER | {"draft_vocab_size": V + 1}, drafter_tensors(), VLLM, "fail", "41 tokens, the whole one 40"),
        (DRAFTER | {"draft_vocab_size": "many"}, drafter_tensors(), VLLM, "unknown", "does not say"),
        (WHOLE, whole_tensors(), VLLM, "pass", "needs no map"),
        (DRAFTER | {"draft_vocab_size": None}, whole_tensors(), VLLM, "pass", "needs no map"),
        (WHOLE, whole_tensors() | {"d2t": d2t_of(list(range(V)))}, VLLM, "fail", "there is a d2t although"),
        (WHOLE, whole_tensors() | {"d2t": d2t_of(list(range(V)))}, replace(VLLM, refuses_full_d2t=False), "pass", "40 of the target's 40"),
        (WHOLE, whole_tensors() | {"d2t": d2t_of([1, 0, *range(2, V)])}, REFERENCE, "fail", "out of order"),
    ],
)
def test_vocabulary_map(
    tmp_path: Path, target: Path, config: dict[str, Any], tensors: Tensors, facts: EngineFacts, verdict: str, says: str
) -> None:
    found = finding_of("vocabulary_map", target, write_drafter(tmp_path / "drafter", config, tensors), facts)
    assert found.verdict == verdict
    assert says in found.title


def test_the_fixtures_are_sound(target: Path, tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path / "drafter")
    for facts in (VLLM, REFERENCE):
        for check_id in ("tensor_names", "tensor_shapes", "vocabulary_map", "aux_layers", "tokenizer"):
            assert finding_of(check_id, target, drafter, facts).verdict == "pass"
    assert TARGET["vocab_size"] == V
