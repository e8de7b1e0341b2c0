"""How a head starts: as the linear regression of the target's next state on what the head sees.

At position i a head sees the target's states and the embedding of the token at i + 1; the target's
final state at i + 1 gives the distribution that the head is to have. The regression of that state
is a system of linear equations: seconds of work, for which a training takes many minutes. So it is
written into the weights, with a look-up beside it (``lookup_start``), and the training refines it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from paceline.training.corpus import Batch
from paceline.training.layers import DecoderLayer
from paceline.training.target import Target

RIDGE = 3e-3
"""Of the mean square of the features."""
GAIN = 0.5
"""Of the last norm: it makes a guess as long as a state, which is less sure."""
CODE_SIZE = 0.3
"""Root mean square of a code beside a prediction of 1."""
NUM_INSPECTED = 4
"""Batches whose features tell what is usual."""
HEAD_SHARE = 0.1
"""What the head's use of a direction counts against that of predictions."""


def regress(
    batches: Iterable[Batch], features: Callable[[Batch], Tensor], aims: Callable[[Batch], Tensor]
) -> Tensor:
    """Returns the matrix B of least squares, ``aims`` = ``features`` B.  # [features, aims]

    Args:
        features: # [batch, rows, features]; of the batch's rows
        aims: # [batch, rows, aims]
    """
    return least_squares(
        (features(batch)[batch.valid], aims(batch)[batch.valid]) for batch in batches
    )


def least_squares(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Returns the matrix B of least squares, y = x B, of pairs of x and y.  # [rows, ...] each"""
    square = product = torch.zeros(())
    for some_x, some_y in pairs:
        x, y = some_x.float(), some_y.float()
        square, product = square + x.T @ x, product + x.T @ y
    best: Tensor = torch.linalg.solve(with_ridge(square, RIDGE), product)
    return best


def next_state(
    target: Target, batches: list[Batch], features: Callable[[Batch], Tensor]
) -> tuple[Tensor, Tensor]:
    """Returns the regression of the next state, as it is before the last norm.

    That norm multiplies by its weight and leaves the length free: predictions have a root mean
    square of 1.

    Args:
        features: # [batch, rows, features]; of the batch's rows

    Returns: B [features, hidden], and the features of some rows [rows, features]
    """
    best = regress(batches, features, lambda batch: take(batch.final, batch.rows + 1))
    best = best / target.norm.float()
    inputs = torch.cat([features(batch)[batch.valid] for batch in batches[:NUM_INSPECTED]])
    return best / (inputs @ best).pow(2).mean().sqrt(), inputs


def take(x: Tensor, rows: Tensor) -> Tensor:
    """Returns the given rows of each sequence.  # [batch, rows, hidden]"""
    return x.gather(1, rows[..., None].expand(-1, -1, x.shape[-1]))


def unit(x: Tensor, eps: float = 1e-5) -> Tensor:
    """Returns the rows with a root mean square of 1."""
    x = x.float()
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()


def with_ridge(square: Tensor, ridge: float) -> Tensor:
    """Returns a matrix of squares that can be inverted: by ``ridge`` of its mean diagonal more."""
    return square + ridge * square.diagonal().mean() * torch.eye(len(square), device=square.device)


def constant_direction(inputs: Tensor) -> Tensor:
    """Returns the direction in which the inputs are closest to 1 each.  # [inputs]"""
    direction: Tensor = torch.linalg.solve(with_ridge(inputs.T @ inputs, 1e-3), inputs.sum(0))
    return direction


def through(values: Tensor, inputs: Tensor, aim: Tensor) -> Tensor:
    """Returns the C for which ``inputs values C`` is closest to ``inputs aim``.

    Args:
        values: # [inputs, values]
        inputs: # [rows, inputs]
        aim: # [inputs, aims]
    """
    seen = inputs @ values
    best: Tensor = torch.linalg.solve(with_ridge(seen.T @ seen, 1e-4), seen.T @ (inputs @ aim))
    return best


def spare_directions(target: Target, predictions: Tensor, number: int) -> Tensor:
    """Returns directions of the residual stream that predictions use least, and the head little.

    Args:
        predictions: # [rows, hidden]

    Returns: orthonormal columns  # [hidden, number]
    """
    head = target.head.float() * target.norm.float()
    squares = [x.T @ x for x in (predictions, head)]
    used, read = (square / square.diagonal().mean() for square in squares)
    spare: Tensor = torch.linalg.eigh(used + HEAD_SHARE * read).eigenvectors[:, :number]
    return spare


def start_layer(layer: DecoderLayer, target: Target, index: int) -> None:
    """Makes a layer the target's, with outputs of 0: in another place they are of no use yet.

    What does not fit, as attention that sees more than the target's, stays as it is; and what a
    target has beside a Llama's layer, like Qwen3's norms of queries and keys, is left out.
    """
    known = layer.state_dict()
    for name, value in target.layer(index).items():
        if name in known and known[name].shape == value.shape:
            known[name].copy_(value)
    for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
        nn.init.zeros_(projection.weight)
