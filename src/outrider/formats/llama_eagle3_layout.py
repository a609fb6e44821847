"""What `llama_eagle3` folders say and hold, as names, shapes and config keys; read and checked without torch."""

from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from outrider.core.errors import InputError
from outrider.formats.checkpoint import DrafterConfig

Shapes = dict[str, tuple[int, ...]]
ARCHITECTURES: Final = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
_LAYER_PREFIXES: Final = ("midlayer.", "layers.0.", "model.midlayer.", "model.layers.0.")


def recognises(config: dict[str, Any]) -> bool:
    """Whether a config.json is of this layout."""
    named = config.get("architectures")
    return isinstance(named, list) and any(name in ARCHITECTURES for name in named)


def norm_and_mlp_shapes(hidden_size: int, intermediate_size: int) -> Shapes:
    """What every EAGLE-3 layer holds besides its attention."""
    d, inner = hidden_size, intermediate_size
    return {
        "hidden_norm.weight": (d,),
        "input_layernorm.weight": (d,),
        "post_attention_layernorm.weight": (d,),
        "mlp.gate_proj.weight": (inner, d),
        "mlp.up_proj.weight": (inner, d),
        "mlp.down_proj.weight": (d, inner),
    }


def layer_shapes(config: DrafterConfig, input_width: int) -> Shapes:
    """The tensors of one layer, by their names in it.

    Args:
        input_width: of the attention: twice the drafter's in the first layer, where the embedding stands beside the state.
    """
    d, q, kv = config.hidden_size, config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return norm_and_mlp_shapes(d, config.intermediate_size) | {
        "self_attn.q_proj.weight": (q, input_width),
        "self_attn.k_proj.weight": (kv, input_width),
        "self_attn.v_proj.weight": (kv, input_width),
        "self_attn.o_proj.weight": (d, q),
    }


def expected_shapes(config: DrafterConfig) -> Shapes:
    """Every tensor a drafter of this shape has, by our names."""
    d = config.hidden_size
    return {
        "fc.weight": (d, len(config.aux_layers) * config.target_hidden_size),
        "norm.weight": (d,),
        "lm_head.weight": (config.draft_vocab_size, d),
        **{f"midlayer.{name}": shape for name, shape in layer_shapes(config, 2 * d).items()},
    }


def our_name(name: str) -> str:
    """A tensor's name in any spelling of this layout → ours."""
    for prefix in _LAYER_PREFIXES:
        if name.startswith(prefix):
            return "midlayer." + name.removeprefix(prefix)
    return name.removeprefix("model.")


def config_from(raw: Any, source: Path) -> DrafterConfig:
    """The shape that a config.json states.

    Args:
        raw: its content.
        source: the file, for errors.

    Raises:
        InputError: another layout, a key that is missing, or a value that cannot be.
    """
    if not isinstance(raw, dict) or not recognises(raw):
        raise InputError(
            f"{source.parent} is not a Llama-style EAGLE-3 drafter",
            evidence=f"architectures = {raw.get('architectures') if isinstance(raw, dict) else raw!r}",
            fix=f"known: {', '.join(ARCHITECTURES)}",
        )
    try:
        theta, scaling = rope_from(raw)
        heads = raw["num_attention_heads"]
        return DrafterConfig(
            hidden_size=raw["hidden_size"],
            target_hidden_size=raw.get("target_hidden_size") or raw["hidden_size"],
            intermediate_size=raw["intermediate_size"],
            num_heads=heads,
            num_kv_heads=raw.get("num_key_value_heads", heads),
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            vocab_size=raw["vocab_size"],
            draft_vocab_size=raw.get("draft_vocab_size") or raw["vocab_size"],
            rms_norm_eps=raw["rms_norm_eps"],
            rope_theta=theta,
            rope_scaling=scaling,
            max_position_embeddings=raw["max_position_embeddings"],
            aux_layers=tuple(_aux_layers(raw, source)),
            bos_token_id=_first_id(raw.get("bos_token_id")),
            eos_token_id=_first_id(raw.get("eos_token_id")),
        )
    except KeyError as error:
        raise InputError(f"the drafter's config lacks {error.args[0]}", evidence=str(source)) from None
    except (ValidationError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise InputError("the drafter's config has a wrong value", evidence=f"{source}: {error}") from None


def _first_id(value: Any) -> Any:
    """A config may list several ids that end an answer."""
    return next(iter(value), None) if isinstance(value, list) else value


def _aux_layers(raw: dict[str, Any], source: Path) -> list[int]:
    """The layers as layers run: the top level is literal; a nested list alone is SGLang's, which adds one."""
    if raw.get("eagle_aux_hidden_state_layer_ids"):
        return list(raw["eagle_aux_hidden_state_layer_ids"])
    nested = (raw.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if nested:
        return [layer + 1 for layer in nested]
    raise InputError(
        "the drafter does not say which target layers feed it",
        evidence=f"{source}: no eagle_aux_hidden_state_layer_ids",
        effect="each engine would guess",
        fix="write the layers it was trained on into its config",
    )


def rope_from(raw: dict[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """(theta, scaling) of a config in either spelling: rope_theta + rope_scaling, or rope_parameters."""
    parameters = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    theta = float(parameters.pop("rope_theta", None) or raw.get("rope_theta") or 10000.0)
    kind = parameters.pop("type", None)
    parameters.setdefault("rope_type", kind or "default")
    return theta, None if parameters["rope_type"] == "default" else parameters


def config_json(config: DrafterConfig, dtype: str, sglang_aux_layers: list[int] | None) -> dict[str, Any]:
    """The config.json that vLLM and SGLang read; `dtype` by name, e.g. "bfloat16"."""
    nested: dict[str, Any] = {} if sglang_aux_layers is None else {"eagle_aux_hidden_state_layer_ids": sglang_aux_layers}
    written: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": 1,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": config.rope_scaling,
        "max_position_embeddings": config.max_position_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "eagle_aux_hidden_state_layer_ids": list(config.aux_layers),
        "eagle_config": nested | {"use_aux_hidden_state": True},
    }
    if config.target_hidden_size != config.hidden_size:  # SGLang takes its mere presence for "different"
        written["target_hidden_size"] = config.target_hidden_size
    written |= {key: value for key in ("bos_token_id", "eos_token_id") if (value := getattr(config, key)) is not None}
    return written
