"""The chunked loss against the formula, and chunks of any size against one."""

import pytest
import torch
from torch import Tensor

from outrider.drafters import distill_loss as module
from outrider.drafters.distill_loss import distill_loss

_ROWS, _WIDTH, _VOCAB = 13, 6, 9


def _inputs() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(_ROWS, _WIDTH, requires_grad=True)
    head = torch.randn(_VOCAB, _WIDTH, requires_grad=True)
    return x, head, torch.softmax(torch.randn(5, _VOCAB), -1), torch.randint(0, 5, (_ROWS,)), torch.rand(_ROWS)


def _results(x: Tensor, head: Tensor, teacher: Tensor, teacher_row: Tensor, weight: Tensor) -> list[Tensor]:
    total, losses, best = distill_loss(x, head, teacher, teacher_row, weight)
    return [total.detach(), losses, best, *torch.autograd.grad(3 * total, [x, head])]


def test_it_is_the_weighted_cross_entropy() -> None:
    x, head, teacher, teacher_row, weight = _inputs()
    losses = torch.nn.functional.cross_entropy(x @ head.T, teacher[teacher_row], reduction="none")
    total = (losses * weight).sum()
    expected = [total.detach(), losses.detach(), (x @ head.T).argmax(-1), *torch.autograd.grad(3 * total, [x, head])]
    for got, wanted in zip(_results(x, head, teacher, teacher_row, weight), expected, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("rows_at_once", [0, 1, 2, 5, 12, 13])
def test_chunks_do_not_change_it(rows_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _results(*_inputs())
    monkeypatch.setattr(module, "_CHUNK_SCORES", rows_at_once * _VOCAB)
    for got, wanted in zip(_results(*_inputs()), whole, strict=True):
        torch.testing.assert_close(got, wanted)


def test_without_gradients_the_numbers_are_the_same() -> None:
    wanted = _results(*_inputs())
    with torch.no_grad():
        total, losses, best = distill_loss(*_inputs())
    torch.testing.assert_close(total, wanted[0])
    torch.testing.assert_close(losses, wanted[1])
    assert torch.equal(best, wanted[2])
