"""Cross-entropy to the target's distribution, without keeping logits of a whole vocabulary.

Logits, softmax and the gradient are made some hundred rows at a time, in the forward pass: the
target's distribution is given, so the gradient is known as soon as the logits are. All of it is in
the dtype of the hidden states: in bfloat16, a pass over float32 logits would cost as much as the
products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROWS_AT_ONCE = 256


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        more: Tensor | None,
        probabilities: Tensor,
        places: Tensor,
        weights: Tensor,
        labels: Tensor,
        num_zeros: int,
        variation: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        matrix = head.to(hidden.dtype)
        width = head.shape[1]
        if more is not None:
            matrix = torch.cat([matrix, more.to(hidden.dtype)], 1)
        _, need_head, need_more, *_ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden)
        grad_head = torch.zeros_like(head) if need_head else None
        grad_more = torch.zeros_like(more) if need_more and more is not None else None
        loss = torch.zeros((), device=hidden.device)
        right = torch.empty(len(hidden), dtype=torch.bool, device=hidden.device)
        overlap = torch.empty(len(hidden), device=hidden.device)
        for start in range(0, len(hidden), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            x, weight = hidden[part], weights[part].to(hidden.dtype)
            logits = x @ matrix.T
            aim = probabilities.index_select(0, places[part])
            # On CPU a fifth of what argmax takes, for the same index.
            best, place = logits.max(-1)
            right[part] = place == labels[part]
            found = logits.softmax(-1)
            # The best token's share of the whole gives log-sum-exp without another pass.
            whole = best.float() - found.amax(-1).float().log()
            if num_zeros:
                without = whole
                whole = without.logaddexp(without.new_tensor(num_zeros).log())
                found *= (without - whole).exp().to(found.dtype)[:, None]
            entropy = whole - torch.linalg.vecdot(aim, logits).float()
            common = torch.minimum(found, aim)
            overlap[part] = common.sum(-1, dtype=torch.float32)
            loss += ((entropy + variation * (1.0 - overlap[part])) * weights[part]).sum()
            if variation:
                grad = found - aim
                below = found * (found < aim)
                grad -= variation * (below - found * below.sum(-1, keepdim=True))
            else:
                grad = found.sub_(aim)
            grad_hidden[part] = (grad @ matrix).mul_(weight[:, None])
            if grad_head is not None or grad_more is not None:
                weighted = x * weight[:, None]
                if grad_head is not None:
                    grad_head += grad.T @ weighted[:, :width]
                if grad_more is not None:
                    grad_more += grad.T @ weighted[:, width:]
        ctx.save_for_backward(grad_hidden, grad_head, grad_more)
        ctx.mark_non_differentiable(right, overlap)
        return loss, right, overlap

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        grads = [None if grad is None else grad * grad_loss for grad in ctx.saved_tensors]
        return (*grads, None, None, None, None, None, None)


def head_loss(
    hidden: Tensor,
    head: Tensor,
    probabilities: Tensor,
    places: Tensor,
    weights: Tensor,
    labels: Tensor,
    *,
    more: Tensor | None = None,
    num_zeros: int = 0,
    variation: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the weighted sum of the rows' losses, whether the label is each row's best token,
    and each row's overlap with the target: the share of its samples that would be accepted.

    Args:
        hidden: What the head is applied to.  # [rows, hidden + columns of ``more``]
        head: # [vocab, hidden]; gets a gradient if it requires one
        probabilities: The target's distributions over this vocabulary.  # [places, vocab]
        places: Which distribution each row should have.  # int64 [rows]
        weights: # [rows]; 0 leaves a row out
        labels: The token that followed, as an index of this vocabulary, or -1.  # int64 [rows]
        more: More columns of the head, with their own gradient.  # [vocab, columns]
        num_zeros: How many classes more there are, whose logit is 0 and which the target never has
        variation: Weight of the total variation distance beside the cross-entropy.
    """
    found: tuple[Tensor, Tensor, Tensor] = _HeadLoss.apply(  # type: ignore[no-untyped-call]
        hidden, head, more, probabilities, places, weights, labels, num_zeros, variation
    )
    return found
