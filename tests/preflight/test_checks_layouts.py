"""Tensor names and shapes of drafters that are not the plain Llama layer, under the renaming of engines and versions."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.core.results import Finding
from outrider.engines.facts import EngineFacts
from preflight.folders import (
    DRAFTER,
    LOADING,
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

SGLANG = replace(
    VLLM,
    engine="sglang",
    version="0.5.12",
    runner=None,
    runners={"": replace(VLLM.runners["V1"], layer_keys=VLLM.runners["V1"].layer_keys[1:])},
    loading=replace(
        LOADING, reads_model_prefix=True, unexpected="silent", shares_head="null", embedding="target", needs_draft_vocab_size=True
    ),
    drafter_keys=("fc_norm", "norm_output", "num_aux_hidden_states", "use_aux_norm"),
)
SGLANG_OLD = replace(SGLANG, version="0.5.11", loading=replace(SGLANG.loading or LOADING, layer_names=("midlayer",), num_layers="one"))
VLLM_OLD = replace(VLLM, version="0.11.0", loading=replace(LOADING, num_layers="one"), drafter_keys=("norm_before_residual",))
MLA: dict[str, Any] = {key: value for key, value in DRAFTER.items() if key not in ("head_dim", "num_key_value_heads")} | {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "q_lora_rank": 6,
    "kv_lora_rank": 5,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 2,
    "v_head_dim": 3,
}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target")


def mla_tensors(prefix: str = "midlayer") -> Tensors:
    """2 heads; the attention takes the embedding beside the state."""
    attention = {
        "q_a_proj": (6, 2 * H),
        "q_a_layernorm": (6,),
        "q_b_proj": (2 * (4 + 2), 6),
        "kv_a_proj_with_mqa": (5 + 2, 2 * H),
        "kv_a_layernorm": (5,),
        "kv_b_proj": (2 * (4 + 3), 5),
        "o_proj": (H, 2 * 3),
    }
    kept = {name: tensor for name, tensor in drafter_tensors().items() if "self_attn" not in name}
    named = {f"{prefix}.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name: t for name, t in kept.items()}
    return named | {f"{prefix}.self_attn.{name}.weight": zeros("F32", *shape) for name, shape in attention.items()}


def second_layer() -> Tensors:
    """Like the first, with an attention that takes the state alone."""
    first = {name: tensor for name, tensor in drafter_tensors().items() if name.startswith("midlayer.")}
    narrow = {f"self_attn.{n}_proj.weight": zeros("F32", rows, H) for n, rows in (("q", 8), ("k", 4), ("v", 4))}
    return {f"layers.1.{name.removeprefix('midlayer.')}": t for name, t in first.items()} | {f"layers.1.{n}": t for n, t in narrow.items()}


def renamed(tensors: Tensors, old: str, new: str) -> Tensors:
    return {new + name.removeprefix(old) if name.startswith(old) else name: tensor for name, tensor in tensors.items()}


def lacking(tensors: Tensors, *names: str) -> Tensors:
    assert set(names) <= set(tensors)
    return {name: tensor for name, tensor in tensors.items() if name not in names}


def names_and_shapes(tmp_path: Path, target: Path, config: Mapping[str, Any], tensors: Tensors, facts: EngineFacts) -> list[Finding]:
    folder = write_drafter(tmp_path / "drafter", config, tensors)
    return [finding_of(check_id, target, folder, facts) for check_id in ("tensor_names", "tensor_shapes")]


DEEP = DRAFTER | {"num_hidden_layers": 2}
BIASED = DRAFTER | {"attention_bias": True}
QKV = {f"midlayer.self_attn.{n}_proj.bias": zeros("F32", rows) for n, rows in (("q", 8), ("k", 4), ("v", 4))}
O_BIAS = {"midlayer.self_attn.o_proj.bias": zeros("F32", H)}
MLP = {f"midlayer.mlp.{n}_proj.bias": zeros("F32", rows) for n, rows in (("gate", 16), ("up", 16), ("down", H))}
FC_NORMS = {f"fc_norm.{i}.weight": zeros("F32", H) for i in range(3)}
LEGACY = {f"aux_norm_{n}.weight": zeros("F32", H) for n in ("low", "mid", "high")}
INPUT_NORM = {"input_norm.weight": zeros("F32", 3 * H)}
PLAIN = drafter_tensors()


@pytest.mark.parametrize(
    ("config", "tensors", "facts"),
    [
        (MLA, mla_tensors(), VLLM),
        (MLA, mla_tensors("layers.0"), VLLM),
        (MLA, mla_tensors(), SGLANG),
        (MLA, mla_tensors("layers.0"), SGLANG_OLD),  # the class with MLA reads both in every version
        (MLA | {"fc_norm": True, "norm_output": True}, mla_tensors() | FC_NORMS, VLLM),
        (DRAFTER, renamed(PLAIN, "midlayer.", "layers.0."), SGLANG),
        (DRAFTER, renamed(PLAIN, "midlayer.", "model.midlayer."), SGLANG),
        (DEEP, PLAIN | second_layer(), VLLM),
        (DEEP, PLAIN | lacking(second_layer(), "layers.1.hidden_norm.weight"), VLLM),  # built, and not used there
        (DEEP, PLAIN | lacking(second_layer(), "layers.1.input_layernorm.weight"), SGLANG),
        (BIASED, PLAIN | QKV | O_BIAS, VLLM),
        (BIASED, PLAIN | O_BIAS, replace(VLLM_OLD, version="0.15.1")),
        (DRAFTER | {"mlp_bias": True}, PLAIN | MLP, VLLM),
        (DRAFTER | {"bias": True}, PLAIN | O_BIAS | {"fc.bias": zeros("F32", H)}, SGLANG),
        (DRAFTER | {"norm_before_fc": True}, PLAIN | INPUT_NORM, VLLM),
        (DRAFTER | {"fc_norm": True, "norm_output": True}, PLAIN | FC_NORMS, VLLM),
        (DRAFTER | {"use_aux_norm": True}, PLAIN | LEGACY, SGLANG),
        (DRAFTER | {"norm_output": True, "norm_before_residual": True}, PLAIN, VLLM),  # these bring no tensor
        (DRAFTER | {"num_aux_hidden_states": 2}, PLAIN | {"fc.weight": zeros("F32", H, 2 * H)}, VLLM),
    ],
)
def test_sound_layouts(tmp_path: Path, target: Path, config: dict[str, Any], tensors: Tensors, facts: EngineFacts) -> None:
    assert [found.verdict for found in names_and_shapes(tmp_path, target, config, tensors, facts)] == ["pass", "pass"]


@pytest.mark.parametrize(
    ("config", "tensors", "facts", "says"),
    [
        (MLA, PLAIN, VLLM, "6 tensors are missing and 3"),
        (MLA, lacking(mla_tensors(), "midlayer.self_attn.kv_b_proj.weight"), VLLM, "1 tensors are missing and 0"),
        (MLA, renamed(mla_tensors(), "midlayer.", "model.midlayer."), SGLANG, "13 tensors are missing and 13"),
        (DRAFTER, mla_tensors(), VLLM, "3 tensors are missing and 6"),
        (DRAFTER, renamed(PLAIN, "midlayer.", "layers.0."), SGLANG_OLD, "10 tensors are missing and 10"),
        (DEEP, PLAIN, VLLM, "9 tensors are missing and 0"),
        (DEEP, PLAIN | lacking(second_layer(), "layers.1.input_layernorm.weight"), VLLM, "1 tensors are missing and 0"),
        (DEEP, PLAIN | second_layer(), SGLANG_OLD, "2 layers, sglang 0.5.11 builds one"),
        (DEEP, PLAIN | second_layer(), VLLM_OLD, "2 layers, vllm 0.11.0 builds one"),
        (DEEP | MLA | {"num_hidden_layers": 2}, mla_tensors(), SGLANG, "2 layers, sglang 0.5.12 builds one"),
        (DRAFTER, PLAIN | second_layer(), VLLM, "0 tensors are missing and 10"),
        (BIASED, PLAIN, VLLM, "4 tensors are missing and 0"),
        (BIASED, PLAIN | QKV | O_BIAS, VLLM_OLD, "0 tensors are missing and 3"),
        (BIASED, PLAIN | QKV | O_BIAS, SGLANG, "0 tensors are missing and 3"),
        (DRAFTER | {"norm_before_fc": True}, PLAIN | INPUT_NORM, SGLANG, "0 tensors are missing and 1"),  # read from 0.5.17 on
        (DRAFTER | {"eagle_config": {"norm_before_fc": True}}, PLAIN | INPUT_NORM, VLLM, "0 tensors are missing and 1"),
        (MLA | {"norm_before_fc": True}, mla_tensors() | INPUT_NORM, VLLM, "0 tensors are missing and 1"),
        (DRAFTER | {"fc_norm": True}, PLAIN | INPUT_NORM, VLLM, "3 tensors are missing and 1"),
        (DRAFTER, PLAIN | FC_NORMS, VLLM, "0 tensors are missing and 3"),
        (DRAFTER | {"use_aux_norm": True}, PLAIN | LEGACY, VLLM, "0 tensors are missing and 3"),
        (DRAFTER | {"draft_vocab_size": V}, lacking(PLAIN, "lm_head.weight", "d2t", "t2d"), SGLANG, "1 tensors are missing and 0"),
    ],
)
def test_bad_names(tmp_path: Path, target: Path, config: dict[str, Any], tensors: Tensors, facts: EngineFacts, says: str) -> None:
    found, _ = names_and_shapes(tmp_path, target, config, tensors, facts)
    assert (found.verdict, says in found.title) == ("fail", True), found.title


@pytest.mark.parametrize(
    ("config", "name", "shape"),
    [
        (MLA, "midlayer.self_attn.q_a_proj.weight", (6, H)),  # the target's own is half as wide
        (MLA, "midlayer.self_attn.kv_a_proj_with_mqa.weight", (7, H)),
        (MLA, "midlayer.self_attn.q_b_proj.weight", (2 * (4 + 3), 6)),
        (MLA, "midlayer.self_attn.kv_b_proj.weight", (2 * (4 + 2), 5)),
        (MLA, "midlayer.self_attn.o_proj.weight", (H, 2 * 4)),
        (MLA, "fc.weight", (H, 2 * H)),
    ],
)
def test_bad_shapes_of_mla(tmp_path: Path, target: Path, config: dict[str, Any], name: str, shape: tuple[int, ...]) -> None:
    names, shapes = names_and_shapes(tmp_path, target, config, mla_tensors() | {name: zeros("F32", *shape)}, VLLM)
    assert (names.verdict, shapes.verdict) == ("pass", "fail")
    assert shapes.found == f'"{name}" {list(shape)}'


def test_a_second_layer_as_wide_as_the_first(tmp_path: Path, target: Path) -> None:
    wide = PLAIN | renamed({name: t for name, t in PLAIN.items() if name.startswith("midlayer.")}, "midlayer.", "layers.1.")
    _, shapes = names_and_shapes(tmp_path, target, DEEP, wide, VLLM)
    assert shapes.title == "3 tensors have other shapes than the config states"


def test_what_is_skipped_is_told_by_the_engine_that_skips(tmp_path: Path, target: Path) -> None:
    tensors = renamed(PLAIN, "midlayer.", "layers.0.")
    old, _ = names_and_shapes(tmp_path, target, DRAFTER, tensors, SGLANG_OLD)
    assert "sglang 0.5.11 skips what it does not know without a word" in old.effect
    assert "midlayer.*" in old.fix and "layers.0.*" not in old.fix
    strict = finding_of("tensor_names", target, write_drafter(tmp_path / "foo", tensors=PLAIN | {"foo.weight": zeros("F32", 1)}))
    assert "the start ends" in strict.effect


def test_an_mla_drafter_with_an_unknown_tensor_is_skipped_over_by_older_vllm(tmp_path: Path, target: Path) -> None:
    folder = write_drafter(tmp_path / "drafter", MLA, mla_tensors() | {"foo.weight": zeros("F32", 1)})
    assert "skips" in finding_of("tensor_names", target, folder, replace(VLLM, version="0.24.0")).effect
    assert "the start ends" in finding_of("tensor_names", target, folder, replace(VLLM, version="0.25.0")).effect


OWN_EMBEDDING = PLAIN | {"embed_tokens.weight": zeros("F32", V, H)}
HEADLESS = {key: value for key, value in DRAFTER.items() if key != "draft_vocab_size"}
WHOLE_HEAD = lacking(PLAIN, "d2t", "t2d") | {"lm_head.weight": zeros("F32", V, H)}


@pytest.mark.parametrize(
    ("config", "tensors", "facts", "verdict", "says"),
    [
        (DRAFTER, OWN_EMBEDDING, VLLM, "pass", "all 13"),
        (DRAFTER, OWN_EMBEDDING, SGLANG, "warn", "own embedding is not used"),
        (DRAFTER, PLAIN, SGLANG, "pass", "all 13"),
        (DRAFTER | {"draft_vocab_size": None}, WHOLE_HEAD, SGLANG, "warn", "own lm_head is not used"),
        (DRAFTER | {"draft_vocab_size": V}, WHOLE_HEAD, SGLANG, "pass", "all 13"),
    ],
)
def test_whose_embedding_and_head_are_used(
    tmp_path: Path, target: Path, config: dict[str, Any], tensors: Tensors, facts: EngineFacts, verdict: str, says: str
) -> None:
    found, _ = names_and_shapes(tmp_path, target, config, tensors, facts)
    assert (found.verdict, says in found.title) == (verdict, True), found.title


@pytest.mark.parametrize(
    ("config", "facts", "verdict"),
    [
        (HEADLESS, VLLM, "pass"),
        (HEADLESS, SGLANG, "fail"),
        (HEADLESS | {"draft_vocab_size": None}, SGLANG, "pass"),
        (MLA, SGLANG, "pass"),
        ({key: value for key, value in MLA.items() if key != "draft_vocab_size"}, SGLANG, "pass"),  # that class asks whether it is there
    ],
)
def test_a_draft_vocabulary_that_is_not_stated(
    tmp_path: Path, target: Path, config: dict[str, Any], facts: EngineFacts, verdict: str
) -> None:
    reduced = config.get("draft_vocab_size") == U
    maps = {"d2t": d2t_of(draft_ids()), "t2d": t2d_of(draft_ids())} if reduced else {}
    tensors = WHOLE_HEAD | maps | ({"lm_head.weight": zeros("F32", U, H)} if reduced else {})
    found = finding_of("vocabulary_map", target, write_drafter(tmp_path / "drafter", config, tensors), facts)
    assert found.verdict == verdict
    assert verdict == "pass" or "no draft_vocab_size" in found.title
    assert finding_of("vocabulary_map", target, config, facts).verdict == ("fail" if verdict == "fail" else "unknown")


def test_the_target_of_these_is_that_of_the_others() -> None:
    assert TARGET["hidden_size"] == MLA["hidden_size"] == H


LAYER = {key: DRAFTER[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")} | {
    key: DRAFTER[key] for key in ("model_type", "num_hidden_layers", "vocab_size", "rms_norm_eps", "max_position_embeddings")
}
SPECULATOR = {
    "architectures": ["Eagle3DraftModel"],
    "speculators_model_type": "eagle3",
    "draft_vocab_size": U,
    "norm_before_fc": True,
    "transformer_layer_config": LAYER,
}


@pytest.mark.parametrize(
    ("changes", "tensors", "facts", "verdict", "says"),
    [
        ({}, PLAIN | INPUT_NORM, VLLM, "pass", "all 14"),
        ({}, PLAIN, VLLM, "fail", "1 tensors are missing and 0"),
        ({}, PLAIN | INPUT_NORM, replace(VLLM, version="0.18.1"), "fail", "0 tensors are missing and 1"),  # handed on from 0.19.0
        ({"norm_before_fc": False}, PLAIN, VLLM, "pass", "all 13"),
        ({"fc_norm": True}, PLAIN | INPUT_NORM | FC_NORMS, VLLM, "pass", "all 17"),
        ({"fc_norm": True}, PLAIN | INPUT_NORM | FC_NORMS, replace(VLLM, version="0.24.0"), "fail", "0 tensors are missing and 3"),
        ({"transformer_layer_config": LAYER | {"model_type": "qwen3"}}, PLAIN, VLLM, "unknown", "`speculators`"),
        ({"speculators_model_type": "peagle"}, PLAIN, VLLM, "unknown", "`speculators`"),
        ({"transformer_layer_config": None}, PLAIN, VLLM, "unknown", "`speculators`"),
        ({}, PLAIN | INPUT_NORM, SGLANG, "unknown", "`speculators`"),
    ],
)
def test_drafters_in_the_layout_of_speculators(
    tmp_path: Path, target: Path, changes: dict[str, Any], tensors: Tensors, facts: EngineFacts, verdict: str, says: str
) -> None:
    folder = write_drafter(tmp_path / "drafter", SPECULATOR | changes, tensors)
    found = finding_of("tensor_names", target, folder, facts)
    assert (found.verdict, says in found.title) == (verdict, True), found.title
    if verdict == "pass":
        assert finding_of("tensor_shapes", target, folder, facts).verdict == "pass"
        assert finding_of("vocabulary_map", target, folder, facts).verdict == "pass"


def test_layers_of_a_drafter_in_the_layout_of_speculators(target: Path) -> None:
    named = SPECULATOR | {"eagle_aux_hidden_state_layer_ids": [3, 6, 10]}
    found = finding_of("aux_layers", target, named)
    assert found.verdict == "pass" and "[3, 6, 10]" in found.title
    assert "width 32" in finding_of("aux_layers", target, named | {"target_hidden_size": 32}).title
