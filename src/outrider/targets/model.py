"""A target computed by transformers: logits, and the states that feed a drafter."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.cache_utils import Cache
from transformers.utils import logging as transformers_logging

from outrider.core.errors import InputError
from outrider.targets.cpu import GROUPED_ATTENTION, use_few_rows_linear
from outrider.targets.folder import TargetFolder


@dataclass(frozen=True)
class TargetStates:
    """What one pass over tokens gives.

    Attributes:
        aux: [B, T, A, H] the residual stream after each aux layer.
        last: [B, T, H] the last state, final norm applied: what the head multiplies.
    """

    aux: Float[Tensor, "B T A H"]
    last: Float[Tensor, "B T H"]


class TargetModel:
    """A target in this process.

    Args:
        folder: its folder.
        dtype: of weights and computation.
        device: where it runs.
        aux_layers: layers run (0 = embeddings, L = before the final norm) whose states are captured.
    """

    def __init__(self, folder: TargetFolder, dtype: torch.dtype, device: torch.device, aux_layers: Sequence[int] = ()) -> None:
        self.folder, self.device, self.dtype = folder, device, dtype
        self.aux_layers = tuple(aux_layers)
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        try:
            model = AutoModelForCausalLM.from_pretrained(
                folder.path, dtype=dtype, local_files_only=True, attn_implementation=GROUPED_ATTENTION if device.type == "cpu" else "sdpa"
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError("transformers cannot load the target", evidence=f"{folder.path}: {str(error).splitlines()[0]}") from None
        self.model = model.to(device).eval()
        use_few_rows_linear(self.model)
        self._decoder = self.model.get_decoder()
        parameters = inspect.signature(self._decoder.forward).parameters
        # renamed in transformers 5.20; the old name is to go in 5.40
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._captured: dict[int, Tensor] = {}
        self._hook(self._decoder.layers)

    def _hook(self, layers: nn.ModuleList) -> None:
        for k in self.aux_layers:
            if not 0 <= k <= len(layers):
                raise InputError(
                    f"aux layer {k} is outside the target", evidence=f"it has {len(layers)} layers", fix=f"choose from 0 to {len(layers)}"
                )
            if k < len(layers):
                layers[k].register_forward_pre_hook(self._keeper(k), with_kwargs=True)
            else:
                layers[k - 1].register_forward_hook(self._output_keeper(k))

    def _keeper(self, k: int) -> Any:
        def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._captured[k] = args[0] if args else kwargs["hidden_states"]

        return keep

    def _output_keeper(self, k: int) -> Any:
        def keep(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            self._captured[k] = output[0] if isinstance(output, tuple) else output

        return keep

    @torch.inference_mode()
    def states(
        self,
        ids: Int[Tensor, "B T"],
        *,
        cache: Cache | None = None,
        attention_mask: Int[Tensor, "B S"] | None = None,
        positions: Int[Tensor, "B T"] | None = None,
    ) -> TargetStates:
        """Run the decoder over `ids` (after what `cache` holds) and return the captured states."""
        arguments: dict[str, Any] = {"input_ids": ids, "attention_mask": attention_mask, "position_ids": positions}
        if cache is not None:
            arguments |= {self._cache_argument: cache, "use_cache": True}
        else:
            arguments["use_cache"] = False
        last: Tensor = self._decoder(**arguments).last_hidden_state
        if self.aux_layers:
            aux = torch.stack([self._captured[k] for k in self.aux_layers], dim=2)
            self._captured.clear()
        else:
            aux = last.new_empty(*last.shape[:2], 0, last.shape[2])
        return TargetStates(aux, last)

    @torch.inference_mode()
    def logits(self, last: Float[Tensor, "*batch H"]) -> Float[Tensor, "*batch V"]:
        """The head's scores for last states."""
        scores: Tensor = self.model.get_output_embeddings()(last)
        return scores
