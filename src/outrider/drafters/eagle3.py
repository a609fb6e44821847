"""EAGLE-3 (Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test").

One decoder layer over the pair (embedding of the next token, fused target state). Alignment, everywhere in Outrider:
slot t holds hidden[t] (the target's state after reading x_0..x_t) and the embedding of x_{t+1}, sits at RoPE position t,
and predicts x_{t+2}. At draft step s slot t holds the token x_{t+1+s}, position t + s, and the drafter's own previous
output in place of the target's state; it attends to the step-0 slots up to t and to its own steps 1..s.

Shapes: B batch, T tokens, Q queried slots, A aux layers, H target width, D drafter width, U draft vocabulary, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from outrider.drafters.algorithm import Algorithm
from outrider.drafters.shape import default_aux_layers as default_aux_layers
from outrider.formats.checkpoint import DrafterCheckpoint, DrafterConfig


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        normed = F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps)
        return normed.to(x.dtype)


class Attention(nn.Module):
    """The projections of grouped-query attention over inputs of width 2 D."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.q_proj = nn.Linear(2 * config.hidden_size, self.num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, self.num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, self.num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, config.hidden_size, bias=False)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        mixed: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return mixed


class Layer(nn.Module):
    """The decoder layer's parameters."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.mlp = MLP(config)


@dataclass
class KeysValues:
    """Rotated keys and values of slots: [B, G, T, P] each."""

    keys: Float[Tensor, "B G T P"]
    values: Float[Tensor, "B G T P"]

    def append(self, other: "KeysValues") -> "KeysValues":
        """These slots, then the other's."""
        return KeysValues(torch.cat([self.keys, other.keys], 2), torch.cat([self.values, other.values], 2))


