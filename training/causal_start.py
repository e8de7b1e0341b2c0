"""How a small language model starts: as a bigram model that can look up what it has seen.

On little text, attention does not learn in time what a draft gains most from: answers repeat their
prompt and themselves. So both parts are written into the weights, and training refines them.

Bigrams. The target's final state h gives its logits W h. For the states that occur, the best logits
of a given rank are A z with z = B h (a principal component analysis of W h), and z has unit
covariance: A is the small model's head, and a token's embedding has the mean of z over the text's
positions that hold the token. So a token alone gives what the target thinks on average behind it.

Look-up, the two heads of an induction circuit (Olsson et al., arXiv 2209.11895). Every token has a
random code. The first layer writes into each position the codes of the two tokens before it; a head
of the second finds the positions whose two tokens before are this position's own and the one before
it, and gives the code of the token there, which is what followed last time. The model's head has
that code too. Codes need dimensions of attention that hardly rotate over a context, so a model that
starts like this wants a large ``rope_theta``, such as ``ROPE_THETA``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import msgspec
import torch
from torch import Tensor

from paceline.training.causal_lm import CausalLM
from paceline.training.layers import Attention, DecoderLayer
from paceline.training.objective import Vocabulary
from paceline.training.states import States

ROPE_THETA = 1e8
PROMPT_WEIGHT = 0.1
"""Of a prompt's positions against an answer's: prompts begin alike."""
PRIOR_WEIGHT = 4.0
"""Positions that what is known of a token's embedding in the target counts as."""
ONE = 2.0
"""What the dimension that is the same in every position holds."""
GAIN = 0.5
"""Of the last norm: a mean of many states is less sure than any of them."""
COPY_LOGIT = 8.0
"""Logit that the look-up adds for what it found."""
SECOND = 0.8
"""Weight of the token before the last in a look-up, against the last."""
LOOK_BACK = (0.4, 0.25, 0.15, 0.1, 0.1)
"""Shares of the fastest rotations in a score that is highest at one distance."""
LOOK_BACK_SCORE = 30.0
LOOK_UP_SCORE = 12.0
"""Score where the last token is found alone; codes of different tokens give a quarter of it."""
SLOW = 2e-3
"""Radians per position of a rotation that leaves codes as they are."""


class Means(msgspec.Struct, frozen=True):
    """The target's final states in a text, summed up."""

    weight: Tensor  # [vocab], of the positions that hold each token
    total: Tensor  # [vocab, hidden], weighted sum of their states
    moment: Tensor  # [hidden, hidden], weighted mean of h h'


def means(sequences: Iterable[States], vocab_size: int, hidden_size: int) -> Means:
    weight = torch.zeros(vocab_size)
    total = torch.zeros(vocab_size, hidden_size)
    moment = torch.zeros(hidden_size, hidden_size)
    for one in sequences:
        weights = torch.ones(len(one.tokens))
        weights[: one.num_prompt] = PROMPT_WEIGHT
        weights[0] = 0.0
        states = one.final.float()
        weighted = states * weights[:, None]
        weight.index_add_(0, one.tokens, weights)
        total.index_add_(0, one.tokens, weighted)
        moment += states.T @ weighted
    return Means(weight, total, moment / weight.sum())


