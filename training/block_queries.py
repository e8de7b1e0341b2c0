"""Patterns of attention that a block's slots start with.

Each query head reads one thing: the context's last row, or the anchor. Some read it in the first
slots only, so that these may draft otherwise than those behind them: a slot that has a mask so and
so far behind it reads that mask instead, and masks say nothing.

A score is a sum over the rotations of queries and keys. The cosines of fast rotations tell how far
a key is, those of slow ones only what it is. Contexts, anchors and masks have keys in parts of the
spectrum of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.training.head_start import least_squares
from paceline.training.layers import Attention

# Parts of the spectrum, the fastest rotations first.
BEHIND = (0.0, 2 / 32)
RECENT = (2 / 32, 10 / 32)
CONTEXT = (24 / 32, 26 / 32)
ANCHOR = (26 / 32, 1.0)
NUM_FIRST = 2
"""Slots that may draft otherwise than those behind them."""
NUM_KINDS = 2 + 2 * NUM_FIRST
QUERY_SIZE, KEY_SIZE = 4.0, 1.2
MATRIX = 4.0
"""Size of what the norms then bring to theirs: with it, these matrices learn as fast as others."""
OWN = 0.1
"""Share of the target's own queries and keys, against the patterns."""


def start_queries(
    attention: Attention,
    frequencies: Tensor,
    states: Tensor,
    tokens: Tensor,
    mask: Tensor,
    first_slot: int,
) -> None:
    """Sets the queries and the keys of an attention that has the target's.

    Args:
        frequencies: Radians per position of each rotation, the fastest first.  # [head_dim / 2]
        states: What the keys of contexts are made of.  # [rows, hidden]
        tokens: What those of anchors are made of.  # [rows, hidden]
        mask: What those of masks are made of.  # [hidden]
        first_slot: The slot that drafts first.
    """
    still = torch.zeros(len(frequencies))
    recent, sort = _pattern(still, RECENT), _pattern(still, CONTEXT)
    anchors = _pattern(still, ANCHOR)
    context, anchor, other = _features(states, tokens, mask)
    keys = (
        torch.outer(recent + 1.5 * sort, context)
        + torch.outer(anchors, anchor)
        + torch.outer(_pattern(still, BEHIND), other)
    )
    kinds = [recent, anchors]
    for slot in range(NUM_FIRST):
        # From here on this one wins: a mask that is as far behind as none of the first slots has.
        behind = _pattern(-(first_slot + slot) * frequencies, BEHIND)
        kinds += [7.0 * recent + 2.5 * sort + 14.0 * behind, 6.6 * anchors + 14.0 * behind]
    group = attention.num_heads // attention.num_kv_heads
    asked = [kinds[head % group % len(kinds)] for head in range(attention.num_heads)]
    queries = torch.outer(torch.cat([one / one.norm() for one in asked]), anchor + other)
    for projection, made, inputs in (
        (attention.q_proj, queries, tokens),
        (attention.k_proj, keys.repeat(attention.num_kv_heads, 1), states),
    ):
        own = projection.weight
        usual, size = ((inputs @ x.T).pow(2).mean().sqrt() for x in (own, made))
        projection.weight.copy_(MATRIX * (made / size + OWN * own / usual))
    attention.q_norm.weight.fill_(QUERY_SIZE)
    attention.k_norm.weight.fill_(KEY_SIZE)


def _features(states: Tensor, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the directions that tell contexts, anchors and masks: 1 on theirs, 0 on others."""
    masks = mask.expand(len(tokens), -1)
    sizes = torch.tensor([len(states), len(tokens), len(masks)])
    classes = torch.eye(3).repeat_interleave(sizes, dim=0)
    context, anchor, other = least_squares([(torch.cat([states, tokens, masks]), classes)]).T
    return context, anchor, other


def _pattern(angles: Tensor, part: tuple[float, float]) -> Tensor:
    """Returns the rotations of a part of the spectrum, turned by angles.  # [head_dim]"""
    place = torch.arange(len(angles)) / len(angles)
    inside = ((place >= part[0]) & (place < part[1])).float()
    return torch.cat([inside * angles.cos(), inside * angles.sin()])
