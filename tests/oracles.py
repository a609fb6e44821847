"""Pairs of target and drafter, made by hand, whose drafts are right every time if and only if the integration is.

Both are ordinary folders, so that any engine can serve them. All weights are exact by construction: nothing is trained.

- The embedding oracle's drafter reads only the next token's embedding: it needs the right tokens, positions and chain.
- The state oracle's drafter reads only the aux states, a third of the answer from each: it needs every aux layer to be
  the right one, the slots to be aligned, and draft ids to be turned into target ids.
"""

from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from outrider.drafters.eagle3 import MLP, Eagle3Drafter
from outrider.formats.checkpoint import DrafterConfig
from outrider.targets.folder import TargetFolder
from outrider.targets.weights import embedding

_EPS = 1e-6


@dataclass(frozen=True)
class Oracle:
    """A pair: the target's folder, and the drafter in memory, to be written right or spoilt."""

    target: TargetFolder
    drafter: Eagle3Drafter


def _blank_target(vocab_size: int, width: int, num_heads: int, num_layers: int) -> LlamaForCausalLM:
    """A target whose layers do nothing and whose head says nothing."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        head_dim=width // num_heads,
        max_position_embeddings=512,
        rms_norm_eps=_EPS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).to(torch.float32)
    with torch.no_grad():
        model.model.embed_tokens.weight.zero_()
        model.lm_head.weight.zero_()
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return model


def _write_target(model: LlamaForCausalLM, folder: Path) -> TargetFolder:
    """Write it with a tokenizer of one word a token: w0 w1 w2."""
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(model.config.vocab_size)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    template = "{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"
    PreTrainedTokenizerFast(tokenizer_object=words, chat_template=template, eos_token=None).save_pretrained(folder)
    return TargetFolder.open(folder)


def _blank_drafter(target: TargetFolder, num_heads: int, aux_layers: tuple[int, ...], draft_vocab: Tensor) -> Eagle3Drafter:
    """A drafter that says nothing; its norms have weight one."""
    width = target.hidden_size
    config = DrafterConfig(
        hidden_size=width,
        target_hidden_size=width,
        intermediate_size=width,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=width // num_heads,
        vocab_size=target.vocab_size,
        draft_vocab_size=len(draft_vocab),
        rms_norm_eps=_EPS,
        rope_theta=10000.0,
        max_position_embeddings=512,
        aux_layers=aux_layers,
    )
    drafter = Eagle3Drafter(config, embedding(target), draft_vocab)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.dim() > 1:
                parameter.zero_()
    return drafter.eval()


# --- the embedding oracle --------------------------------------------------------------------------------------------

_WORDS, _STRIDE, _WIDTH = 61, 7, 128


def embedding_oracle(folder: Path) -> Oracle:
    """The target says (i + 7) mod 61 after i. Token i is the one-hot i, in the first half of the only head: RoPE turns
    it within its own plane, so different tokens stay orthogonal at all distances and each slot attends to itself.

    A slot's output at step s is the sum of the one-hots of its tokens so far; the head gives a token a point if its
    predecessor is among them, and takes one if the token itself is.
    """
    model = _blank_target(_WORDS, _WIDTH, num_heads=1, num_layers=6)
    one_hots = torch.eye(_WORDS, _WIDTH)
    following = (torch.arange(_WORDS) + _STRIDE) % _WORDS
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(one_hots)
        model.lm_head.weight[following] = 4 * one_hots
    target = _write_target(model, folder / "target")
    drafter = _blank_drafter(target, num_heads=1, aux_layers=(2, 3, 4), draft_vocab=torch.arange(_WORDS))
    reads_embedding = torch.cat([torch.eye(_WIDTH), torch.zeros(_WIDTH, _WIDTH)], dim=1)
    attention = drafter.midlayer.self_attn
    with torch.no_grad():
        attention.q_proj.weight.copy_(2 * reads_embedding)
        attention.k_proj.weight.copy_(2 * reads_embedding)
        attention.v_proj.weight.copy_(reads_embedding)
        attention.o_proj.weight.copy_(8 * torch.eye(_WIDTH))
        drafter.lm_head.weight[following] = 4 * one_hots - 4 * one_hots[following]
    return Oracle(target, drafter)


# --- the state oracle ------------------------------------------------------------------------------------------------

_BASES = (5, 6, 7)  # coprime enough that one step in every digit visits all 210 numbers
_ADVANCE = (2, 5, 3)  # what the next token adds to each digit
_NUM_WORDS = 5 * 6 * 7
_STATE_AUX_LAYERS = (1, 3, 5)
_STATE_LAYERS, _STATE_WIDTH, _STATE_HEADS = 6, 64, 2
_UNUSED = _STATE_WIDTH - sum(_BASES)


def _digits() -> Tensor:
    """[210, 3] the digits of each number, mixed radix."""
    return torch.cartesian_prod(*(torch.arange(base) for base in _BASES))


def _one_hots(digits: Tensor) -> Tensor:
    """[N, 64] three blocks of one-hots, one a digit; digits are taken modulo their base."""
    blocks = [F.one_hot(digits[:, i] % base, base) for i, base in enumerate(_BASES)]
    return F.pad(torch.cat(blocks, dim=1).float(), (0, _UNUSED))


def _rotation(amounts: tuple[int, ...]) -> Tensor:
    """[64, 64] adds an amount to each digit."""
    turned, first = torch.zeros(_STATE_WIDTH, _STATE_WIDTH), 0
    for base, amount in zip(_BASES, amounts, strict=True):
        turned[first : first + base, first : first + base] = torch.roll(torch.eye(base), amount, 0)
        first += base
    return turned


def _write_rotating_mlp(mlp: MLP, amounts: tuple[int, ...]) -> None:
    """Make a SwiGLU behind a norm add (rotation - identity) of a state of three ones, so that the sum is the rotated state.

    It is the drafter's, or a Llama layer's of the same names.
    """
    component = sqrt(_STATE_WIDTH / len(_BASES))  # each of the three ones behind the norm
    active = F.silu(torch.tensor(component)) * component
    with torch.no_grad():
        mlp.gate_proj.weight.copy_(torch.eye(_STATE_WIDTH))
        mlp.up_proj.weight.copy_(torch.eye(_STATE_WIDTH))
        mlp.down_proj.weight.copy_((_rotation(amounts) - _rotation((0, 0, 0))) / active)


def state_oracle(folder: Path) -> Oracle:
    """Each target layer adds one to every digit of the state; the next token adds (2, 5, 3) to the token's digits.

    Only odd target ids are said: number n is token 2 n + 1, and the draft vocabulary holds just those.
    """
    model = _blank_target(2 * _NUM_WORDS, _STATE_WIDTH, _STATE_HEADS, _STATE_LAYERS)
    digits, ids = _digits(), 2 * torch.arange(_NUM_WORDS) + 1
    before = digits - torch.tensor(_ADVANCE)  # of the token that each token follows
    with torch.no_grad():
        model.model.embed_tokens.weight[ids] = _one_hots(digits)
        model.lm_head.weight[ids] = 4 * _one_hots(before + _STATE_LAYERS)
    for layer in model.model.layers:
        _write_rotating_mlp(layer.mlp, (1, 1, 1))
    target = _write_target(model, folder / "target")
    drafter = _blank_drafter(target, _STATE_HEADS, _STATE_AUX_LAYERS, ids)
    with torch.no_grad():
        drafter.fc.weight.copy_(_digit_of_each_aux_layer())
        drafter.lm_head.weight.copy_(4 * _one_hots(before))
    _write_rotating_mlp(drafter.midlayer.mlp, _ADVANCE)
    return Oracle(target, drafter)


def _digit_of_each_aux_layer() -> Tensor:
    """[64, 3 × 64] takes digit i from aux layer i alone, and turns it back by as many layers as have run there."""
    first, parts = 0, []
    for base, layer in zip(_BASES, _STATE_AUX_LAYERS, strict=True):
        block = torch.zeros(_STATE_WIDTH, _STATE_WIDTH)
        block[first : first + base] = _rotation((-layer,) * len(_BASES))[first : first + base]
        parts.append(block)
        first += base
    return torch.cat(parts, dim=1)


def shift_aux_layer(drafter: Eagle3Drafter, which: int, by: int) -> Eagle3Drafter:
    """The same numbers, fed from another target layer: the commonest fault of an integration."""
    layers = tuple(layer + by * (i == which) for i, layer in enumerate(drafter.config.aux_layers))
    return _with(drafter, drafter.config.model_copy(update={"aux_layers": layers}), drafter.draft_vocab)


def drop_draft_vocab(drafter: Eagle3Drafter) -> Eagle3Drafter:
    """The same numbers, with draft ids taken for target ids."""
    return _with(drafter, drafter.config, torch.arange(drafter.config.draft_vocab_size))


def _with(drafter: Eagle3Drafter, config: DrafterConfig, draft_vocab: Tensor) -> Eagle3Drafter:
    other = Eagle3Drafter(config, drafter.embed_tokens, draft_vocab)
    other.load_state_dict(drafter.state_dict())
    return other.eval()
