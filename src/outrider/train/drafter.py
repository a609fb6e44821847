"""The drafter a run trains: its shape from the target, its numbers fresh or from an existing drafter."""

from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor, nn

from outrider.core.errors import InputError
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.drafters.loading import load_drafter
from outrider.drafters.shape import shape_for
from outrider.formats.checkpoint import DrafterConfig
from outrider.store.manifest import Manifest
from outrider.targets.folder import TargetFolder
from outrider.targets.weights import embedding, final_norm, lm_head_rows


def config_for(target: TargetFolder, aux_layers: tuple[int, ...], draft_vocab_size: int, intermediate_size: int | None) -> DrafterConfig:
    """The drafter that is to be trained: a Llama-style layer of the target's width."""
    return shape_for(target.text_config, target.eos_token_ids, aux_layers, draft_vocab_size, intermediate_size)


def fresh(target: TargetFolder, config: DrafterConfig, draft_vocab: Int[Tensor, "U"] | None, seed: int) -> Eagle3Drafter:
    """A drafter that starts as near the target as it can: the target's head and final norm, and `fc` passing the last
    aux state on; the layer's linears are drawn with a spread of 1 / sqrt(width), its two outputs start at a tenth."""
    generator = torch.Generator().manual_seed(seed)
    drafter = Eagle3Drafter(config, embedding(target), draft_vocab)
    for module in drafter.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5, generator=generator)
    with torch.no_grad():
        drafter.midlayer.self_attn.o_proj.weight.mul_(0.1)
        drafter.midlayer.mlp.down_proj.weight.mul_(0.1)
        drafter.fc.weight.mul_(0.1)
        width = min(config.hidden_size, config.target_hidden_size)
        last = (len(config.aux_layers) - 1) * config.target_hidden_size
        drafter.fc.weight[:width, last : last + width] += torch.eye(width)
        drafter.norm.weight.copy_(final_norm(target))
        drafter.lm_head.weight.copy_(lm_head_rows(target, drafter.draft_vocab))
    return drafter


def warm(folder: Path, target: TargetFolder, manifest: Manifest) -> Eagle3Drafter:
    """An existing drafter as the start; its draft vocabulary is kept.

    Raises:
        InputError: it is for another target, or was fed from other layers than the store holds.
    """
    drafter = load_drafter(folder, target)
    fed_from = drafter.config.aux_layers
    if fed_from != manifest.aux_layers:
        raise InputError(
            "the drafter to start from was fed from other layers than the store holds",
            evidence=f"{folder}: {list(fed_from)}; store: {list(manifest.aux_layers)}",
            fix=f"set extract.aux_layers = {list(fed_from)} and extract again",
        )
    return drafter.train()
