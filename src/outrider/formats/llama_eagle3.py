"""The EAGLE-3 folder of Llama-style drafters: `LlamaForCausalLMEagle3`, read by vLLM (0.10.2 on) and SGLang.

Conventions of this border, and only here:
- `d2t` holds offsets (target id - draft id), `t2d` marks the target ids in the draft vocabulary; both are absent when
  the draft vocabulary is the whole one (vLLM 0.30 on refuses them then).
- the layer is called `midlayer` (every vLLM and SGLang reads it) or `layers.0` (SGLang up to 0.5.11 skips it silently).
- aux layers stand twice: at the top level as layers run (vLLM, llama.cpp), and in `eagle_config` as the numbers to
  which SGLang adds its shift.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from outrider.core.errors import InputError
from outrider.core.files import read_json, write_atomically, write_json
from outrider.formats.checkpoint import DrafterCheckpoint, DrafterConfig, Format
from outrider.formats.safetensors_file import SINGLE_FILE, read_folder_headers

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
LAYER_TENSORS = (
    "hidden_norm.weight",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
)
OUTER_TENSORS = ("fc.weight", "norm.weight", "lm_head.weight")
_LAYER_PREFIXES = ("midlayer.", "layers.0.", "model.midlayer.", "model.layers.0.")


def _recognises(config: dict[str, Any]) -> bool:
    named = config.get("architectures")
    return isinstance(named, list) and any(name in ARCHITECTURES for name in named)


def expected_shapes(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor a drafter of this shape has, by our names."""
    d, q, kv = config.hidden_size, config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    mlp = config.intermediate_size
    layer = dict(
        zip(LAYER_TENSORS, ((d,), (d,), (d,), (q, 2 * d), (kv, 2 * d), (kv, 2 * d), (d, q), (mlp, d), (mlp, d), (d, mlp)), strict=True)
    )
    return {
        "fc.weight": (d, len(config.aux_layers) * config.target_hidden_size),
        "norm.weight": (d,),
        "lm_head.weight": (config.draft_vocab_size, d),
        **{f"midlayer.{name}": shape for name, shape in layer.items()},
    }


def _read(folder: Path) -> DrafterCheckpoint:
    raw = read_json(folder / "config.json", "the drafter's config")
    config = _config_from(raw, folder)
    headers = read_folder_headers(folder)
    try:
        stored: dict[str, Tensor] = {}
        for file in sorted({entry.file for entry in headers.values()}):
            stored.update(load_file(file))
    except SafetensorError as error:
        raise InputError("the drafter's weights cannot be read", evidence=f"{folder}: {error}") from None
    tensors = {_our_name(name): tensor for name, tensor in stored.items()}
    draft_vocab = _vocab_from(tensors.pop("d2t", None), tensors.pop("t2d", None), config, folder)
    wanted = expected_shapes(config)
    for name, shape in wanted.items():
        if name not in tensors:
            raise InputError(f"the drafter lacks {name}", evidence=str(folder), effect="engines would leave it random without a word")
        if tuple(tensors[name].shape) != shape:
            raise InputError(f"{name} has shape {list(tensors[name].shape)}, the config asks for {list(shape)}", evidence=str(folder))
    unknown = sorted(set(tensors) - set(wanted) - {"embed_tokens.weight"})
    if unknown:
        raise InputError(f"the drafter has tensors that this layout does not know: {', '.join(unknown[:5])}", evidence=str(folder))
    return DrafterCheckpoint(config, tensors, draft_vocab)


def _our_name(name: str) -> str:
    for prefix in _LAYER_PREFIXES:
        if name.startswith(prefix):
            return "midlayer." + name.removeprefix(prefix)
    return name.removeprefix("model.")


