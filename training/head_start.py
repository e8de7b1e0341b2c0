"""How a head starts: as the linear regression of the target's next state on what the head sees.

At position i a head sees the target's states and the embedding of the token at i + 1; the target's
final state at i + 1 gives the distribution that the head is to have. The regression of that state
is a system of linear equations: seconds of work, for which a training takes many minutes. So it is
written into the weights, and the training refines it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from paceline.training.corpus import Batch
from paceline.training.layers import Attention

RIDGE = 3e-3
"""Of the mean square of the features."""
NEAREST = (0.4, 0.25, 0.15, 0.1, 0.1)
"""Shares of the fastest rotations in a score that is highest for the row's own position."""
NEAREST_SCORE = 24.0


def regress(
    batches: Iterable[Batch], features: Callable[[Batch], Tensor], aims: Callable[[Batch], Tensor]
) -> Tensor:
    """Returns the matrix B of least squares, ``aims`` = ``features`` B.  # [features, aims]

    Args:
        features: # [batch, rows, features]; of the batch's rows
        aims: # [batch, rows, aims]
    """
    square = product = torch.zeros(())
    for batch in batches:
        x = features(batch)[batch.valid].float()
        y = aims(batch)[batch.valid].float()
        square, product = square + x.T @ x, product + x.T @ y
    ridge = RIDGE * square.diagonal().mean() * torch.eye(len(square), device=square.device)
    best: Tensor = torch.linalg.solve(square + ridge, product)
    return best


def unit(x: Tensor, eps: float = 1e-5) -> Tensor:
    """Returns the rows with a root mean square of 1."""
    x = x.float()
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()


def own_row(attention: Attention, frequencies: Tensor, heads: list[int], constant: Tensor) -> None:
    """Makes heads attend to their own position, whatever is there.

    Args:
        frequencies: Radians per position of each rotation, the fastest first.  # [head_dim / 2]
        heads: Query heads; each must be of another key head.
        constant: A direction in which all inputs have about 1.  # [inputs]
    """
    size, half = attention.head_dim, attention.head_dim // 2
    group = attention.num_heads // attention.num_kv_heads
    fast = len(NEAREST)
    strength = (NEAREST_SCORE * torch.tensor(NEAREST) * size**0.5).sqrt()
    pattern = strength[:, None] * constant
    for head in range(attention.num_heads):
        rows = attention.q_proj.weight[head * size : (head + 1) * size]
        # The fastest rotations are for this alone.
        rows[:fast] = rows[half : half + fast] = 0.0
        if head in heads:
            rows.zero_()
            rows[:fast] = pattern
    for head in heads:
        at = head // group * size
        rows = attention.k_proj.weight[at : at + size]
        rows[half : half + fast] = 0.0
        rows[:fast] = pattern


def constant_direction(inputs: Tensor) -> Tensor:
    """Returns the direction in which the inputs are closest to 1 each.  # [inputs]"""
    square = inputs.T @ inputs
    ridge = 1e-3 * square.diagonal().mean() * torch.eye(len(square), device=square.device)
    direction: Tensor = torch.linalg.solve(square + ridge, inputs.sum(0))
    return direction
