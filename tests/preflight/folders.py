"""Folders of a small target and a drafter for it, written byte by byte: no torch, no engine."""

import json
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from outrider.core.results import Finding
from outrider.engines.facts import EngineFacts, LayerKey, Listed, Loading, Rewrite, RunnerFacts
from outrider.preflight.stage import all_checks, subject_of

V, U, H, L = 40, 24, 8, 12
TARGET: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": H,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": L,
    "vocab_size": V,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
DRAFTER: dict[str, Any] = TARGET | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "head_dim": 4,
    "num_hidden_layers": 1,
    "draft_vocab_size": U,
    "eagle_aux_hidden_state_layer_ids": [2, 6, 9],
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]},
}
_ITEM_BYTES = {"F32": 4, "I64": 8, "BOOL": 1}
Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


def zeros(dtype: str, *shape: int) -> tuple[str, tuple[int, ...], bytes]:
    """A tensor of zeros."""
    num_bytes = _ITEM_BYTES[dtype]
    for size in shape:
        num_bytes *= size
    return dtype, shape, bytes(num_bytes)


def d2t_of(ids: list[int]) -> tuple[str, tuple[int, ...], bytes]:
    """The map that sends draft token i to ids[i]."""
    return "I64", (len(ids),), array("q", [target - draft for draft, target in enumerate(ids)]).tobytes()


def t2d_of(ids: list[int], size: int = V) -> tuple[str, tuple[int, ...], bytes]:
    """The mask of those ids."""
    return "BOOL", (size,), bytes(int(target in ids) for target in range(size))


def draft_ids() -> list[int]:
    """The target's ids that the drafter can say: the even ones, then the odd ones from 33 on."""
    return sorted([*range(0, V, 2), 33, 35, 37, 39])


def drafter_tensors() -> Tensors:
    """What the drafter's config asks for."""
    ids = draft_ids()
    assert len(ids) == U
    layer = {
        "hidden_norm.weight": (H,),
        "input_layernorm.weight": (H,),
        "post_attention_layernorm.weight": (H,),
        "self_attn.q_proj.weight": (8, 2 * H),
        "self_attn.k_proj.weight": (4, 2 * H),
        "self_attn.v_proj.weight": (4, 2 * H),
        "self_attn.o_proj.weight": (H, 8),
        "mlp.gate_proj.weight": (16, H),
        "mlp.up_proj.weight": (16, H),
        "mlp.down_proj.weight": (H, 16),
    }
    outer = {"fc.weight": (H, 3 * H), "norm.weight": (H,), "lm_head.weight": (U, H)}
    floats = outer | {f"midlayer.{name}": shape for name, shape in layer.items()}
    return {name: zeros("F32", *shape) for name, shape in floats.items()} | {"d2t": d2t_of(ids), "t2d": t2d_of(ids)}


def write_tensors(path: Path, tensors: Tensors) -> None:
    """Write a safetensors file."""
    header: dict[str, Any] = {}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + len(data)]}
        position += len(data)
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + b"".join(data for _, _, data in tensors.values()))


def write_target(folder: Path, config: Mapping[str, Any] = TARGET) -> Path:
    """A target with embedding and head, a tokenizer and a chat template."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    write_tensors(folder / "model.safetensors", {name: zeros("F32", V, H) for name in ("model.embed_tokens.weight", "lm_head.weight")})
    return folder


def write_drafter(folder: Path, config: Mapping[str, Any] = DRAFTER, tensors: Tensors | None = None) -> Path:
    """A sound drafter, unless the arguments say otherwise."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_tensors(folder / "model.safetensors", drafter_tensors() if tensors is None else tensors)
    return folder