def _config_from(raw: dict[str, Any], folder: Path) -> DrafterConfig:
    if not isinstance(raw, dict) or not _recognises(raw):
        raise InputError(
            f"{folder} is not a Llama-style EAGLE-3 drafter",
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
            aux_layers=tuple(_aux_layers(raw, folder)),
            bos_token_id=raw.get("bos_token_id"),
            eos_token_id=raw.get("eos_token_id"),
        )
    except KeyError as error:
        raise InputError(f"the drafter's config lacks {error.args[0]}", evidence=str(folder / "config.json")) from None
    except (ValidationError, ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise InputError("the drafter's config has a wrong value", evidence=f"{folder / 'config.json'}: {error}") from None


def _aux_layers(raw: dict[str, Any], folder: Path) -> list[int]:
    """The layers as layers run: the top level is literal; a nested list alone is SGLang's, which adds one."""
    if raw.get("eagle_aux_hidden_state_layer_ids"):
        return list(raw["eagle_aux_hidden_state_layer_ids"])
    nested = (raw.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if nested:
        return [layer + 1 for layer in nested]
    raise InputError(
        "the drafter does not say which target layers feed it",
        evidence=f"{folder / 'config.json'}: no eagle_aux_hidden_state_layer_ids",
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


def _vocab_from(d2t: Tensor | None, t2d: Tensor | None, config: DrafterConfig, folder: Path) -> Tensor | None:
    u, v = config.draft_vocab_size, config.vocab_size
    if d2t is None:
        if u != v:
            raise InputError(
                f"the draft vocabulary has {u} of {v} tokens but there is no d2t",
                evidence=str(folder),
                effect="every draft would name a wrong token",
            )
        return None
    if d2t.shape != (u,):
        raise InputError(f"d2t has shape {list(d2t.shape)}, the config asks for [{u}]", evidence=str(folder))
    ids = d2t.to(torch.int64) + torch.arange(u)
    if ids.min() < 0 or ids.max() >= v or (ids[1:] <= ids[:-1]).any():
        raise InputError(
            "d2t does not hold ascending offsets into the target's vocabulary",
            evidence=str(folder),
            fix="d2t[i] must be the target id of draft token i, less i",
        )
    if t2d is not None and (t2d.shape != (v,) or not torch.equal(t2d.bool().nonzero().flatten(), ids)):
        raise InputError("d2t and t2d name different tokens", evidence=str(folder))
    return None if u == v else ids


def _write(checkpoint: DrafterCheckpoint, folder: Path, options: dict[str, Any]) -> None:
    """Options: layer_names ("midlayer" or "layers.0"), dtype (torch dtype), sglang_aux_layers (list of int)."""
    prefix = options["layer_names"] + "."
    tensors: dict[str, Tensor] = {}
    for name, tensor in checkpoint.tensors.items():
        stored = prefix + name.removeprefix("midlayer.") if name.startswith("midlayer.") else name
        tensors[stored] = tensor.detach().to("cpu", options["dtype"]).contiguous()
    if checkpoint.draft_vocab is not None:
        ids = checkpoint.draft_vocab.to("cpu", torch.int64)
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(checkpoint.config.vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
    config = config_json(checkpoint.config, options["dtype"], options["sglang_aux_layers"])
    aside = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        write_atomically(aside / SINGLE_FILE, save(tensors, metadata={"format": "pt"}))
        write_json(aside / "config.json", config)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)


def config_json(config: DrafterConfig, dtype: torch.dtype, sglang_aux_layers: list[int]) -> dict[str, Any]:
    """The config.json that vLLM and SGLang read."""
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
        "torch_dtype": str(dtype).removeprefix("torch."),
        "eagle_aux_hidden_state_layer_ids": list(config.aux_layers),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": sglang_aux_layers, "use_aux_hidden_state": True},
    }
    if config.target_hidden_size != config.hidden_size:  # SGLang takes its mere presence for "different"
        written["target_hidden_size"] = config.target_hidden_size
    written |= {key: value for key in ("bos_token_id", "eos_token_id") if (value := getattr(config, key)) is not None}
    return written


FORMAT = Format(id="llama_eagle3", recognises=_recognises, read=_read, write=_write)
