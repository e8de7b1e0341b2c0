"""The look-up that a head starts with: what followed the same token before is drafted again.

Answers repeat their prompt and themselves, and on little text attention does not learn in time to
use that. A head needs one layer for it, where a language model needs two (``causal_start``): row m
has the token at m + 1 from its embedding and the token at m from the target's state. So a row that
holds token t looks for the rows whose *state* says t, and takes the token that they *hold*.

Codes. What a state knows best of its own token are the canonical correlations of states and
embeddings: directions of the one and of the other that agree. Their values are the code of a token,
of its embedding in a query and of a state in a key. Each key head compares another mixture of them,
in the dimensions of attention that hardly rotate over a context.

Rest. A row's own position has a constant score, which wins where nothing is found. What it brings
is the row's own token, which is taken off again in every row. So a row where nothing is found is
left as it is, and one where something is found also forgets what the step before found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import torch
from torch import Tensor, nn

from paceline.training.corpus import Batch
from paceline.training.head_start import unit, with_ridge
from paceline.training.layers import Attention
from paceline.training.target import Target

NEAREST = (0.4, 0.25, 0.15, 0.1, 0.1)
"""Shares of the fastest rotations in a score that is highest for the row's own position."""
NEAREST_SCORE = 24.0
REST_SCORE = 5.0
"""Of a row's own position in a look-up."""
LOOK_UP_SCORE = 0.6
"""Of a code with itself, per direction that is compared."""
STATE_RIDGE = 3e-3
EMBEDDING_RIDGE = 2e-2
HEAD_RIDGE = 0.1


class Codes(msgspec.Struct, frozen=True):
    """Codes of tokens, by what there is to compute them from; their mean is 0, their variance 1."""

    of_state: Tensor  # [state, code]
    of_embedding: Tensor  # [hidden, code]
    mean: Tensor  # [code], what ``of_embedding`` gives on average


def codes(
    batches: Iterable[Batch], states: Callable[[Batch], Tensor], embedding: Tensor, size: int
) -> Codes:
    """Returns the codes of the tokens in a text, a token counting by the root of its number.

    Args:
        states: # [batch, length, state]
        embedding: # [vocab, hidden]
        size: Of a code.
    """
    kept, held = [], []
    for batch in batches:
        is_token = _is_token(batch)
        kept.append(states(batch)[is_token])
        held.append(batch.tokens[is_token])
    x, tokens = torch.cat(kept).float(), torch.cat(held)
    y = unit(embedding[tokens])
    weights = tokens.bincount()[tokens].float().rsqrt()[:, None]
    weights = weights / weights.sum()
    mean = (y * weights).sum(0)
    y = y - mean
    whiten_x = _whitening((x * weights).T @ x, STATE_RIDGE)
    whiten_y = _whitening((y * weights).T @ y, EMBEDDING_RIDGE)
    both = whiten_x @ ((x * weights).T @ y) @ whiten_y
    left, agreement, right = torch.linalg.svd(both, full_matrices=False)
    of_embedding = (whiten_y @ right.T)[:, :size]
    return Codes((whiten_x @ left * agreement)[:, :size], of_embedding, mean @ of_embedding)


def _is_token(batch: Batch) -> Tensor:
    """Which positions are no padding, without the first, whose states are like no other."""
    at = torch.arange(batch.tokens.shape[1])
    return (at > 0) & (at < batch.lengths[:, None])


def _whitening(square: Tensor, ridge: float) -> Tensor:
    values, vectors = torch.linalg.eigh(with_ridge(square, ridge))
    whitening: Tensor = vectors / values.sqrt() @ vectors.T
    return whitening


def copying(target: Target, batches: Iterable[Batch]) -> Tensor:
    """Returns the linear map from a token's embedding to what raises its logit by 1, and others'
    as little as may be.  # [hidden, hidden]"""
    vocab_size = target.shape.vocab_size
    counts = sum(
        (batch.tokens[_is_token(batch)].bincount(minlength=vocab_size) for batch in batches),
        torch.zeros(vocab_size),
    )
    weights = (counts + 0.1).sqrt()[:, None]
    weights = weights / weights.sum()
    embeds, head = unit(target.embedding), target.head.float() * target.norm.float()
    change = head @ torch.linalg.inv(with_ridge((head * weights).T @ head, HEAD_RIDGE))
    change = change / (change * head).sum(-1, keepdim=True)
    square = with_ridge((embeds * weights).T @ embeds, 1e-3)
    best: Tensor = torch.linalg.solve(square, (embeds * weights).T @ change)
    return best


@torch.no_grad()
def look_up(
    attention: Attention,
    query: Tensor,
    key: Tensor,
    constant: Tensor,
    values: Tensor,
    own: Tensor,
    found: Tensor,
    generator: torch.Generator,
) -> None:
    """Writes an attention's weights: of each key head's query heads the first sees its own row
    only, and the others look up.

    Args:
        query: From the layer's inputs to the code that a row looks for.  # [inputs, code]
        key: And to the code that it is found by.  # [inputs, code]
        constant: A direction in which all inputs have about 1.  # [inputs]
        values: What is kept of a row, for each key head.  # [kv_heads, inputs, head_dim]
        own: What the first query heads make of it.  # [kv_heads, head_dim, hidden]
        found: What the others make of it, all of a key head's together.  # like ``own``
    """
    size, half = attention.head_dim, attention.head_dim // 2
    group = attention.num_heads // attention.num_kv_heads
    q, k = (nn.init.normal_(one.weight, std=2e-3) for one in (attention.q_proj, attention.k_proj))
    o = attention.o_proj.weight
    # The fastest rotations tell a row's own position, the slowest half hardly tells positions.
    fast = slice(0, len(NEAREST))
    slow = torch.cat([torch.arange(half - half // 2, half), torch.arange(size - half // 2, size)])
    near = (NEAREST_SCORE * torch.tensor(NEAREST) * size**0.5).sqrt()[:, None] * constant
    for number in range(attention.num_kv_heads):
        mixture = torch.randn(query.shape[1], len(slow), generator=generator)
        mixture = torch.linalg.qr(mixture)[0] * (LOOK_UP_SCORE * size**0.5) ** 0.5
        keys = k[number * size : (number + 1) * size]
        keys[half : half + len(NEAREST)] = 0.0
        keys[fast] = near
        keys[slow] = (key @ mixture).T
        attention.v_proj.weight[number * size : (number + 1) * size] = values[number].T
        for head in range(number * group, (number + 1) * group):
            rows, out = q[head * size : (head + 1) * size], o[:, head * size : (head + 1) * size]
            rows[half : half + len(NEAREST)] = 0.0
            if head % group == 0:
                rows.zero_()
                rows[fast] = near
                out.copy_(own[number].T)
            else:
                rows[fast] = near * (REST_SCORE / NEAREST_SCORE)
                rows[slow] = (query @ mixture).T
                out.copy_(found[number].T / (group - 1))