class Eagle3Drafter(nn.Module):
    """The drafter. Its parameters are named as in the exported folder (`midlayer`).

    Args:
        config: its shape.
        embed_tokens: [V, D] the target's input embedding; frozen, and not part of the checkpoint.
        draft_vocab: [U] target ids, ascending; None for the whole vocabulary.
    """

    embed_tokens: Tensor
    draft_vocab: Tensor

    def __init__(self, config: DrafterConfig, embed_tokens: Float[Tensor, "V D"], draft_vocab: Int[Tensor, "U"] | None) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.aux_layers) * config.target_hidden_size, config.hidden_size, bias=False)
        self.midlayer = Layer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("embed_tokens", embed_tokens, persistent=False)
        vocab = torch.arange(config.vocab_size) if draft_vocab is None else draft_vocab
        self.register_buffer("draft_vocab", vocab, persistent=False)
        # in a tuple, so that a cast of the module leaves its float32 frequencies alone
        self._rotary = (LlamaRotaryEmbedding(_rotary_config(config)),)

    @classmethod
    def from_checkpoint(cls, checkpoint: DrafterCheckpoint, target_embedding: Float[Tensor, "V D"]) -> "Eagle3Drafter":
        """A drafter with a checkpoint's numbers, float32; its own embedding is used where it has one."""
        tensors = {name: tensor.float() for name, tensor in checkpoint.tensors.items()}
        drafter = cls(checkpoint.config, tensors.pop("embed_tokens.weight", target_embedding), checkpoint.draft_vocab)
        drafter.load_state_dict(tensors)
        return drafter

    def checkpoint(self) -> DrafterCheckpoint:
        """The drafter's numbers, for a format to write."""
        whole = len(self.draft_vocab) == self.config.vocab_size
        return DrafterCheckpoint(self.config, {k: v.detach() for k, v in self.state_dict().items()}, None if whole else self.draft_vocab)

    def fuse(self, aux: Float[Tensor, "B T A H"]) -> Float[Tensor, "B T D"]:
        """The target's aux states as one state of the drafter's width."""
        fused: Tensor = self.fc(aux.flatten(2))
        return fused

    def inputs(self, hidden: Float[Tensor, "B T D"], ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T DD"]:
        """What the projections read: [norm(embedding), norm(state)]."""
        embedded = self.embed_tokens[ids].to(hidden.dtype)
        return torch.cat([self.midlayer.input_layernorm(embedded), self.midlayer.hidden_norm(hidden)], dim=-1)

    def keys_values(self, inputs: Float[Tensor, "B T DD"], positions: Int[Tensor, "B T"]) -> KeysValues:
        """Keys (rotated to `positions`) and values."""
        attention = self.midlayer.self_attn
        shape = (*inputs.shape[:2], attention.num_kv_heads, attention.head_dim)
        keys = attention.k_proj(inputs).view(shape).transpose(1, 2)
        values = attention.v_proj(inputs).view(shape).transpose(1, 2)
        return KeysValues(self._rotated(keys, positions), values)

    def queries(self, inputs: Float[Tensor, "B Q DD"], positions: Int[Tensor, "B Q"]) -> Float[Tensor, "B N Q P"]:
        """Queries, rotated to `positions`."""
        attention = self.midlayer.self_attn
        shape = (*inputs.shape[:2], attention.num_heads, attention.head_dim)
        return self._rotated(attention.q_proj(inputs).view(shape).transpose(1, 2), positions)

    def finish_layer(self, residual: Float[Tensor, "B Q D"], mixed: Float[Tensor, "B N Q P"]) -> Float[Tensor, "B Q D"]:
        """From attention's result to the layer's output, before the final norm: also the next step's state."""
        hidden = residual + self.midlayer.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
        output: Tensor = hidden + self.midlayer.mlp(self.midlayer.post_attention_layernorm(hidden))
        return output

    def logits(self, output: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch U"]:
        """Scores over the draft vocabulary."""
        scores: Tensor = self.lm_head(self.norm(output))
        return scores

    def target_ids(self, draft_ids: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
        """Draft-vocabulary indices as target ids."""
        ids: Tensor = self.draft_vocab[draft_ids]
        return ids

    def _rotated(self, x: Float[Tensor, "B N T P"], positions: Int[Tensor, "B T"]) -> Float[Tensor, "B N T P"]:
        cos, sin = self._rotary[0].to(x.device)(x, positions)
        first, second = x.chunk(2, dim=-1)
        rotated: Tensor = x * cos.unsqueeze(1) + torch.cat([-second, first], dim=-1) * sin.unsqueeze(1)
        return rotated


def _rotary_config(config: DrafterConfig) -> LlamaConfig:
    """RoPE of every kind, as transformers computes it."""
    scaling = {"rope_scaling": config.rope_scaling} if config.rope_scaling else {}
    return LlamaConfig(
        hidden_size=config.num_heads * config.head_dim,  # only head_dim matters, but transformers wants them to agree
        num_attention_heads=config.num_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rope_theta=config.rope_theta,
        **scaling,
    )


def unroll(
    drafter: Eagle3Drafter,
    aux: Float[Tensor, "B T A H"],
    next_ids: Int[Tensor, "B T"],
    slots: Int[Tensor, "B Q"],
    num_steps: int,
    tokens_at: Callable[[int, Float[Tensor, "B Q D"]], Int[Tensor, "B Q"]],
) -> list[Float[Tensor, "B Q D"]]:
    """Draft `num_steps` tokens from every slot asked for, all slots at once: training-time test, and replay.

    Args:
        next_ids: x_{t+1} for each slot t.
        slots: the slots to draft from, ascending in each row. Others serve as keys only.
        tokens_at: (step s ≥ 1, output of step s - 1) → the tokens x_{t+1+s}: the true ones in training, the drafter's
            own in replay.

    Returns:
        The layer's output at each step; logits are `drafter.logits(output)`.
    """
    fused = drafter.fuse(aux)
    positions = torch.arange(aux.shape[1], device=aux.device).expand(aux.shape[:2])
    inputs = drafter.inputs(fused, next_ids)
    context = drafter.keys_values(inputs, positions)
    visible = slots.unsqueeze(-1) >= positions.unsqueeze(1)
    hidden, inputs = _at(fused, slots), _at(inputs, slots)
    own: list[KeysValues] = []
    outputs: list[Tensor] = []
    for step in range(num_steps):
        if step:
            inputs = drafter.inputs(hidden, tokens_at(step, hidden))
            own.append(drafter.keys_values(inputs, slots + step))
        mixed = attend(drafter.queries(inputs, slots + step), context, visible, own)
        hidden = drafter.finish_layer(hidden, mixed)
        outputs.append(hidden)
    return outputs


def attend(
    queries: Float[Tensor, "B N Q P"], context: KeysValues, visible: Bool[Tensor, "B Q T"], own: list[KeysValues]
) -> Float[Tensor, "B N Q P"]:
    """Attention over the visible context slots and, for each entry of `own`, the one key at the query's own slot."""
    b, n, q, p = queries.shape
    g = context.keys.shape[1]
    grouped = (queries * p**-0.5).view(b, g, n // g, q, p)
    scores = torch.einsum("bgrqp,bgtp->bgrqt", grouped, context.keys).masked_fill(~visible[:, None, None], float("-inf"))
    if own:
        own_keys = torch.stack([kv.keys for kv in own], dim=-2)
        own_values = torch.stack([kv.values for kv in own], dim=-2)
        own_scores = torch.einsum("bgrqp,bgqsp->bgrqs", grouped, own_keys)
        scores = torch.cat([scores, own_scores], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(queries.dtype)
    t = context.keys.shape[2]
    mixed = torch.einsum("bgrqt,bgtp->bgrqp", weights[..., :t], context.values)
    if own:
        mixed = mixed + torch.einsum("bgrqs,bgqsp->bgrqp", weights[..., t:], own_values)
    return mixed.reshape(b, n, q, p)


def _at(x: Float[Tensor, "B T X"], slots: Int[Tensor, "B Q"]) -> Float[Tensor, "B Q X"]:
    return x.gather(1, slots.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


class ChainDrafter:
    """Drafting one sequence as it grows, with the keys and values of its slots kept: what an engine does.

    Args:
        drafter: the drafter.
    """

    def __init__(self, drafter: Eagle3Drafter) -> None:
        self._drafter = drafter
        self._context: KeysValues | None = None
        self._num_slots = 0

    @torch.inference_mode()
    def draft(
        self, aux: Float[Tensor, "1 T A H"], next_ids: Int[Tensor, "1 T"], num_tokens: int, choose: Callable[[Float[Tensor, "U"]], int]
    ) -> list[int]:
        """Take in the slots the target has just confirmed, then draft from the last one.

        Args:
            aux: states of the new slots.
            next_ids: the token that follows each of them; the last one is the newest token of the sequence.
            choose: scores over the draft vocabulary → draft id.

        Returns:
            `num_tokens` target ids.
        """
        drafter = self._drafter
        positions = torch.arange(self._num_slots, self._num_slots + aux.shape[1], device=aux.device).unsqueeze(0)
        fused = drafter.fuse(aux)
        inputs = drafter.inputs(fused, next_ids)
        new = drafter.keys_values(inputs, positions)
        self._context = seen = self._context.append(new) if self._context else new
        self._num_slots += aux.shape[1]
        hidden, inputs, slot = fused[:, -1:], inputs[:, -1:], positions[:, -1:]
        visible = torch.ones(1, 1, self._num_slots, dtype=torch.bool, device=aux.device)
        own: list[KeysValues] = []
        tokens: list[int] = []
        for step in range(num_tokens):
            if step:
                inputs = drafter.inputs(hidden, torch.tensor([[tokens[-1]]], device=aux.device))
                own.append(drafter.keys_values(inputs, slot + step))
            hidden = drafter.finish_layer(hidden, attend(drafter.queries(inputs, slot + step), seen, visible, own))
            tokens.append(int(drafter.target_ids(torch.tensor(choose(drafter.logits(hidden)[0, 0]), device=aux.device))))
        return tokens


DRAFTER = Algorithm(id="eagle3", default_aux_layers=default_aux_layers)
