"""The training step against its plain form, and which slot is supervised by which position."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from builders import CPU
from outrider.drafters import ttt
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.drafters.ttt import collate, ttt_loss
from outrider.formats.checkpoint import DrafterConfig
from outrider.store.documents import Document
from plain.eagle3_step import PlainDocument, PlainShape, PlainStep

_CONFIG = DrafterConfig(
    hidden_size=12,
    target_hidden_size=10,
    intermediate_size=14,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    vocab_size=23,
    draft_vocab_size=11,
    rms_norm_eps=1e-5,
    rope_theta=100.0,
    max_position_embeddings=64,
    aux_layers=(1, 2, 3),
)
_DRAFT_VOCAB = tuple(range(1, 23, 2))


def _random_drafter(config: DrafterConfig, draft_vocab: tuple[int, ...], seed: int) -> Eagle3Drafter:
    torch.manual_seed(seed)
    drafter = Eagle3Drafter(config, torch.randn(config.vocab_size, config.hidden_size), torch.tensor(draft_vocab))
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
    return drafter


def _random_document(config: DrafterConfig, mask: list[bool], seed: int) -> Document:
    generator = torch.Generator().manual_seed(seed)
    length, width = len(mask), config.target_hidden_size

    def ids() -> Tensor:
        return torch.randint(0, config.vocab_size, (length,), generator=generator, dtype=torch.int32)

    return Document(
        id=f"{seed}",
        input_ids=ids(),
        loss_mask=torch.tensor(mask),
        aux=torch.randn(length, len(config.aux_layers), width, generator=generator),
        last=2 * torch.randn(length, width, generator=generator),
        argmax=ids(),
        logsumexp=torch.zeros(length),
    )


def _plain_loss(
    drafter: Eagle3Drafter, documents: list[Document], head: Tensor, num_steps: int, decay: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """The plain loss in float64, and its gradients by name."""
    config = drafter.config
    tensors = {name: p.detach().double().requires_grad_() for name, p in drafter.named_parameters()}
    shape = PlainShape(config.num_heads, config.num_kv_heads, config.head_dim, config.rms_norm_eps, config.rope_theta)
    step = PlainStep(tensors, shape, drafter.embed_tokens.double(), drafter.draft_vocab.tolist(), head.double())
    plain = [
        PlainDocument(d.input_ids.tolist(), d.loss_mask.tolist(), d.aux.double(), d.last.double(), d.argmax.tolist()) for d in documents
    ]
    loss = step.loss(plain, num_steps, decay)
    if not loss.requires_grad:
        return loss, {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    found = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True)
    grads = {name: torch.zeros_like(t) if grad is None else grad for (name, t), grad in zip(tensors.items(), found, strict=True)}
    return loss.detach(), grads


def _assert_equals_plain(drafter: Eagle3Drafter, documents: list[Document], num_steps: int, decay: float, seed: int) -> None:
    config = drafter.config
    head = torch.randn(len(drafter.draft_vocab), config.target_hidden_size, generator=torch.Generator().manual_seed(seed))
    expected, expected_grads = _plain_loss(drafter, documents, head, num_steps, decay)
    drafter.zero_grad()
    loss, _ = ttt_loss(drafter, collate(documents, torch.float32, CPU), head, num_steps, decay)
    loss.backward()  # type: ignore[no-untyped-call]
    assert abs(loss.item() - expected.item()) <= 1e-5 * max(1.0, abs(expected.item()))
    for name, parameter in drafter.named_parameters():
        assert parameter.grad is not None, name
        wanted = expected_grads[name]
        difference = (parameter.grad.double() - wanted).abs().max().item()
        assert difference <= 1e-5 * wanted.abs().max().item() + 1e-7, f"{name}: {difference}, largest {wanted.abs().max().item()}"


def _documents(config: DrafterConfig) -> list[Document]:
    """Three documents of different lengths: one turn, three turns, and an answer from the first token on."""
    return [
        _random_document(config, [False] * 4 + [True] * 9, 1),
        _random_document(config, [False, False, True, True, True, False, False, True, False, True, True], 2),
        _random_document(config, [True] * 6, 3),
    ]


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 5])
def test_loss_and_every_gradient_equal_the_plain_step(num_steps: int) -> None:
    drafter = _random_drafter(_CONFIG, _DRAFT_VOCAB, seed=0)
    documents = _documents(_CONFIG)
    outside = [i for d in documents for i in d.argmax[:-1][d.loss_mask[1:]].tolist() if i not in _DRAFT_VOCAB]
    assert outside, "the example must have target tokens outside the draft vocabulary"
    _assert_equals_plain(drafter, documents, num_steps, 0.8, seed=7)


def test_a_whole_draft_vocabulary_and_a_drafter_as_wide_as_the_target() -> None:
    config = _CONFIG.model_copy(update={"draft_vocab_size": 23, "target_hidden_size": 12, "aux_layers": (2,), "num_kv_heads": 4})
    drafter = _random_drafter(config, tuple(range(23)), seed=4)
    _assert_equals_plain(drafter, _documents(config), 3, 0.8, seed=8)


def test_heads_need_not_divide_the_width() -> None:
    """The attention's width is heads × head_dim, whatever the drafter's own width is."""
    config = _CONFIG.model_copy(update={"hidden_size": 14})
    _assert_equals_plain(_random_drafter(config, _DRAFT_VOCAB, seed=5), _documents(config), 2, 0.8, seed=9)


_masks = st.lists(st.lists(st.booleans(), min_size=2, max_size=9), min_size=1, max_size=3)


@settings(max_examples=12, derandomize=True, deadline=None, database=None)
@given(masks=_masks, num_steps=st.integers(1, 5), kv_heads=st.sampled_from([1, 2, 4]), num_aux=st.integers(1, 4), seed=st.integers(0, 999))
def test_any_shape_equals_the_plain_step(masks: list[list[bool]], num_steps: int, kv_heads: int, num_aux: int, seed: int) -> None:
    config = _CONFIG.model_copy(update={"num_kv_heads": kv_heads, "aux_layers": tuple(range(num_aux))})
    drafter = _random_drafter(config, _DRAFT_VOCAB, seed)
    documents = [_random_document(config, mask, seed + i) for i, mask in enumerate(masks)]
    _assert_equals_plain(drafter, documents, num_steps, 0.8, seed)


def test_a_batch_without_an_answer_costs_nothing_and_moves_nothing() -> None:
    drafter = _random_drafter(_CONFIG, _DRAFT_VOCAB, seed=0)
    documents = [_random_document(_CONFIG, [False] * 5, 1), _random_document(_CONFIG, [True], 2)]
    loss, figures = ttt_loss(drafter, collate(documents, torch.float32, CPU), torch.randn(11, 10), 3, 0.8)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0
    assert figures.num_answered.tolist() == [0, 0, 0]
    assert all(p.grad is None or not p.grad.any() for p in drafter.parameters())


def test_padding_does_not_reach_the_loss() -> None:
    """A document beside a longer one has the loss it has alone, weighted by its share of the supervised slots."""
    drafter = _random_drafter(_CONFIG, _DRAFT_VOCAB, seed=0)
    head = torch.randn(11, 10)
    documents = _documents(_CONFIG)
    together = ttt_loss(drafter, collate(documents, torch.float32, CPU), head, 3, 0.8)[1]
    alone = [ttt_loss(drafter, collate([d], torch.float32, CPU), head, 3, 0.8)[1] for d in documents]
    total = alone[0] + alone[1] + alone[2]
    torch.testing.assert_close(together.loss, total.loss)
    assert together.num_supervised.tolist() == total.num_supervised.tolist()
    assert together.num_correct.tolist() == total.num_correct.tolist()
    assert together.num_answered.tolist() == total.num_answered.tolist()


def _labelled_drafter(width: int) -> Eagle3Drafter:
    """A drafter whose output, at every step, is the label (a one-hot) of the slot it came from."""
    config = _CONFIG.model_copy(update={"hidden_size": width, "target_hidden_size": width, "aux_layers": (1,)})
    drafter = _random_drafter(config, _DRAFT_VOCAB, seed=0)
    with torch.no_grad():
        drafter.fc.weight.copy_(torch.eye(width))
        drafter.midlayer.self_attn.o_proj.weight.zero_()
        drafter.midlayer.mlp.down_proj.weight.zero_()
        drafter.norm.weight.fill_(1.0)
    return drafter


def test_each_slot_is_taught_by_the_position_one_and_its_step_further_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots and teachers are labelled; what reaches the loss is compared with the rule, counted by hand."""
    documents = _documents(_CONFIG)
    places = [(row, t) for row, document in enumerate(documents) for t in range(len(document))]
    labels = torch.eye(32)[: len(places)]  # a width that the heads divide
    labelled = []
    for row, document in enumerate(documents):
        mine = torch.stack([labels[i] for i, (other, _) in enumerate(places) if other == row])
        labelled.append(replace(document, aux=mine.unsqueeze(1), last=9 * mine))
    found: dict[tuple[tuple[int, int], tuple[int, int], int], float] = {}

    def recording_loss(x: Tensor, head: Tensor, teacher: Tensor, teacher_row: Tensor, weight: Tensor) -> Any:
        for output, taught, share in zip(x, teacher_row.tolist(), weight.tolist(), strict=True):
            slot, by = places[int(output.argmax())], places[int(teacher[taught].argmax())]
            found[slot, by, by[1] - slot[1] - 1] = share
        return (x * 0).sum(), torch.zeros(len(x)), torch.zeros(len(x), dtype=torch.int64)

    monkeypatch.setattr(ttt, "distill_loss", recording_loss)
    # a head with a row for each place, so that a teacher's distribution peaks at its own place
    ttt_loss(_labelled_drafter(32), collate(labelled, torch.float32, CPU), labels, 4, 0.8)

    expected: dict[tuple[tuple[int, int], tuple[int, int], int], float] = {}
    for step in range(4):
        pairs = [
            ((row, slot), (row, slot + 1 + step))
            for row, document in enumerate(documents)
            for slot in range(len(document))
            if slot + 2 + step < len(document)
            and bool(document.loss_mask[slot + 2 + step])
            and int(document.argmax[slot + 1 + step]) in _DRAFT_VOCAB
        ]
        expected |= {(slot, by, step): 0.8**step / len(pairs) for slot, by in pairs}
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected)
