"""Training-time test: the loss of an EAGLE-3 drafter over S draft steps, its own outputs fed back."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from outrider.drafters.distill_loss import distill_loss
from outrider.drafters.eagle3 import Eagle3Drafter, unroll
from outrider.store.documents import Document


@dataclass(frozen=True)
class Batch:
    """Documents padded on the right to one length.

    Attributes:
        input_ids: [B, T].
        aux: [B, T, A, H].
        last: [B, T, H].
        argmax: [B, T] the target's own next token.
        answered: [B, T] position p whose next token x_{p+1} exists and was written by the target.
    """

    input_ids: Int[Tensor, "B T"]
    aux: Float[Tensor, "B T A H"]
    last: Float[Tensor, "B T H"]
    argmax: Int[Tensor, "B T"]
    answered: Bool[Tensor, "B T"]


def collate(documents: Sequence[Document], dtype: torch.dtype, device: torch.device) -> Batch:
    """Pad documents into one batch."""
    length = max(len(d) for d in documents)

    def padded(tensors: list[Tensor]) -> Tensor:
        stacked = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)
        return stacked.to(device, non_blocking=True)

    answered = torch.zeros(len(documents), length, dtype=torch.bool)
    for row, document in enumerate(documents):
        answered[row, : len(document) - 1] = document.loss_mask[1:]
    return Batch(
        input_ids=padded([d.input_ids.to(torch.int64) for d in documents]),
        aux=padded([d.aux for d in documents]).to(dtype),
        last=padded([d.last for d in documents]).to(dtype),
        argmax=padded([d.argmax.to(torch.int64) for d in documents]),
        answered=answered.to(device),
    )


@dataclass(frozen=True)
class StepFigures:
    """Sums over one batch, by draft step: add batches, then divide.

    Attributes:
        loss: [S] summed loss of supervised slots.
        num_supervised: [S] slots whose target token is in the draft vocabulary.
        num_correct: [S] slots where the drafter's best token is the target's.
        num_answered: [S] slots that predict an answer's token, in the draft vocabulary or not.
    """

    loss: Float[Tensor, "S"]
    num_supervised: Int[Tensor, "S"]
    num_correct: Int[Tensor, "S"]
    num_answered: Int[Tensor, "S"]

    def __add__(self, other: "StepFigures") -> "StepFigures":
        return StepFigures(
            self.loss + other.loss,
            self.num_supervised + other.num_supervised,
            self.num_correct + other.num_correct,
            self.num_answered + other.num_answered,
        )


def ttt_loss(
    drafter: Eagle3Drafter, batch: Batch, target_head: Float[Tensor, "U H"], num_steps: int, step_decay: float
) -> tuple[Float[Tensor, ""], StepFigures]:
    """Loss of one batch: sum over steps s of step_decay^s × the mean loss of the supervised slots.

    Slot t at step s is supervised by the target's distribution at p = t + 1 + s, over the draft vocabulary, if x_{p+1}
    is an answer's token and the target's own best token at p is in the draft vocabulary (EAGLE-3, section 3).

    Args:
        target_head: rows of the target's lm_head, one for each token of the draft vocabulary.
    """
    in_vocab = torch.zeros(drafter.config.vocab_size, dtype=torch.bool, device=batch.input_ids.device)
    in_vocab[drafter.draft_vocab] = True
    supervised = batch.answered & in_vocab[batch.argmax]
    slots, is_slot = _slots(batch.answered, num_steps)
    length = batch.input_ids.shape[1]

    def true_tokens(step: int, _: Tensor) -> Tensor:
        return batch.input_ids.gather(1, (slots + 1 + step).clamp(max=length - 1))

    next_ids = torch.cat([batch.input_ids[:, 1:], batch.input_ids[:, :1]], dim=1)
    outputs = unroll(drafter, batch.aux, next_ids, slots, num_steps, true_tokens)

    teacher, teacher_row = _teacher(batch.last, supervised, target_head)
    rows, teacher_rows, weights, steps, truth, num_answered = [], [], [], [], [], []
    for step, output in enumerate(outputs):
        position = slots + 1 + step
        exists = is_slot & (position < length)
        position = position.clamp(max=length - 1)
        is_taught = exists & supervised.gather(1, position)
        num_answered.append((exists & batch.answered.gather(1, position)).sum())
        rows.append(output[is_taught])
        teacher_rows.append(teacher_row.gather(1, position)[is_taught])
        truth.append(batch.argmax.gather(1, position)[is_taught])
        num = len(rows[-1])
        weights.append(torch.full((num,), step_decay**step / max(1, num), device=output.device))
        steps.append(torch.full((num,), step, device=output.device))
    loss, losses, best = distill_loss(
        drafter.norm(torch.cat(rows)), drafter.lm_head.weight, teacher, torch.cat(teacher_rows), torch.cat(weights)
    )
    step_of = torch.cat(steps)
    correct = (drafter.target_ids(best) == torch.cat(truth)).to(torch.int64)
    figures = StepFigures(
        loss=_sums(losses, step_of, num_steps),
        num_supervised=torch.bincount(step_of, minlength=num_steps),
        num_correct=_sums(correct, step_of, num_steps),
        num_answered=torch.stack(num_answered),
    )
    return loss, figures


def _sums(values: Tensor, step_of: Tensor, num_steps: int) -> Tensor:
    return torch.zeros(num_steps, dtype=values.dtype, device=values.device).index_add_(0, step_of, values)


def _slots(answered: Bool[Tensor, "B T"], num_steps: int) -> tuple[Int[Tensor, "B Q"], Bool[Tensor, "B Q"]]:
    """Slots t that predict an answer's token at some step, packed to the left; and which of the packed are real."""
    is_used = torch.zeros_like(answered)
    for step in range(num_steps):
        is_used[:, : -1 - step] |= answered[:, 1 + step :]
    counts = is_used.sum(1)
    order = torch.argsort((~is_used).to(torch.int8), dim=1, stable=True)[:, : int(counts.max())]
    is_slot = torch.arange(order.shape[1], device=order.device) < counts.unsqueeze(1)
    return torch.where(is_slot, order, 0), is_slot


@torch.no_grad()
def _teacher(
    last: Float[Tensor, "B T H"], supervised: Bool[Tensor, "B T"], target_head: Float[Tensor, "U H"]
) -> tuple[Float[Tensor, "R U"], Int[Tensor, "B T"]]:
    """The target's probabilities over the draft vocabulary at supervised positions, and the row of each position."""
    probabilities = torch.softmax((last[supervised] @ target_head.to(last.dtype).T).float(), dim=-1)
    row = torch.zeros(supervised.shape, dtype=torch.int64, device=last.device)
    row[supervised] = torch.arange(len(probabilities), device=last.device)
    return probabilities, row
