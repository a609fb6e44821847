"""Cross-entropy of the drafter against the target's distribution over the draft vocabulary, in chunks of rows.

The gradient is made with the loss, chunk by chunk, so the [M, U] scores never stand in memory as a whole
(as in Liger-Kernel's fused linear cross-entropy).
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

_CHUNK_SCORES = 1 << 24  # scores held at once: 64 MiB in float32


class _DistillLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, head: Tensor, teacher: Tensor, teacher_row: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        needs_grad = any(ctx.needs_input_grad[:2])
        grad_x = torch.empty_like(x) if needs_grad else None
        grad_head = torch.zeros_like(head) if needs_grad else None
        losses, best = x.new_empty(len(x), dtype=torch.float32), torch.empty(len(x), dtype=torch.int64, device=x.device)
        rows = max(1, _CHUNK_SCORES // head.shape[0])
        for start in range(0, len(x), rows):
            part = slice(start, start + rows)
            log_probs = torch.log_softmax((x[part] @ head.T).float(), dim=-1)
            target = teacher[teacher_row[part]].float()
            losses[part] = -(target * log_probs).sum(-1)
            best[part] = log_probs.argmax(-1)
            if grad_x is not None and grad_head is not None:
                grad_scores = ((log_probs.exp_() - target) * weight[part, None]).to(x.dtype)
                grad_x[part] = grad_scores @ head
                grad_head.addmm_(grad_scores.T, x[part])
        ctx.save_for_backward(grad_x, grad_head)
        ctx.mark_non_differentiable(losses, best)
        return (losses * weight).sum(), losses, best

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        grad_x, grad_head = ctx.saved_tensors
        return grad_x * grad, grad_head * grad, None, None, None


def distill_loss(
    x: Float[Tensor, "M D"],
    head: Float[Tensor, "U D"],
    teacher: Float[Tensor, "R U"],
    teacher_row: Int[Tensor, "M"],
    weight: Float[Tensor, "M"],
) -> tuple[Float[Tensor, ""], Float[Tensor, "M"], Int[Tensor, "M"]]:
    """Weighted sum over rows of -sum_u teacher_u log softmax(x head^T)_u.

    Args:
        x: the drafter's normed outputs.
        head: the drafter's lm_head.
        teacher: probabilities over the draft vocabulary; several rows of x may share one.
        teacher_row: which teacher belongs to each row of x.
        weight: of each row in the sum.

    Returns:
        The sum, each row's loss, and each row's best draft id (both without gradient).
    """
    total, losses, best = _DistillLoss.apply(x, head, teacher, teacher_row, weight)  # type: ignore[no-untyped-call]
    return total, losses, best
