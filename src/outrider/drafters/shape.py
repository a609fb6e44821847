"""The shape of an EAGLE-3 drafter before there is one: which target layers feed it, how wide it is. No torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.formats.checkpoint import DrafterConfig
from outrider.formats.llama_eagle3_layout import rope_from


def default_aux_layers(num_layers: int) -> tuple[int, ...]:
    """An early, a middle and a late layer (layers run): 2, L / 2, L - 3, as the paper and every engine's default.

    Below 7 layers those coincide, which engines take for fewer than three; three different ones are given then.
    """
    if num_layers >= 7:
        return (2, num_layers // 2, num_layers - 3)
    if num_layers >= 4:
        return (1, num_layers // 2, num_layers - 1)
    return tuple(range(max(0, num_layers - 2), num_layers + 1))


def shape_for(
    text: Mapping[str, Any], eos_token_ids: Sequence[int], aux_layers: tuple[int, ...], draft_vocab_size: int, intermediate_size: int | None
) -> DrafterConfig:
    """A Llama-style layer with the target's width, heads, norm and RoPE.

    Args:
        text: the config of the target's language model.
        eos_token_ids: ids that end the target's answers.
        intermediate_size: None for the target's.
    """
    heads, hidden = int(text["num_attention_heads"]), int(text["hidden_size"])
    theta, scaling = rope_from(dict(text))
    return DrafterConfig(
        hidden_size=hidden,
        target_hidden_size=hidden,
        intermediate_size=intermediate_size or int(text["intermediate_size"]),
        num_heads=heads,
        num_kv_heads=int(text.get("num_key_value_heads") or heads),
        head_dim=int(text.get("head_dim") or hidden // heads),
        vocab_size=int(text["vocab_size"]),
        draft_vocab_size=draft_vocab_size,
        rms_norm_eps=float(text.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=int(text["max_position_embeddings"]),
        aux_layers=aux_layers,
        bos_token_id=text.get("bos_token_id") if isinstance(text.get("bos_token_id"), int) else None,
        eos_token_id=eos_token_ids[0] if eos_token_ids else None,
    )
