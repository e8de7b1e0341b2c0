"""The chunked loss and its gradient are those of the plain formula."""

from __future__ import annotations

import pytest
import torch

from paceline.training import block_loss as module
from paceline.training.block_loss import block_loss


@pytest.mark.parametrize("trained_head", [False, True])
def test_loss_and_gradients(trained_head: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 6)
    torch.manual_seed(0)
    hidden = torch.randn(15, 8, requires_grad=True)
    head = torch.randn(11, 8, requires_grad=trained_head)
    probabilities = torch.randn(5, 11).softmax(-1)
    places, labels = torch.randint(5, (15,)), torch.randint(11, (15,))
    weights = torch.rand(15)
    loss, right, overlap = block_loss(hidden, head, probabilities, places, weights, labels)
    (3 * loss).backward()  # type: ignore[no-untyped-call]

    plain_hidden = hidden.detach().requires_grad_()
    plain_head = head.detach().requires_grad_()
    logits = plain_hidden @ plain_head.T
    expected = (-(probabilities[places] * logits.log_softmax(-1)).sum(-1) * weights).sum()
    (3 * expected).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(hidden.grad, plain_hidden.grad)
    if trained_head:
        torch.testing.assert_close(head.grad, plain_head.grad)
    else:
        assert head.grad is None
    assert torch.equal(right, logits.argmax(-1) == labels)
    common = torch.minimum(probabilities[places], logits.softmax(-1))
    torch.testing.assert_close(overlap, common.sum(-1))


def test_more_columns_and_the_total_variation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 6)
    torch.manual_seed(0)
    hidden, head = torch.randn(15, 8, requires_grad=True), torch.randn(11, 5)
    more = torch.randn(11, 3, requires_grad=True)
    probabilities = torch.randn(5, 11).softmax(-1)
    places, labels = torch.randint(5, (15,)), torch.randint(-1, 11, (15,))
    weights = torch.rand(15)
    loss, right, _ = block_loss(
        hidden, head, probabilities, places, weights, labels, more=more, variation=0.7
    )
    loss.backward()  # type: ignore[no-untyped-call]

    plain_hidden, plain_more = (x.detach().requires_grad_() for x in (hidden, more))
    logits = plain_hidden @ torch.cat([head, plain_more], 1).T
    aims = probabilities[places]
    entropies = -(aims * logits.log_softmax(-1)).sum(-1)
    distances = 1 - torch.minimum(aims, logits.softmax(-1)).sum(-1)
    expected = ((entropies + 0.7 * distances) * weights).sum()
    expected.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(hidden.grad, plain_hidden.grad)
    torch.testing.assert_close(more.grad, plain_more.grad)
    assert torch.equal(right, logits.argmax(-1) == labels)
