"""The EAGLE-3 training step written out: a loop over documents, slots and draft steps, one query at a time.

Nothing here is shared with the package: tensors come in by the names of the exported folder, and every formula stands
below. H target width, D drafter width, N query heads, G key heads, P head size, U draft vocabulary, V vocabulary.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PlainDocument:
    """A conversation: tokens, which of them the target wrote, its states (as [T, A, H] and [T, H]) and its best ids."""

    ids: list[int]
    written: list[bool]
    aux: Tensor
    last: Tensor
    argmax: list[int]


@dataclass(frozen=True)
class PlainShape:
    """What the tensors do not say of themselves."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    theta: float


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) × weight."""
    return x / torch.sqrt((x * x).mean() + eps) * weight


def rotate(x: Tensor, position: int, theta: float) -> Tensor:
    """RoPE of one head [P]: component i and component i + P/2 are a plane, turned by position × theta^(-2i/P)."""
    size = len(x)
    half = size // 2
    turned = [torch.zeros((), dtype=x.dtype)] * size
    for i in range(half):
        angle = position * theta ** (-2 * i / size)
        turned[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        turned[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return torch.stack(turned)


def cross_entropy(teacher: Tensor, scores: Tensor) -> Tensor:
    """-sum_u teacher_u log softmax(scores)_u."""
    return -(teacher * (scores - scores.logsumexp(0))).sum()


class PlainStep:
    """One drafter's numbers, and the loss over documents.

    Args:
        tensors: by the names of the exported folder.
        embedding: [V, D].
        draft_vocab: the target ids the drafter can say, ascending.
        target_head: [U, H] the target's lm_head rows for them.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], shape: PlainShape, embedding: Tensor, draft_vocab: Sequence[int], target_head: Tensor
    ):
        self._w, self._shape, self._embedding = tensors, shape, embedding
        self._draft_vocab, self._target_head = list(draft_vocab), target_head

    def loss(self, documents: Sequence[PlainDocument], num_steps: int, step_decay: float) -> Tensor:
        """Sum over steps s of step_decay^s × the mean of that step's losses over all supervised slots."""
        losses: list[list[Tensor]] = [[] for _ in range(num_steps)]
        for document in documents:
            self._add_losses(document, losses)
        total = torch.zeros((), dtype=self._embedding.dtype)
        for step, found in enumerate(losses):
            if found:
                total = total + step_decay**step * sum(found, start=torch.zeros(())) / len(found)
        return total

    def _add_losses(self, document: PlainDocument, losses: list[list[Tensor]]) -> None:
        length = len(document.ids)
        first_step: list[tuple[Tensor, Tensor]] = []  # (key, value) of each slot at step 0
        for slot in range(length - 1):
            hidden = self._w["fc.weight"] @ document.aux[slot].reshape(-1)
            own: list[tuple[Tensor, Tensor]] = []  # (key, value) of this slot at each step
            for step in range(len(losses)):
                position = slot + 1 + step  # where the token that the slot now holds stands
                if position >= length:
                    break
                reads = self._reads(document.ids[position], hidden)
                own.append(self._key_value(reads, slot + step))
                hidden = self._layer(hidden, reads, slot + step, first_step + own)
                if self._is_supervised(document, position):
                    teacher = torch.softmax(self._target_head @ document.last[position], dim=0)
                    losses[step].append(cross_entropy(teacher, self._scores(hidden)))
            first_step.append(own[0])

    def _is_supervised(self, document: PlainDocument, position: int) -> bool:
        if position + 1 >= len(document.ids):
            return False
        return document.written[position + 1] and document.argmax[position] in self._draft_vocab

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self._w[name], self._shape.eps)

    def _reads(self, token: int, hidden: Tensor) -> Tensor:
        """[2 D] what the projections read."""
        embedded = self._norm(self._embedding[token], "midlayer.input_layernorm.weight")
        return torch.cat([embedded, self._norm(hidden, "midlayer.hidden_norm.weight")])

    def _key_value(self, reads: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """([G, P] rotated key, [G, P] value)."""
        heads = (self._shape.num_kv_heads, self._shape.head_dim)
        key = (self._w["midlayer.self_attn.k_proj.weight"] @ reads).reshape(heads)
        value = (self._w["midlayer.self_attn.v_proj.weight"] @ reads).reshape(heads)
        return torch.stack([rotate(head, position, self._shape.theta) for head in key]), value

    def _layer(self, hidden: Tensor, reads: Tensor, position: int, seen: list[tuple[Tensor, Tensor]]) -> Tensor:
        """[D] the layer's output for one query that sees these keys and values."""
        n, g, p = self._shape.num_heads, self._shape.num_kv_heads, self._shape.head_dim
        query = (self._w["midlayer.self_attn.q_proj.weight"] @ reads).reshape(n, p)
        mixed = []
        for head in range(n):
            group = head // (n // g)
            turned = rotate(query[head], position, self._shape.theta)
            scores = torch.stack([turned @ key[group] / math.sqrt(p) for key, _ in seen])
            weights = torch.softmax(scores, dim=0)
            mixed.append(torch.stack([weight * value[group] for weight, (_, value) in zip(weights, seen, strict=True)]).sum(0))
        hidden = hidden + self._w["midlayer.self_attn.o_proj.weight"] @ torch.cat(mixed)
        return hidden + self._mlp(self._norm(hidden, "midlayer.post_attention_layernorm.weight"))

    def _mlp(self, x: Tensor) -> Tensor:
        gate = self._w["midlayer.mlp.gate_proj.weight"] @ x
        up = self._w["midlayer.mlp.up_proj.weight"] @ x
        return self._w["midlayer.mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)

    def _scores(self, output: Tensor) -> Tensor:
        return self._w["lm_head.weight"] @ self._norm(output, "norm.weight")
