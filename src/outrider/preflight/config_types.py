"""Which model_types of a config.json can be read without remote code."""

from collections.abc import Mapping
from typing import Final, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from outrider.engines.facts import EngineFacts

# transformers → what its AutoConfig has from there on, as far as it matters to us; read in the wheels of 4.51.1, 4.55.2,
# 4.56.0 and 4.57.6, all of it still there in 5.24.0. No engine of ours asks for an older one than the first
_IN_TRANSFORMERS: Final[Mapping[Version, str]] = {
    Version("4.51.1"): """
        aria bloom chameleon cohere cohere2 dbrx deepseek_v3 falcon gemma gemma2 gemma3 gemma3_text glm gpt2 gpt_bigcode
        gpt_neox granite granitemoe idefics3 jamba llama llama4 llama4_text llava llava_next llava_onevision mamba mamba2
        mistral mistral3 mixtral mpt nemotron olmo olmo2 olmoe opt paligemma persimmon phi phi3 phi4_multimodal pixtral
        qwen2 qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3 qwen3_moe smolvlm stablelm starcoder2
    """,
    Version("4.55.2"): """
        arcee deepseek_v2 dots1 ernie4_5 ernie4_5_moe exaone4 falcon_h1 gemma3n glm4 glm4_moe glm4v gpt_oss
        granitemoehybrid minimax qwen2_5_omni smollm3
    """,
    Version("4.56"): "apertus glm4v_moe hunyuan_v1_dense hunyuan_v1_moe seed_oss",
    Version("4.57"): "longcat_flash olmo3 qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe",
}
# what none of them has, nor 5.24.0
_NOT_IN_TRANSFORMERS: Final = frozenset({"kimi_k2", "kimi_vl", "internvl_chat", "minicpmv"})
_FIRST: Final = min(_IN_TRANSFORMERS)


def read_without_remote_code(facts: EngineFacts, model_type: object) -> Literal["yes", "no", "untold"]:
    """Whether the engine brings the config's class itself, or its transformers surely has or lacks it."""
    if not isinstance(model_type, str):
        return "untold"
    oldest = _oldest_transformers(facts)
    if model_type in facts.config_types or any(model_type in types.split() for first, types in _IN_TRANSFORMERS.items() if first <= oldest):
        return "yes"
    return "no" if model_type in _NOT_IN_TRANSFORMERS and facts.config_types else "untold"


def _oldest_transformers(facts: EngineFacts) -> Version:
    """The oldest that the engine's metadata allows."""
    try:
        asked = SpecifierSet(facts.requires.get("transformers", ""))
    except InvalidSpecifier:
        return _FIRST
    return max((Version(one.version) for one in asked if one.operator in (">=", "==", "~=") and "*" not in one.version), default=_FIRST)
