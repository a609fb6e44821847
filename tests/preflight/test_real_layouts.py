"""The tensors that we expect of a drafter are the parameters of the class that real vLLM builds for it."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from outrider.engines.environment import Environment
from outrider.engines.known import facts_of_version
from outrider.preflight.layout import Layout, layout_of
from outrider.preflight.stage import subject_of
from preflight.folders import DRAFTER, TARGET, write_target

_SCRIPT: Final = Path(__file__).parent / "fixtures" / "drafter_parameters.py"
_SIZES: Final = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 256}
_LLAMA: Final = DRAFTER | _SIZES | {"num_key_value_heads": 2, "head_dim": 16, "draft_vocab_size": 128}
_MLA: Final = {key: value for key, value in _LLAMA.items() if key not in ("head_dim", "num_key_value_heads")} | {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
}
_DRAFTERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "plain": _LLAMA,
    "deep": _LLAMA | {"num_hidden_layers": 2},
    "biased": _LLAMA | {"attention_bias": True, "mlp_bias": True},
    "fc_biased": _LLAMA | {"bias": True},
    "normed": _LLAMA | {"fc_norm": True, "norm_before_fc": True, "norm_output": True, "norm_before_residual": True},
    "two_states": _LLAMA | {"num_aux_hidden_states": 2, "target_hidden_size": 32},
    "mla": _MLA,
    "mla_deep": _MLA | {"num_hidden_layers": 2, "fc_norm": True, "norm_before_fc": True, "attention_bias": True},
}
# one of vLLM's parameters ← ours, one above the other
_FUSED: Final = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "self_attn.fused_qkv_a_proj": ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
}


@pytest.fixture(scope="module")
def built(vllm: Environment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Layout, dict[str, tuple[int, ...]]]]:
    """Of each drafter, what we expect and what vLLM builds."""
    place = tmp_path_factory.mktemp("real")
    target = write_target(place / "target", TARGET | _SIZES | {"num_key_value_heads": 2, "head_dim": 16})
    asked = []
    for name, config in _DRAFTERS.items():
        (place / name).mkdir()
        (place / name / "config.json").write_text(json.dumps(config))
        of = "deepseek_eagle3:Eagle3DeepseekV2ForCausalLM" if name.startswith("mla") else "llama_eagle3:Eagle3LlamaForCausalLM"
        asked.append(f"{of}:{place / name}")
    done = subprocess.run([str(vllm.python), str(_SCRIPT), str(target), *asked], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("PARAMETERS ")).partition(" ")[2])
    facts, pairs = facts_of_version("vllm", "0.32.0"), {}
    for name in _DRAFTERS:
        layout = layout_of(subject_of(target, place / name, facts))
        assert isinstance(layout, Layout), layout
        parameters = {parameter: tuple(shape) for parameter, shape in told[str(place / name)].items()}
        pairs[name] = layout, parameters
    return pairs


def parameters_of(layout: Layout) -> dict[str, tuple[int, ...]]:
    """Our tensors as vLLM holds them."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in layout.shapes.items():
        stored = name if name.startswith("lm_head.") else f"model.{name.replace('midlayer.', 'layers.0.')}"
        for fused, parts in _FUSED.items():
            for part in parts:
                stored = stored.replace(f"{part}.", f"{fused}.")
        found[stored] = (found[stored][0] + shape[0], *shape[1:]) if stored in found else shape
    return found


@pytest.mark.parametrize("name", _DRAFTERS)
def test_what_vllm_builds_is_what_we_expect(built: dict[str, tuple[Layout, dict[str, tuple[int, ...]]]], name: str) -> None:
    layout, parameters = built[name]
    assert parameters_of(layout) == {key: shape for key, shape in parameters.items() if key != "draft_id_to_target_id"}
