"""A drafter on its way to or from disk, free of any layout's conventions."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict

from outrider.core.results import Frozen

if TYPE_CHECKING:
    from torch import Tensor


class DrafterConfig(Frozen):
    """The shape of an EAGLE-3 drafter in our conventions.

    Attributes:
        hidden_size: D, the drafter's width.
        target_hidden_size: H, the width of a target state.
        vocab_size: V.
        draft_vocab_size: U.
        aux_layers: target layers whose states feed `fc`, counted as layers run (0 = embeddings).
        rope_scaling: the scaling dictionary in the `rope_type` spelling, or None for plain RoPE.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None = None
    max_position_embeddings: int
    aux_layers: tuple[int, ...]
    bos_token_id: int | None = None
    eos_token_id: int | None = None


@dataclass(frozen=True)
class DrafterCheckpoint:
    """A drafter's numbers.

    Attributes:
        tensors: by our names: fc, midlayer.*, norm, lm_head; embed_tokens only if it is the drafter's own.
        draft_vocab: [U] the target ids the drafter can say, ascending; None when it is the whole vocabulary.
    """

    config: DrafterConfig
    tensors: "dict[str, Tensor]"
    draft_vocab: "Tensor | None"


@dataclass(frozen=True)
class Format:
    """A layout on disk.

    Attributes:
        id: the plug-in's id.
        recognises: whether a folder's config.json is of this layout.
        read: folder → checkpoint. Raises InputError.
        write: checkpoint, folder, options of this layout → None. The folder appears whole or not at all.
    """

    id: str
    recognises: Callable[[dict[str, Any]], bool]
    read: Callable[[Path], DrafterCheckpoint]
    write: Callable[[DrafterCheckpoint, Path, dict[str, Any]], None]
