"""A training checkpoint: the drafter in float32 with all that training needs to go on from it, in one file.

It also carries the drafter's record: what it was trained on, for those who load, check and compare it later.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.core.errors import InputError
from outrider.core.files import write_atomically
from outrider.formats.checkpoint import DrafterCheckpoint, DrafterConfig


@dataclass(frozen=True)
class TrainingCheckpoint:
    """A drafter in training.

    Attributes:
        step: optimiser steps done.
        optimizer: the optimiser's state dict.
        identity: digest of data, layers, template, vocabulary and settings; a run goes on from its own checkpoints only.
        record: target_digest, template_hash, aux_layers, final_norm_applied, num_trained_tokens.
    """

    drafter: DrafterCheckpoint
    step: int
    optimizer: dict[str, Any]
    identity: str
    record: dict[str, Any]


def save_training(path: Path, checkpoint: TrainingCheckpoint) -> None:
    """Write a checkpoint, whole or not at all."""
    drafter = checkpoint.drafter
    buffer = io.BytesIO()
    torch.save(
        {
            "config": drafter.config.model_dump(),
            "tensors": {name: tensor.cpu() for name, tensor in drafter.tensors.items()},
            "draft_vocab": None if drafter.draft_vocab is None else drafter.draft_vocab.cpu(),
            "step": checkpoint.step,
            "optimizer": checkpoint.optimizer,
            "identity": checkpoint.identity,
            "record": checkpoint.record,
        },
        buffer,
    )
    write_atomically(path, buffer.getvalue())


def load_training(path: Path) -> TrainingCheckpoint:
    """Read a checkpoint.

    Raises:
        InputError: missing, damaged, or not one of ours.
    """
    try:
        raw = torch.load(path, map_location="cpu", weights_only=True)
        draft_vocab: Tensor | None = raw["draft_vocab"]
        drafter = DrafterCheckpoint(DrafterConfig.model_validate(raw["config"]), raw["tensors"], draft_vocab)
        return TrainingCheckpoint(drafter, raw["step"], raw["optimizer"], raw["identity"], raw["record"])
    except FileNotFoundError:
        raise InputError("the training checkpoint is missing", evidence=str(path), fix="run train first") from None
    except (RuntimeError, EOFError, KeyError, ValueError, TypeError, OSError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            "the training checkpoint cannot be read", evidence=f"{path}: {first_line}", fix="remove it and train again"
        ) from None
