"""What a family of targets has in common, as data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TargetFamily:
    """Where a family keeps what a drafter needs.

    Attributes:
        id: the plug-in's id.
        model_types: `model_type` values of the text config.
        embed: tensor names of the input embedding, the first one present is taken.
        lm_head: the same for the output head; absent in the checkpoint when tied to the embedding.
        final_norm: the same for the norm before the head.
        sglang_shift_depends_on_first_id: SGLang (0.5.13 on) adds one to explicit aux layer ids only if the first is 1
            (sglang#25454); it always adds one for other families.
    """

    id: str
    model_types: tuple[str, ...]
    embed: tuple[str, ...] = ("model.embed_tokens.weight", "language_model.model.embed_tokens.weight")
    lm_head: tuple[str, ...] = ("lm_head.weight", "language_model.lm_head.weight")
    final_norm: tuple[str, ...] = ("model.norm.weight", "language_model.model.norm.weight")
    sglang_shift_depends_on_first_id: bool = False

    def sglang_aux_layers(self, aux_layers: tuple[int, ...]) -> list[int] | None:
        """The ids from which SGLang's own shift makes `aux_layers` again; None if no such ids exist.

        SGLang captures after layer i + 1 (layers run) for id i; in DeepSeek classes it does so from 0.5.13 only if
        the first id is 1, and takes the ids literally otherwise.
        """
        if not self.sglang_shift_depends_on_first_id:
            shifted = [layer - 1 for layer in aux_layers]
            return shifted if min(shifted) >= 0 else None
        if aux_layers[0] == 2:
            return [layer - 1 for layer in aux_layers]
        return list(aux_layers) if aux_layers[0] != 1 else None
