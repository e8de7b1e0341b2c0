"""Cross-entropy to the target's distribution, without keeping logits of a whole vocabulary.

Logits, softmax and the gradient are made some hundred rows at a time, in the forward pass: the
target's distribution is given, so the gradient is known as soon as the logits are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROWS_AT_ONCE = 256
"""For the matrix products."""
ROWS_IN_CACHE = 32
"""For everything else: some MB in float32, which a processor's cache holds."""


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        probabilities: Tensor,
        places: Tensor,
        weights: Tensor,
        labels: Tensor,
        num_zeros: int,
    ) -> tuple[Tensor, Tensor]:
        need_head = ctx.needs_input_grad[1]
        matrix = head.to(hidden.dtype)
        grad_hidden = torch.empty_like(hidden)
        grad_head = torch.zeros_like(head) if need_head else None
        loss = torch.zeros((), device=hidden.device)
        right = torch.empty(len(hidden), dtype=torch.bool, device=hidden.device)
        for start in range(0, len(hidden), ROWS_AT_ONCE):
            x = hidden[start : start + ROWS_AT_ONCE]
            logits = x @ matrix.T
            for at in range(0, len(x), ROWS_IN_CACHE):
                end = min(at + ROWS_IN_CACHE, len(x))
                part = slice(start + at, start + end)
                row = logits[at:end].float()
                aim = probabilities[places[part]].float()
                right[part] = row.argmax(-1) == labels[part]
                whole = row.logsumexp(-1)
                if num_zeros:
                    whole = whole.logaddexp(whole.new_tensor(num_zeros).log())
                loss += ((whole - (aim * row).sum(-1)) * weights[part]).sum()
                # From here on the logits' place holds their gradient.
                row.sub_(whole[:, None]).exp_().sub_(aim).mul_(weights[part, None])
                logits[at:end] = row
            grad_hidden[start : start + ROWS_AT_ONCE] = logits @ matrix
            if grad_head is not None:
                grad_head += logits.T @ x
        ctx.save_for_backward(grad_hidden, *([] if grad_head is None else [grad_head]))
        ctx.mark_non_differentiable(right)
        return loss, right

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, *grad_head = ctx.saved_tensors
        return (
            grad_hidden * grad_loss,
            grad_head[0] * grad_loss if grad_head else None,
            None,
            None,
            None,
            None,
            None,
        )


def head_loss(
    hidden: Tensor,
    head: Tensor,
    probabilities: Tensor,
    places: Tensor,
    weights: Tensor,
    labels: Tensor,
    num_zeros: int = 0,
) -> tuple[Tensor, Tensor]:
    """Returns the weighted sum of the rows' cross-entropies, and whether each row's best is right.

    Args:
        hidden: What the head is applied to.  # [rows, hidden]
        head: # [vocab, hidden]; gets a gradient if it requires one
        probabilities: The target's distributions over this vocabulary.  # [places, vocab]
        places: Which distribution each row should have.  # int64 [rows]
        weights: # [rows]; 0 leaves a row out
        labels: The token that followed, as an index of this vocabulary, or -1.  # int64 [rows]
        num_zeros: How many classes more there are, whose logit is 0 and which the target never has
    """
    loss, right = _HeadLoss.apply(hidden, head, probabilities, places, weights, labels, num_zeros)  # type: ignore[no-untyped-call]
    return loss, right