_TOP, _NESTED = "eagle_aux_hidden_state_layer_ids", "eagle_config.eagle_aux_hidden_state_layer_ids"
_READ = RunnerFacts(
    layer_keys=(LayerKey(_TOP, 0), LayerKey(_NESTED, 0)),
    layer_keys_evidence="vllm/v1/worker/gpu_model_runner.py:5190",
    image_token=None,
    drafter_classes=None,
    drafter_classes_evidence="",
    interface_error="",
    pipeline="none",
)
LOADING = Loading(
    layer_names=("midlayer", "layers.0"),
    reads_model_prefix=False,
    missing="silent",
    unexpected="refused",
    shares_head="absent",
    embedding="own",
    num_layers="many",
    needs_draft_vocab_size=False,
    evidence="vllm/model_executor/models/llama_eagle3.py:420",
)
_REGISTERED = ("Eagle3LlamaForCausalLM", "Eagle3DeepseekV2ForCausalLM", "EagleLlamaForCausalLM", "DeepSeekMTPModel", "DFlashDraftModel")
VLLM = EngineFacts(
    engine="vllm",
    version="0.32.0",
    source="site-packages/vllm: config/speculative.py:10",
    runner="V1",
    target_types=None,
    drafters={"LlamaForCausalLMEagle3": "Eagle3LlamaForCausalLM", "Eagle3DeepseekV2ForCausalLM": "Eagle3DeepseekV2ForCausalLM"},
    drafters_evidence="vllm/model_executor/models/registry.py:625",
    targets={name: name for name in ("LlamaForCausalLM", "OlderForCausalLM", "TransformersForCausalLM")},
    interface_classes=frozenset({"LlamaForCausalLM", "TransformersForCausalLM"}),
    interface_evidence="vllm/model_executor/models/interfaces.py:1675 SupportsEagle3",
    refuses_full_d2t=True,
    drops_duplicate_layers=True,
    loading=LOADING,
    runners={"V1": _READ},
    methods=("ngram", "eagle", "eagle3", "deepseek_mtp", "mtp", "dflash"),
    methods_evidence="vllm/config/speculative.py:69",
    speculative_keys=("method", "model", "num_speculative_tokens", "draft_tensor_parallel_size", "parallel_drafting"),
    registered={name: name for name in _REGISTERED}
    | {"LlamaForCausalLMEagle3": "Eagle3LlamaForCausalLM", "PeagleLlamaForCausalLM": "Eagle3LlamaForCausalLM"},
    rewrites=(
        Rewrite(("deepseek_v3", "deepseek_v32"), (), "", "deepseek_mtp", "vllm/config/speculative.py:200"),
        Rewrite(("deepseek_mtp",), (), "DeepSeekMTPModel", "", "vllm/config/speculative.py:206"),
        Rewrite((), ("MiMoForCausalLM",), "MiMoMTPModel", "mimo_mtp", "vllm/config/speculative.py:220"),
    ),
    config_types=("deepseek_v2", "kimi_k2", "kimi_k25", "speculators"),
    multimodal_classes=frozenset({"LookingForConditionalGeneration"}),
    drafter_keys=("attention_bias", "fc_norm", "norm_before_fc", "norm_before_residual", "norm_output", "num_aux_hidden_states"),
)
REFERENCE = replace(
    VLLM,
    engine="reference",
    version="0.1.0",
    runner=None,
    drafters={"LlamaForCausalLMEagle3": "Eagle3Drafter"},
    targets={"llama": "llama"},
    interface_classes=None,
    refuses_full_d2t=False,
    drops_duplicate_layers=False,
    methods=("eagle3",),
    registered={},
    rewrites=(),
    config_types=(),
    loading=replace(LOADING, reads_model_prefix=True, missing="refused", shares_head="never", num_layers="one"),
    runners={"": replace(_READ, layer_keys=(LayerKey(_TOP, 0), LayerKey(_NESTED, 1)))},
    drafter_keys=(),
    default_layers=(),
)
LISTED = replace(VLLM, version="0.16.0", target_types=Listed(("llama", "qwen"), "vllm/config/speculative.py:689"))


def finding_of(
    check_id: str,
    target: Path,
    drafter: Path | Mapping[str, Any],
    facts: EngineFacts = VLLM,
    arguments: Sequence[str] = (),
    method: str | None = None,
) -> Finding:
    """What one check finds; a finding always names its evidence."""
    (check,) = [check for check in all_checks() if check.id == check_id]
    found = check.run(subject_of(target, drafter, facts, arguments, method))
    assert found.id == check_id and found.title and found.evidence
    assert found.verdict in ("pass", "unknown") or found.effect
    assert found.verdict != "fail" or found.fix
    return found
