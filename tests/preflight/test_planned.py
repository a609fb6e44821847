"""The drafter with MLA attention that is only planned."""

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.core.errors import InputError
from outrider.engines.known import facts_of_version
from outrider.formats.deepseek_eagle3_layout import layer_shapes, sizes_from
from outrider.preflight.planned import PLANS, planned_mla
from outrider.preflight.stage import preflight
from preflight.folders import TARGET, write_target

MLA: dict[str, Any] = TARGET | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "q_lora_rank": 6,
    "kv_lora_rank": 5,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 2,
    "v_head_dim": 3,
    "rope_theta": 50000.0,
    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
}


def test_both_kinds_can_be_asked_for() -> None:
    assert set(PLANS) == {"eagle3", "eagle3-mla"}


def test_what_is_planned_has_the_targets_attention(tmp_path: Path) -> None:
    planned = planned_mla(write_target(tmp_path / "target", MLA))
    assert (planned["architectures"], planned["model_type"]) == (["Eagle3DeepseekV2ForCausalLM"], "deepseek_v2")
    for key in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "hidden_size", "rope_theta"):
        assert planned[key] == MLA[key]
    assert planned["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    assert (planned["num_hidden_layers"], planned["draft_vocab_size"], planned["eos_token_id"]) == (1, 40, 1)
    assert planned["eagle_aux_hidden_state_layer_ids"] == [2, 6, 9]
    assert planned["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 5, 8]


@pytest.mark.parametrize(("engine", "version"), [("vllm", "0.18.0"), ("vllm", "0.33.0"), ("sglang", "0.5.12"), ("sglang", "0.5.23")])
def test_engines_that_have_a_class_for_it_would_take_it(tmp_path: Path, engine: str, version: str) -> None:
    target = write_target(tmp_path / "target", MLA)
    findings = preflight(target, planned_mla(target), facts_of_version(engine, version)).findings
    assert [found for found in findings if found.verdict == "fail"] == []
    told = {found.id: found.verdict for found in findings}
    assert told["aux_layers"] == told["drafter_architecture"] == "pass"
    assert told["tensor_names"] == told["tensor_shapes"] == told["vocabulary_map"] == "unknown"


@pytest.mark.parametrize("version", ["0.17.1", "0.16.0"])
def test_engines_before_it_would_not(tmp_path: Path, version: str) -> None:
    target = write_target(tmp_path / "target", MLA)
    told = {found.id: found.verdict for found in preflight(target, planned_mla(target), facts_of_version("vllm", version)).findings}
    assert told["drafter_architecture"] == "fail"


def test_the_language_model_of_a_wrapper_counts(shared: Path) -> None:
    folder = shared / "configs" / "kimi-k2.5"
    planned = planned_mla(folder)
    sizes = sizes_from(planned, folder / "config.json")
    shapes = layer_shapes(sizes, 2 * sizes.hidden_size)
    assert shapes["self_attn.q_a_proj.weight"] == (1536, 14336)
    assert shapes["self_attn.kv_a_proj_with_mqa.weight"] == (576, 14336)
    assert shapes["self_attn.q_b_proj.weight"] == (12288, 1536)
    assert shapes["self_attn.kv_b_proj.weight"] == (16384, 512)
    assert shapes["self_attn.o_proj.weight"] == (7168, 8192)
    assert (planned["rope_scaling"]["factor"], planned["draft_vocab_size"], planned["max_position_embeddings"]) == (64.0, 32000, 262144)
    assert json.dumps(planned)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kv_lora_rank": None}, "it has no MLA attention"),
        ({"q_lora_rank": None}, "wrong value"),
        ({"v_head_dim": "wide"}, "wrong value"),
        ({"rope_theta": "far"}, "no drafter can be planned"),
    ],
)
def test_a_target_without_it_is_an_input_error(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        planned_mla(write_target(tmp_path / "target", MLA | changes))
