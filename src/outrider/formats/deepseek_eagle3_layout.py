"""What the folder of an EAGLE-3 drafter with MLA attention says and holds: names, shapes and config keys; no torch.

`Eagle3DeepseekV2ForCausalLM`, read by vLLM (0.18.0 on) and SGLang (0.5.12 on). Its one layer has a dense MLP, and its
attention takes the embedding beside the state, so that both down-projections are twice as wide as in the target.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import PositiveInt, ValidationError

from outrider.core.errors import InputError
from outrider.core.results import Frozen
from outrider.formats.llama_eagle3_layout import Shapes, norm_and_mlp_shapes, rope_from

ARCHITECTURES: Final = ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM")
# vLLM makes an MTP model of a drafter that calls itself deepseek_v3, and knows no MLA in one that is kimi_k2
MODEL_TYPE: Final = "deepseek_v2"


class MlaSizes(Frozen):
    """Sizes of an EAGLE-3 drafter with MLA attention.

    Attributes:
        hidden_size: D, the drafter's width.
        target_hidden_size: H, the width of a target state.
        q_lora_rank: no engine builds this layer without one.
        vocab_size: V.
        draft_vocab_size: U.
    """

    hidden_size: PositiveInt
    target_hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_heads: PositiveInt
    q_lora_rank: PositiveInt
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt
    vocab_size: PositiveInt
    draft_vocab_size: PositiveInt


def recognises(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is of this layout."""
    named = config.get("architectures")
    return isinstance(named, list) and any(name in ARCHITECTURES for name in named)


def layer_shapes(sizes: MlaSizes, input_width: int) -> Shapes:
    """The tensors of one layer, by their names in it.

    Args:
        input_width: of the attention: twice the drafter's in the first layer, where the embedding stands beside the state.
    """
    d, heads, nope = sizes.hidden_size, sizes.num_heads, sizes.qk_nope_head_dim
    return norm_and_mlp_shapes(d, sizes.intermediate_size) | {
        "self_attn.q_a_proj.weight": (sizes.q_lora_rank, input_width),
        "self_attn.q_a_layernorm.weight": (sizes.q_lora_rank,),
        "self_attn.q_b_proj.weight": (heads * (nope + sizes.qk_rope_head_dim), sizes.q_lora_rank),
        "self_attn.kv_a_proj_with_mqa.weight": (sizes.kv_lora_rank + sizes.qk_rope_head_dim, input_width),
        "self_attn.kv_a_layernorm.weight": (sizes.kv_lora_rank,),
        "self_attn.kv_b_proj.weight": (heads * (nope + sizes.v_head_dim), sizes.kv_lora_rank),
        "self_attn.o_proj.weight": (d, heads * sizes.v_head_dim),
    }


def sizes_from(raw: Mapping[str, Any], source: Path) -> MlaSizes:
    """The sizes that a config.json states: a drafter's, or those of a target with such attention.

    Args:
        source: the file, for errors.

    Raises:
        InputError: a key that is missing, or a value that cannot be.
    """
    try:
        return MlaSizes(
            hidden_size=raw["hidden_size"],
            target_hidden_size=raw.get("target_hidden_size") or raw["hidden_size"],
            intermediate_size=raw["intermediate_size"],
            num_heads=raw["num_attention_heads"],
            q_lora_rank=raw["q_lora_rank"],
            kv_lora_rank=raw["kv_lora_rank"],
            qk_nope_head_dim=raw["qk_nope_head_dim"],
            qk_rope_head_dim=raw["qk_rope_head_dim"],
            v_head_dim=raw["v_head_dim"],
            vocab_size=raw["vocab_size"],
            draft_vocab_size=raw.get("draft_vocab_size") or raw["vocab_size"],
        )
    except KeyError as error:
        raise InputError(f"the config lacks {error.args[0]}, without which there is no MLA attention", evidence=str(source)) from None
    except (ValidationError, ValueError, TypeError) as error:
        raise InputError("the config has a wrong value", evidence=f"{source}: {' '.join(str(error).split())[:300]}") from None


def config_json(
    sizes: MlaSizes, text: Mapping[str, Any], aux_layers: tuple[int, ...], sglang_aux_layers: list[int] | None, dtype: str
) -> dict[str, Any]:
    """The config.json that vLLM and SGLang read.

    Args:
        text: the config of the target's language model, from which RoPE, norm and context are taken.
        aux_layers: as layers run.
        sglang_aux_layers: the numbers that SGLang takes for them.
        dtype: of the tensors, by name.
    """
    theta, scaling = rope_from(dict(text))
    nested: dict[str, Any] = {} if sglang_aux_layers is None else {"eagle_aux_hidden_state_layer_ids": sglang_aux_layers}
    return {
        "architectures": [ARCHITECTURES[0]],
        "model_type": MODEL_TYPE,
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_attention_heads": sizes.num_heads,
        "num_key_value_heads": sizes.num_heads,
        "num_hidden_layers": 1,
        "q_lora_rank": sizes.q_lora_rank,
        "kv_lora_rank": sizes.kv_lora_rank,
        "qk_nope_head_dim": sizes.qk_nope_head_dim,
        "qk_rope_head_dim": sizes.qk_rope_head_dim,
        "v_head_dim": sizes.v_head_dim,
        "vocab_size": sizes.vocab_size,
        "draft_vocab_size": sizes.draft_vocab_size,
        "rms_norm_eps": float(text.get("rms_norm_eps", 1e-6)),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "max_position_embeddings": int(text["max_position_embeddings"]),
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "eagle_aux_hidden_state_layer_ids": list(aux_layers),
        "eagle_config": nested | {"use_aux_hidden_state": True},
    }
