"""How a block draft starts: as a linear regression of the target's next states.

A mask knows nothing: what it drafts from has to come through the attention, from the context's
last row and from the anchor. Queries that are left to chance find those late, and a draft that has
not found them drafts frequent tokens. So the query heads of the first layer start with patterns,
see ``block_queries``; the context is made of what foretells the next states best; the outputs are
the regression of those states on what the heads then read. The rest is the target's last layers,
which at first add nothing. See also ``head_start``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

import torch
from torch import Tensor

from paceline.training.block import BlockLayer, DFlash, DSpark
from paceline.training.block_queries import start_queries
from paceline.training.corpus import Batch
from paceline.training.head_start import least_squares, regress, take, unit
from paceline.training.layers import Attention
from paceline.training.target import Target

NUM_TOKENS = 4
"""Drafts of a block that the regression is of."""
DECAY = 0.6
"""Weight of each of them against the one before."""
NUM_ATTENDED = 12
"""Batches of the second regression, which needs fewer rows, of more drafts each."""

RESIDUAL = 8.0
"""Size of the residual stream: the block's own embeddings are small against it."""
MATRIX = 4.0
"""What matrices are multiplied with whose size is free: with it, they have the size of the others,
and learn as fast."""


@torch.no_grad()
def start(model: DFlash, target: Target, samples: Iterable[Batch]) -> None:
    """Sets the weights of a model from some batches."""
    rest = iter(samples)
    few = list(islice(rest, NUM_ATTENDED))
    layers = [layer for layer in model.layers if isinstance(layer, BlockLayer)]
    for index, layer in enumerate(layers):
        _start_layer(layer, target.layer(target.num_layers - len(layers) + index))
    model.norm.weight.copy_(target.norm)
    model.hidden_norm.weight.fill_(1.0)
    layers[0].input_layernorm.weight.fill_(1.0)
    attention = layers[0].self_attn
    _start_values(model, attention, target, few, rest)
    states = torch.cat([_states(model, batch) for batch in few[:2]])
    tokens = torch.cat([_anchors(model, batch) for batch in few[:2]])
    mask = unit(model.embedding[model.mask_token])
    start_queries(attention, model.rotary.frequencies, states, tokens, mask, model.first_slot)
    _start_outputs(model, attention, target, few)
    if isinstance(model, DSpark):
        _start_markov(model)


def _start_layer(layer: BlockLayer, tensors: dict[str, Tensor]) -> None:
    attention = layer.self_attn
    layer.input_layernorm.weight.copy_(tensors["input_layernorm.weight"])
    layer.post_attention_layernorm.weight.copy_(tensors["post_attention_layernorm.weight"])
    for name in ("gate", "up"):
        getattr(layer.mlp, f"{name}_proj").weight.copy_(tensors[f"mlp.{name}_proj.weight"])
    for name in ("q", "k", "v"):
        weight = getattr(attention, f"{name}_proj").weight
        own = tensors[f"self_attn.{name}_proj.weight"]
        weight.copy_(own.repeat(len(weight) // len(own), 1))
    attention.o_proj.weight.zero_()
    layer.mlp.down_proj.weight.zero_()


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
    model: DFlash, attention: Attention, target: Target, few: list[Batch], rest: Iterable[Batch]
) -> None:
    """Sets ``fc`` and the values, which take the best directions of the context and of anchors."""
    size, norm = model.shape.hidden_size, target.norm.float()
    aux = torch.cat([take(batch.aux, batch.rows)[batch.valid] for batch in few[:4]]).float()
    scales = aux.view(len(aux), -1, size).pow(2).mean(-1).sqrt().median(0).values
    model.aux_scale.copy_((1.0 / scales).repeat_interleave(size))

    def features(batch: Batch) -> Tensor:
        anchors = unit(model.embedding[batch.tokens.gather(1, batch.rows + 1)])
        return torch.cat([take(batch.aux, batch.rows).float() * model.aux_scale, anchors], -1)

    def aims(batch: Batch) -> Tensor:
        parts = [_aims(batch, step, norm) * DECAY**step for step in range(NUM_TOKENS)]
        return torch.cat(parts, -1)

    best = regress(chain(few, rest), features, aims)
    width = aux.shape[1]
    inputs = aux * model.aux_scale
    foretold = inputs @ best[:width]
    _, axes = torch.linalg.eigh(foretold.T @ foretold)
    rows = best[:width] @ axes.flip(1)[:, :size]  # the most telling ones first
    values, _, _ = torch.linalg.svd(best[width:])
    # The values' inputs are a rotation of the anchors; the context comes in rotated already.
    model.fc.weight.copy_(MATRIX * values @ rows.T / (inputs @ rows).pow(2).mean().sqrt())
    attention.v_proj.weight.copy_(MATRIX * values.T[: len(attention.v_proj.weight)])


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
    attention.o_proj.weight.copy_(RESIDUAL * best.T / made.pow(2).mean().sqrt())


def _start_markov(model: DSpark) -> None:
    """No bias; tokens that are alike are so to the Markov head, which sees most of them rarely."""
    embedding = model.embedding.float()
    values, vectors = torch.linalg.eigh(embedding.T @ embedding / len(embedding))
    rank = model.markov_head.markov_w1.embedding_dim
    axes = vectors[:, -rank:] / values[-rank:].sqrt()
    model.markov_head.markov_w1.weight.copy_(embedding @ axes)
    model.markov_head.markov_w2.weight.zero_()
