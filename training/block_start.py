"""How a block draft starts: as a linear regression of the target's next states.

A mask knows nothing: what it drafts from has to come through the attention, from the context's
last row and from the anchor. Queries that are left to chance find those late, and a draft that has
not found them drafts frequent tokens. So the first layer starts with three kinds of query heads:
of each group that shares a key, the first reads the context's last rows, the second the anchor,
the third one of the two, by its slot. The context is made of what foretells the next states best;
the outputs are the regression of those states on what the heads then read. All else is the
target's last layers, whose outputs are made small. See also ``head_start``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice

import torch
from torch import Tensor

from paceline.training.autoregressive import SMALL, take
from paceline.training.block import BlockLayer, DFlash, DSpark
from paceline.training.corpus import Batch
from paceline.training.head_start import least_squares, regress, unit
from paceline.training.layers import Attention
from paceline.training.target import Target

NUM_TOKENS = 4
"""Drafts of a block that the regression is of."""
DECAY = 0.6
"""Weight of each of them against the one before."""
NUM_ATTENDED = 12
"""Batches of the second regression, which needs fewer rows, of more drafts each."""

# Parts of the spectrum of rotations. The cosine of a fast one falls with the distance; a slow one
# says only what is there.
SWITCH = (1 / 32, 2 / 32)
RECENT = (2 / 32, 10 / 32)
MASKS = (24 / 32, 26 / 32)
ANCHOR = (26 / 32, 1.0)
QUERY_SIZE, KEY_SIZE = 2.0, 1.2
OWN = 0.2
"""Share of the target's own queries and keys, against the patterns."""


@torch.no_grad()
def start(model: DFlash, target: Target, samples: Iterable[Batch]) -> None:
    """Sets the weights of a model from some batches."""
    samples = list(samples)
    layers = [layer for layer in model.layers if isinstance(layer, BlockLayer)]
    first = target.num_layers - len(layers)
    for index, layer in enumerate(layers):
        tensors = {name: value.float() for name, value in target.layer(first + index).items()}
        ones = torch.ones(model.shape.head_dim)
        layer.load_state_dict(
            tensors | {"self_attn.q_norm.weight": ones, "self_attn.k_norm.weight": ones}
        )
        layer.self_attn.o_proj.weight.mul_(SMALL)
        layer.mlp.down_proj.weight.mul_(SMALL)
    model.norm.weight.copy_(target.norm)
    model.hidden_norm.weight.fill_(1.0)
    layers[0].input_layernorm.weight.fill_(1.0)
    attention = layers[0].self_attn
    _start_values(model, attention, target, samples)
    states = torch.cat([_states(model, batch) for batch in samples[:2]])
    tokens = torch.cat([_anchors(model, batch) for batch in samples[:2]])
    mask = unit(model.embedding[model.mask_token])
    frequency = float(model.rotary.frequencies[round(SWITCH[0] * model.shape.head_dim / 2)])
    start_queries(attention, states, tokens, mask, model.first_slot, frequency)
    _start_outputs(model, attention, target, samples[:NUM_ATTENDED])
    if isinstance(model, DSpark):
        _start_markov(model)


def _states(model: DFlash, batch: Batch) -> Tensor:
    rows: Tensor = take(model.context(batch.aux.float()), batch.rows)[batch.valid]
    return rows


def _anchors(model: DFlash, batch: Batch) -> Tensor:
    return unit(model.embedding[batch.tokens.gather(1, batch.rows + 1)])[batch.valid]


def _aims(batch: Batch, step: int, norm: Tensor) -> Tensor:
    """Returns the direction of the state that gives each row's draft.  # [batch, rows, hidden]"""
    at = torch.minimum(batch.rows + 1 + step, batch.lengths[:, None] - 1)
    # The last norm multiplies by its weight; the length before it is free.
    return take(batch.final, at).float() / norm


def _start_values(
    model: DFlash, attention: Attention, target: Target, samples: list[Batch]
) -> None:
    """Sets ``fc`` and the values, which take the best directions of the context and of anchors."""
    size, norm = model.shape.hidden_size, target.norm.float()
    aux = torch.cat([take(batch.aux, batch.rows)[batch.valid] for batch in samples[:4]]).float()
    scales = aux.view(len(aux), -1, size).pow(2).mean(-1).sqrt().median(0).values
    model.aux_scale.copy_((1.0 / scales).repeat_interleave(size))

    def features(batch: Batch) -> Tensor:
        anchors = unit(model.embedding[batch.tokens.gather(1, batch.rows + 1)])
        return torch.cat([take(batch.aux, batch.rows).float() * model.aux_scale, anchors], -1)

    def aims(batch: Batch) -> Tensor:
        parts = [_aims(batch, step, norm) * DECAY**step for step in range(NUM_TOKENS)]
        return torch.cat(parts, -1)

    best = regress(samples, features, aims)
    width = aux.shape[1]
    inputs = aux * model.aux_scale
    foretold = inputs @ best[:width]
    _, axes = torch.linalg.eigh(foretold.T @ foretold)
    rows = best[:width] @ axes.flip(1)[:, :size]  # the most telling ones first
    values, _, _ = torch.linalg.svd(best[width:])
    # The values' inputs are a rotation of the anchors; the context comes in rotated already.
    model.fc.weight.copy_(values @ rows.T / (inputs @ rows).pow(2).mean().sqrt())
    attention.v_proj.weight.copy_(values.T[: len(attention.v_proj.weight)])


