"""Pairs of a target and a drafter, sound and unsound, as configs of a few layers: what an engine's gates are tried with."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from preflight.folders import DRAFTER, TARGET

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """One pair and the launch that is meant.

    Attributes:
        method: by hand; None for the one that follows from the drafter.
        arguments: the engine's own.
    """

    name: str
    target: Config
    drafter: Config
    method: str | None = None
    arguments: str = ""


_SIZES: Final = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 8,
    "vocab_size": 256, "max_position_embeddings": 256,
}  # fmt: skip
_EXPERTS: Final = {
    "num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1,
}  # fmt: skip
_DEEPSEEK: Final = {
    "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "num_key_value_heads": 4,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
    "n_group": 1, "topk_group": 1, "moe_layer_freq": 1, "norm_topk_prob": True, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "routed_scaling_factor": 1.0, "hidden_act": "silu",
}  # fmt: skip
_VISION: Final = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 14, "image_size": 28,
}  # fmt: skip
_OWN_CODE: Final = {"auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}


def _text(architecture: str, model_type: str, **keys: Any) -> dict[str, Any]:
    return TARGET | _SIZES | {"architectures": [architecture], "model_type": model_type} | keys


def _wrapper(architecture: str, model_type: str, text: Config, vision_type: str, **keys: Any) -> dict[str, Any]:
    vision = {"model_type": vision_type, **_VISION}
    return {"architectures": [architecture], "model_type": model_type, "vision_config": vision, "text_config": text, **keys}


def _eagle3(architecture: str, model_type: str = "llama", **keys: Any) -> dict[str, Any]:
    own = {"num_hidden_layers": 1, "draft_vocab_size": 128, "eagle_aux_hidden_state_layer_ids": [2, 4, 6]}
    return _text(architecture, model_type, **own, eagle_config=DRAFTER["eagle_config"]) | keys


def _speculators(kind: str, layer_type: str, **keys: Any) -> dict[str, Any]:
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": kind,
        "draft_vocab_size": 128,
        "norm_before_residual": True,
        "transformer_layer_config": _text("LlamaForCausalLM", layer_type, num_hidden_layers=1),
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": "target", "architectures": ["LlamaForCausalLM"]},
        },
    } | keys


def _speculative(**keys: Any) -> str:
    """The argument with all that it should have, and these keys."""
    return f"--speculative-config '{json.dumps({'method': 'eagle3', 'num_speculative_tokens': 3} | keys)}'"


_LLAMA: Final = _text("LlamaForCausalLM", "llama")
_QWEN3: Final = _text("Qwen3ForCausalLM", "qwen3", head_dim=16)
_GEMMA: Final = _text("GemmaForCausalLM", "gemma", head_dim=16)
_DEEPSEEK_V3: Final = _text("DeepseekV3ForCausalLM", "deepseek_v3", **_DEEPSEEK)
_KIMI: Final = _wrapper(
    "KimiK25ForConditionalGeneration",
    "kimi_k25",
    _DEEPSEEK_V3 | {"model_type": "kimi_k2"},
    "kimi_k25_vision",
    media_placeholder_token_id=250,
)
_EAGLE3: Final = _eagle3("LlamaForCausalLMEagle3")
_MLA: Final = _eagle3("Eagle3DeepseekV2ForCausalLM", "deepseek_v2", **_DEEPSEEK)
_DFLASH: Final = _text(
    "DFlashDraftModel", "qwen3", head_dim=16, num_hidden_layers=2, block_size=4, num_target_layers=8,
    dflash_config={"target_layer_ids": [1, 3, 5], "mask_token_id": 255},
)  # fmt: skip

CASES: Final[tuple[Case, ...]] = (
    # sound drafters, targets of many kinds
    Case("Llama", _LLAMA, _EAGLE3),
    Case("Llama, the drafter by its name in vLLM", _LLAMA, _eagle3("Eagle3LlamaForCausalLM")),
    Case("Llama, a plain name that gets the prefix", _LLAMA, _eagle3("LlamaForCausalLM"), "eagle3"),
    Case("Llama, everything in the arguments", _LLAMA, _EAGLE3, None, _speculative()),
    Case("Llama, key-value pairs repeated on four devices", _LLAMA, _EAGLE3, None, "--tensor-parallel-size 4"),
    Case("Qwen2", _text("Qwen2ForCausalLM", "qwen2"), _EAGLE3),
    Case("Qwen3", _QWEN3, _EAGLE3),
    Case("Qwen3, a Qwen3 drafter", _QWEN3, _eagle3("Eagle3Qwen3ForCausalLM", "qwen3", head_dim=16)),
    Case("Qwen3 MoE", _text("Qwen3MoeForCausalLM", "qwen3_moe", head_dim=16, **_EXPERTS), _EAGLE3),
    Case("Mistral", _text("MistralForCausalLM", "mistral"), _EAGLE3),
    Case("Phi-2", _text("PhiForCausalLM", "phi", partial_rotary_factor=0.5), _EAGLE3),
    Case("GPT-OSS", _text("GptOssForCausalLM", "gpt_oss", head_dim=16, sliding_window=32, **_EXPERTS), _EAGLE3),
    Case("DeepSeek-V3, a Llama drafter", _DEEPSEEK_V3, _EAGLE3),
    Case("DeepSeek-V3, an MLA drafter", _DEEPSEEK_V3, _MLA),
    Case("DeepSeek-V3, the MLA drafter called kimi_k2", _DEEPSEEK_V3, _MLA | {"model_type": "kimi_k2"}),
    Case("Kimi-K2.5 around kimi_k2", _KIMI, _EAGLE3),
    Case("Kimi-K2.5 around deepseek_v3", _KIMI | {"text_config": _DEEPSEEK_V3}, _EAGLE3),
    Case("Llama, layout of speculators", _LLAMA, _speculators("eagle3", "llama")),
    Case("Qwen3, layout of speculators with a Qwen3 layer", _QWEN3, _speculators("eagle3", "qwen3")),
    Case(
        "Llama, P-EAGLE in parallel", _LLAMA, _speculators("peagle", "llama", mask_token_id=255), None, _speculative(parallel_drafting=True)
    ),
    Case("Qwen3, DFlash", _QWEN3, _DFLASH),
    Case("Llama, a small Llama that drafts by itself", _LLAMA, _LLAMA, "draft_model"),
    # targets whose class hands out no aux states, or that need more
    Case("GPT-2", _text("GPT2LMHeadModel", "gpt2", n_embd=64, n_head=4, n_layer=8), _EAGLE3),
    Case("Gemma 2", _text("Gemma2ForCausalLM", "gemma2", head_dim=16, query_pre_attn_scalar=16, sliding_window=64), _EAGLE3),
    Case("Mixtral", _text("MixtralForCausalLM", "mixtral", **_EXPERTS), _EAGLE3),
    Case("Mixtral, DFlash", _text("MixtralForCausalLM", "mixtral", **_EXPERTS), _DFLASH),
    Case("GLM-4.5", _text("Glm4MoeForCausalLM", "glm4_moe", **_DEEPSEEK | {"head_dim": 16}), _EAGLE3),
    Case("OPT", _text("OPTForCausalLM", "opt", ffn_dim=128, word_embed_proj_dim=64, do_layer_norm_before=True), _EAGLE3),
    Case("Idefics 3 around Llama", _wrapper("Idefics3ForConditionalGeneration", "idefics3", _LLAMA, "idefics3_vision"), _EAGLE3),
    Case("PaliGemma around Gemma", _wrapper("PaliGemmaForConditionalGeneration", "paligemma", _GEMMA, "siglip_vision_model"), _EAGLE3),
    Case("a target that only its own code can read", _text("MiniCPMV", "minicpmv", **_OWN_CODE), _EAGLE3),
    Case("a drafter that only its own code can read", _LLAMA, _eagle3("LlamaForCausalLMEagle3", "internvl_chat", **_OWN_CODE)),
    # drafters that have no class, or lose it to a rewrite
    Case("no such architecture", _LLAMA, _eagle3("FooForCausalLM"), "eagle3"),
    Case("a name that is only known with its prefix", _LLAMA, _eagle3("Qwen2_5vlForCausalLM"), "eagle3"),
    Case("the MLA drafter called deepseek_v3", _DEEPSEEK_V3, _MLA | {"model_type": "deepseek_v3"}),
    Case("a drafter of a type nobody has", _LLAMA, _eagle3("LlamaForCausalLMEagle3", "internvl_chat")),
    Case("P-EAGLE without the layout of speculators", _LLAMA, _eagle3("PEagleDraftModel", mask_token_id=255), "eagle3"),
    Case("layout of speculators, unknown algorithm", _LLAMA, _speculators("eagle9", "llama")),
    Case("layout of speculators around another layer", _LLAMA, _speculators("eagle3", "mistral")),
    # methods and arguments
    Case("no such method", _LLAMA, _EAGLE3, "eagle4"),
    Case("a method of other engines", _LLAMA, _EAGLE3, "standalone"),
    Case("an EAGLE-3 drafter run as EAGLE", _LLAMA, _EAGLE3, "eagle"),
    Case("no method named, and a path without a hint", _LLAMA, _EAGLE3, None, "--speculative-config.num_speculative_tokens 3"),
    Case("an unknown key", _LLAMA, _EAGLE3, None, _speculative(no_such_key=1)),
    Case("a key of older versions", _LLAMA, _EAGLE3, None, _speculative(disable_by_batch_size=4)),
    Case("no token to draft", _LLAMA, _EAGLE3, None, _speculative(num_speculative_tokens=0)),
    Case("a drafter cut otherwise", _LLAMA, _EAGLE3, None, f"--tensor-parallel-size 4 {_speculative(draft_tensor_parallel_size=2)}"),
    Case("heads that three devices cannot share", _LLAMA, _EAGLE3, None, "--tensor-parallel-size 3"),
)