def low_rank(head: Tensor, importance: Tensor, moment: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Returns A [vocab, rank] and B [rank, hidden] that make A B h the closest to head h.

    Args:
        head: # [vocab, hidden]
        importance: Of each token.  # [vocab]
        moment: Mean of h h' over the states that occur.  # [hidden, hidden]
    """
    values, vectors = torch.linalg.eigh(moment.double())
    values = values.clamp(min=values[-1] * 1e-9).sqrt()
    root = vectors * values @ vectors.T
    inverse = vectors / values @ vectors.T
    scaled = head.double() @ root
    energy = scaled.T @ (scaled * importance.double()[:, None])
    largest = torch.linalg.eigh(energy).eigenvectors[:, -rank:].flip(-1)
    return (scaled @ largest).float(), (largest.T @ inverse).float()


class Places:
    """What the dimensions of the small model's hidden state are for, at its start."""

    def __init__(self, size: int) -> None:
        code = size * 3 // 16
        ends = [size - 1 - 3 * code, size - 3 * code, size - 2 * code, size - code, size]
        self.code_size = code
        self.state = slice(0, ends[0])  # z
        self.one = ends[0]  # the same in every position
        self.own = slice(ends[1], ends[2])  # the code of the position's token
        self.before = slice(ends[2], ends[3])  # the codes of the two tokens before it
        self.next = slice(ends[3], ends[4])  # the code of what followed the same text before


@torch.no_grad()
def start(
    model: CausalLM, vocabulary: Vocabulary, embedding: Tensor, found: Means, seed: int = 0
) -> None:
    """Starts a model of two layers or more as described above.

    Args:
        embedding: The target's.  # [vocab, hidden]
    """
    generator = torch.Generator().manual_seed(seed)
    size = model.shape.hidden_size
    places = Places(size)
    for layer in model.layers:
        for name, value in layer.named_parameters():
            if value.ndim == 2:
                value.normal_(std=value.shape[1] ** -0.5, generator=generator)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                value.mul_(0.1)
    head, mean = bigrams(vocabulary, embedding.float(), found, places.state.stop)
    shape = (model.shape.vocab_size, places.code_size)
    codes = torch.randint(0, 2, shape, generator=generator).float() * 2.0 - 1.0
    model.embed_tokens.weight.zero_()
    model.embed_tokens.weight[:, places.state] = mean
    model.embed_tokens.weight[:, places.one] = ONE
    model.embed_tokens.weight[:, places.own] = codes
    model.lm_head.zero_()
    model.lm_head[:, places.state] = head
    model.lm_head[:, places.next] = codes[vocabulary.ids] * (COPY_LOGIT / places.code_size / GAIN)
    model.norm.weight.fill_(GAIN)
    first, second = (cast(DecoderLayer, layer) for layer in model.layers[:2])
    _look_back(first.self_attn, places, model.rotary.frequencies)
    _look_up(second.self_attn, places, model.rotary.frequencies)


def bigrams(
    vocabulary: Vocabulary, embedding: Tensor, found: Means, rank: int
) -> tuple[Tensor, Tensor]:
    """Returns A [drafted, rank] and each token's mean z [vocab, rank], of unit size.

    A token that the text has seldom is helped by a linear regression on the target's embedding.
    """
    importance = (found.weight[vocabulary.ids] + 1.0).sqrt()
    head, project = low_rank(vocabulary.head.float().cpu(), importance, found.moment, rank)
    totals = found.total @ project.T
    weighted = embedding * found.weight[:, None]
    square = embedding.T @ weighted
    square += square.diagonal().mean() * 0.01 * torch.eye(len(square))
    guess = embedding @ torch.linalg.solve(square, embedding.T @ totals)
    mean = (totals + PRIOR_WEIGHT * guess) / (found.weight + PRIOR_WEIGHT)[:, None]
    return head, mean / mean.pow(2).mean(-1, keepdim=True).sqrt().clamp(min=1e-3)


def _turn(codes: Tensor) -> Tensor:
    """Makes another code of each, one that is like no token's.  # [..., code]"""
    return codes.roll(1, -1)


def _look_back(attention: Attention, places: Places, frequencies: Tensor) -> None:
    """Two heads that see the token before and the one before that, and keep their codes."""
    size, half, code = attention.head_dim, attention.head_dim // 2, places.code_size
    q, k = attention.q_proj.weight, attention.k_proj.weight  # [heads * head_dim, hidden]
    v, o = attention.v_proj.weight, attention.o_proj.weight
    strength = torch.zeros(half)
    share = torch.tensor(LOOK_BACK)
    strength[: len(share)] = (LOOK_BACK_SCORE * share * size**0.5).sqrt() / ONE
    k[:size] = 0.0
    k[:half, places.one] = strength
    for head in range(2):
        angle = -frequencies * (head + 1)
        rows = q[head * size : (head + 1) * size]
        rows.zero_()
        rows[:half, places.one] = strength * angle.cos()
        rows[half:, places.one] = strength * angle.sin()
    v[:size] = 0.0
    v[:code, places.own] = torch.eye(code)
    o[:, : 2 * size] = 0.0
    o[places.before, :code] = torch.eye(code)
    o[places.before, size : size + code] = SECOND * _turn(torch.eye(code)).T


def _look_up(attention: Attention, places: Places, frequencies: Tensor) -> None:
    """A head that finds where the last two tokens stood before, and gives what followed them.

    Codes are compared in the dimensions that rotate the least.
    """
    size, half, code = attention.head_dim, attention.head_dim // 2, places.code_size
    q, k = attention.q_proj.weight, attention.k_proj.weight
    v, o = attention.v_proj.weight, attention.o_proj.weight
    slow = (frequencies < SLOW).nonzero()[:, 0]
    slow = torch.cat([slow, slow + half])[-code:]
    compared = torch.eye(code)[: len(slow)]
    scale = (LOOK_UP_SCORE * size**0.5 / len(slow)) ** 0.5
    k[:size] = 0.0
    k[slow, places.before] = compared * scale
    q[:size] = 0.0
    q[slow, places.own] = compared * scale
    q[slow, places.before] = SECOND * _turn(torch.eye(code)).T[: len(slow)] * scale
    v[:size] = 0.0
    v[:code, places.own] = torch.eye(code)
    o[:, :size] = 0.0
    o[places.next, :code] = torch.eye(code)