def _start_outputs(
    model: DFlash, attention: Attention, target: Target, samples: list[Batch]
) -> None:
    """Sets the outputs as the regression on what the heads read."""
    norm = target.norm.float()
    read: list[Tensor] = []
    hook = attention.o_proj.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))

    def pairs() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in samples:
            read.clear()
            with torch.autocast(batch.tokens.device.type, torch.bfloat16):
                model(batch, batch.rows, NUM_TOKENS)
            heads = read[0].view(*batch.rows.shape, -1, read[0].shape[-1])[:, :, -NUM_TOKENS:]
            for step in range(NUM_TOKENS):
                weight = DECAY ** (step / 2)
                yield (
                    weight * heads[:, :, step][batch.valid],
                    weight * _aims(batch, step, norm)[batch.valid],
                )

    best = least_squares(pairs())
    made = torch.cat([x for x, _ in islice(pairs(), NUM_TOKENS)]).float() @ best
    hook.remove()
    attention.o_proj.weight.copy_(best.T / made.pow(2).mean().sqrt())


def _start_markov(model: DSpark) -> None:
    """No bias; tokens that are alike are so to the Markov head, which sees most of them rarely."""
    embedding = model.embedding.float()
    values, vectors = torch.linalg.eigh(embedding.T @ embedding / len(embedding))
    rank = model.markov_head.markov_w1.embedding_dim
    axes = vectors[:, -rank:] / values[-rank:].sqrt()
    model.markov_head.markov_w1.weight.copy_(embedding @ axes)
    model.markov_head.markov_w2.weight.zero_()


def start_queries(
    attention: Attention,
    states: Tensor,
    tokens: Tensor,
    mask: Tensor,
    first_slot: int,
    frequency: float,
) -> None:
    """Sets queries and keys.

    Args:
        states: What the keys of contexts are made of.  # [rows, hidden]
        tokens: What those of anchors are made of.  # [rows, hidden]
        mask: What those of masks are made of.  # [hidden]
        first_slot: The slot that drafts first.
        frequency: Of ``SWITCH``, in radians per position.
    """
    size, group = attention.head_dim, attention.num_heads // attention.num_kv_heads
    context, anchor, masks = _features(states, tokens, mask)
    keys = (
        torch.outer(_pattern(size, RECENT), context)
        + torch.outer(_pattern(size, ANCHOR) + 2.0 * _pattern(size, SWITCH), anchor)
        + torch.outer(_pattern(size, MASKS), masks)
    )
    asked = []
    for head in range(attention.num_heads):
        kind = head % group % 3
        if kind == 0:
            asked.append(_pattern(size, RECENT))
        elif kind == 1:
            asked.append(_pattern(size, ANCHOR))
        else:
            # The anchor is nearer to some slots than to others: behind those, the context wins.
            last = first_slot - 1 + head // group
            asked.append(
                0.6 * _pattern(size, RECENT) + 3.0 * _pattern(size, SWITCH, -last * frequency)
            )
    for projection, made, inputs in (
        (attention.q_proj, torch.outer(torch.cat(asked), anchor + masks), tokens),
        (attention.k_proj, keys.repeat(attention.num_kv_heads, 1), states),
    ):
        own = projection.weight
        usual, size_made = ((inputs @ x.T).pow(2).mean().sqrt() for x in (own, made))
        projection.weight.copy_(made / size_made + OWN * own / usual)
    attention.q_norm.weight.fill_(QUERY_SIZE)
    attention.k_norm.weight.fill_(KEY_SIZE)


def _features(states: Tensor, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the directions that tell contexts, anchors and masks: 1 on theirs, 0 on others."""
    masks = mask.expand(len(tokens), -1)
    sizes = torch.tensor([len(states), len(tokens), len(masks)])
    classes = torch.eye(3).repeat_interleave(sizes, dim=0)
    context, anchor, other = least_squares([(torch.cat([states, tokens, masks]), classes)]).T
    return context, anchor, other


def _pattern(size: int, part: tuple[float, float], angle: float = 0.0) -> Tensor:
    """Returns ones in the pairs of a part of the spectrum, turned by an angle.  # [size]"""
    pairs = torch.arange(size // 2) / (size // 2)
    inside = ((pairs >= part[0]) & (pairs < part[1])).float()
    return torch.cat([inside * math.cos(angle), inside * math.sin(angle)])
