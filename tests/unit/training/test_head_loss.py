"""The chunked loss and its gradient are those of the plain formula."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import Tensor

from paceline.training import head_loss as module
from paceline.training.head_loss import head_loss

NUM_ROWS, VOCAB, HIDDEN, MORE = 15, 11, 8, 3
FACTOR = 3.0
"""Of the loss in what is differentiated: the gradient that comes from above counts."""


class Inputs(msgspec.Struct):
    hidden: Tensor
    head: Tensor
    more: Tensor | None
    probabilities: Tensor
    places: Tensor
    weights: Tensor
    labels: Tensor


def make(*, trained_head: bool = False, with_more: bool = False) -> Inputs:
    torch.manual_seed(0)
    return Inputs(
        hidden=torch.randn(NUM_ROWS, HIDDEN + MORE * with_more, requires_grad=True),
        head=torch.randn(VOCAB, HIDDEN, requires_grad=trained_head),
        more=torch.randn(VOCAB, MORE, requires_grad=True) if with_more else None,
        probabilities=torch.randn(5, VOCAB).softmax(-1),
        places=torch.randint(5, (NUM_ROWS,)),
        weights=torch.rand(NUM_ROWS),
        labels=torch.randint(-1, VOCAB, (NUM_ROWS,)),
    )


def plain(inputs: Inputs, num_zeros: int, variation: float) -> tuple[Tensor, Tensor, Tensor]:
    head = inputs.head if inputs.more is None else torch.cat([inputs.head, inputs.more], 1)
    logits = inputs.hidden @ head.T
    logs = torch.cat([logits, torch.zeros(NUM_ROWS, num_zeros)], 1).log_softmax(-1)[:, :VOCAB]
    aims = inputs.probabilities[inputs.places]
    overlap = torch.minimum(aims, logs.exp()).sum(-1)
    losses = -(aims * logs).sum(-1) + variation * (1 - overlap)
    return (losses * inputs.weights).sum(), logits.argmax(-1) == inputs.labels, overlap


@pytest.fixture(autouse=True)
def several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two whole parts, and a rest."""
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 6)


@pytest.mark.parametrize("num_zeros", [0, 7])
@pytest.mark.parametrize("variation", [0.0, 0.7])
@pytest.mark.parametrize("with_more", [False, True])
@pytest.mark.parametrize("trained_head", [False, True])
def test_loss_and_gradients(
    trained_head: bool, with_more: bool, variation: float, num_zeros: int
) -> None:
    inputs, same = (make(trained_head=trained_head, with_more=with_more) for _ in range(2))
    loss, right, overlap = head_loss(
        inputs.hidden,
        inputs.head,
        inputs.probabilities,
        inputs.places,
        inputs.weights,
        inputs.labels,
        more=inputs.more,
        num_zeros=num_zeros,
        variation=variation,
    )
    (FACTOR * loss).backward()  # type: ignore[no-untyped-call]
    expected, expected_right, expected_overlap = plain(same, num_zeros, variation)
    (FACTOR * expected).backward()  # type: ignore[no-untyped-call]

    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(inputs.hidden.grad, same.hidden.grad)
    if trained_head:
        torch.testing.assert_close(inputs.head.grad, same.head.grad)
    else:
        assert inputs.head.grad is None
    if inputs.more is not None and same.more is not None:
        torch.testing.assert_close(inputs.more.grad, same.more.grad)
    assert torch.equal(right, expected_right)
    torch.testing.assert_close(overlap, expected_overlap.detach())


def test_a_label_is_right_where_argmax_finds_it() -> None:
    """A head of zeros, as a training may begin with, has no token above another."""
    _, right, _ = head_loss(
        torch.ones(3, 1),
        torch.zeros(2, 1),
        torch.tensor([[0.5, 0.5]]),
        torch.zeros(3, dtype=torch.int64),
        torch.ones(3),
        torch.tensor([0, 1, -1]),
    )
    assert right.tolist() == [True, False, False]
