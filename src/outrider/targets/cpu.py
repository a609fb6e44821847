"""Faster arithmetic on a CPU, each path with its plain counterpart in the tests: the numbers stay the same to rounding."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

GROUPED_ATTENTION = "outrider_grouped"
_FEWEST_ROWS, _MOST_ROWS = 2, 24


class FewRowsLinear(nn.Linear):
    """A float32 linear layer for decoding, where few rows meet a large weight.

    BLAS reads the weight once in `weight @ x^T` and several times in `x @ weight^T`: four rows took 25 ms instead of 65
    over one pass of SmolLM2-135M on two cores, and one row, padded to two, 20 ms instead of 45.
    """

    def forward(self, input: Float[Tensor, "*batch X"]) -> Float[Tensor, "*batch Y"]:
        rows = input.reshape(-1, self.in_features)
        number = len(rows)
        if number > _MOST_ROWS or torch.is_grad_enabled():
            return super().forward(input)
        if number < _FEWEST_ROWS:
            rows = F.pad(rows, (0, 0, 0, _FEWEST_ROWS - number))
        columns = torch.mm(self.weight, rows.t())[:, :number]
        if self.bias is not None:
            columns = columns + self.bias.unsqueeze(1)
        return columns.t().reshape(*input.shape[:-1], self.out_features)


def use_few_rows_linear(module: nn.Module) -> None:
    """Let every float32 linear layer of `module` that is on the CPU take that path; bfloat16 has good kernels already."""
    for layer in module.modules():
        if type(layer) is nn.Linear and layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu":
            layer.__class__ = FewRowsLinear


def _grouped_attention(
    module: nn.Module,
    query: Float[Tensor, "B N T P"],
    key: Float[Tensor, "B G S P"],
    value: Float[Tensor, "B G S P"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Float[Tensor, "B T N P"], None]:
    """Attention without repeating keys for grouped queries: on a CPU that copy costs more than the products."""
    b, n, t, p = query.shape
    g, s = key.shape[1], key.shape[2]
    scale = p**-0.5 if scaling is None else scaling
    scores = torch.matmul((query * scale).reshape(b, g, (n // g) * t, p), key.transpose(-1, -2)).view(b, n, t, s)
    if attention_mask is None and t > 1:
        attention_mask = torch.ones(t, s, dtype=torch.bool, device=query.device).tril(s - t)
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, float("-inf"))
    elif attention_mask is not None:
        scores = scores + attention_mask
    # a row that sees nothing (padding on the left) is all -inf: its softmax is NaN, which must not reach real rows
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).nan_to_num(0.0).to(value.dtype)
    mixed = torch.matmul(weights.view(b, g, (n // g) * t, s), value).view(b, n, t, -1)
    return mixed.transpose(1, 2).contiguous(), None


AttentionInterface.register(GROUPED_ATTENTION, _grouped_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(GROUPED_ATTENTION, sdpa_mask)
