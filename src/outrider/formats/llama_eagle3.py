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
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from outrider.core.errors import InputError
from outrider.core.files import read_json, write_atomically, write_json
from outrider.formats.checkpoint import DrafterCheckpoint, DrafterConfig, Format
from outrider.formats.llama_eagle3_layout import config_from, config_json, expected_shapes, our_name, recognises
from outrider.formats.safetensors_file import SINGLE_FILE, read_folder_headers


def _read(folder: Path) -> DrafterCheckpoint:
    raw = read_json(folder / "config.json", "the drafter's config")
    config = config_from(raw, folder / "config.json")
    headers = read_folder_headers(folder)
    try:
        stored: dict[str, Tensor] = {}
        for file in sorted({entry.file for entry in headers.values()}):
            stored.update(load_file(file))
    except SafetensorError as error:
        raise InputError("the drafter's weights cannot be read", evidence=f"{folder}: {error}") from None
    tensors = {our_name(name): tensor for name, tensor in stored.items()}
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
    """Options: layer_names ("midlayer" or "layers.0"), dtype (torch dtype), sglang_aux_layers (list of int, or None)."""
    prefix = options["layer_names"] + "."
    tensors: dict[str, Tensor] = {}
    for name, tensor in checkpoint.tensors.items():
        stored = prefix + name.removeprefix("midlayer.") if name.startswith("midlayer.") else name
        tensors[stored] = tensor.detach().to("cpu", options["dtype"]).contiguous()
    if checkpoint.draft_vocab is not None:
        ids = checkpoint.draft_vocab.to("cpu", torch.int64)
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(checkpoint.config.vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
    dtype = str(options["dtype"]).removeprefix("torch.")
    config = config_json(checkpoint.config, dtype, options["sglang_aux_layers"])
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


FORMAT = Format(id="llama_eagle3", recognises=recognises, read=_read, write=_write)
