"""The block loss: what DFlash and DSpark learn from."""

from __future__ import annotations

import random

import torch
from torch import Tensor
from torch.nn import functional

from paceline.training.autoregressive import sample
from paceline.training.block import DFlash, DSpark
from paceline.training.corpus import Batch
from paceline.training.head_loss import head_loss
from paceline.training.objective import Loss, Vocabulary, places, target_probabilities


class BlockObjective:
    """Cross-entropy to the target's distribution in the slots of some rows' blocks.

    A slot counts as long as all tokens up to its own are in the vocabulary: a draft that has to be
    right so far gets no further. DSpark's slots see the text's tokens before them, for the same
    reason.
    """

    def __init__(
        self,
        model: DFlash,
        vocabulary: Vocabulary,
        *,
        min_tokens: int = 4,
        max_tokens: int = 5,
        decay: float = 0.6,
        reach: float = 0.6,
        share: float = 0.8,
        variation: float = 0.0,
        seed: int = 0,
    ) -> None:
        """
        Args:
            min_tokens: The fewest drafts of a block. Each batch draws its own number: a served
                block has a mask for each token that is asked for, no more.
            max_tokens: The most drafts of a block.
            decay: Weight of each slot against the one before. A slot is worth as much as it is
                probable that the drafts before it are accepted.
            reach: Chance that a slot is trained if the one before it is. Batches draw how far they
                go: a slot of little weight costs as much as the first.
            share: Share of rows that begin a block: the rows of a text have much in common.
            variation: Weight of the total variation distance beside the cross-entropy.
        """
        self.model, self.vocabulary = model, vocabulary
        self.min_tokens, self.max_tokens = min_tokens, max_tokens
        self.decay, self.reach = decay, reach
        self.share, self.variation = share, variation
        self.shares = [torch.zeros(())] * min_tokens
        """Of each slot, what was right in the last batch that trained it."""
        self.generator = torch.Generator().manual_seed(seed)
        self.lengths = random.Random(seed)

    def loss(self, batch: Batch) -> Loss:
        model, head = self.model, self.vocabulary.head
        num_tokens = self.lengths.randint(self.min_tokens, self.max_tokens)
        num_read = 1
        while num_read < num_tokens and self.lengths.random() < self.reach:
            num_read += 1
        columns = sample(batch.valid, self.share, self.generator)
        rows, valid = batch.rows.gather(1, columns), batch.valid.gather(1, columns)
        labels, known = self._labels(batch, rows, valid, num_read)
        ahead = torch.arange(num_read, device=rows.device)
        steps = ahead.expand(known.shape)[known]
        weights = (self.decay / self.reach) ** steps / known[..., 0].sum().clamp(min=1)
        hidden = model(batch, rows, num_tokens, num_read)[known].to(head.dtype)
        more: Tensor | None = None
        if isinstance(model, DSpark):
            before = model.markov_head.markov_w1(_before(batch, rows, num_read)[known])
            hidden = torch.cat([hidden, before.to(head.dtype)], -1)
            more = model.markov_head.markov_w2.weight
        total, hits, overlap = head_loss(
            hidden,
            head,
            target_probabilities(batch, head),
            places(batch, columns[..., None] + ahead)[known],
            weights,
            labels[known],
            more=more,
            variation=self.variation,
        )
        if isinstance(model, DSpark):
            # It learns to tell how good the draft is; the draft is not to learn from it.
            told = model.confidence_head.proj(hidden.detach()).squeeze(-1)
            wrong = functional.binary_cross_entropy_with_logits(
                told.float(), overlap, weights, reduction="sum"
            )
            total = total + wrong
        for step in range(min(num_read, self.min_tokens)):
            self.shares[step] = hits[steps == step].sum() / valid.sum().clamp(min=1)
        return Loss(total, list(self.shares))

    @torch.no_grad()
    def right(self, batch: Batch, num_steps: int) -> Tensor:
        model, head = self.model, self.vocabulary.head
        labels, known = self._labels(batch, batch.rows, batch.valid, num_steps)
        before = _before(batch, batch.rows, num_steps)
        hidden = model(batch, batch.rows, num_steps).to(head.dtype)
        found = torch.zeros_like(known)
        for index, row in enumerate(hidden):
            logits = row @ head.T
            if isinstance(model, DSpark):
                markov = model.markov_head
                logits = logits + markov.markov_w2(markov.markov_w1(before[index]))
            found[index] = logits.argmax(-1) == labels[index]
        return (found & known).cumprod(-1).bool()

    def _labels(
        self, batch: Batch, rows: Tensor, valid: Tensor, num_tokens: int
    ) -> tuple[Tensor, Tensor]:
        """Returns the tokens that each row's block should draft, as indices of the vocabulary, and
        which of them count.  # [batch, blocks, num_tokens] each"""
        at = rows[..., None] + 2 + torch.arange(num_tokens, device=rows.device)
        tokens = _tokens(batch, at)
        labels = self.vocabulary.places.to(rows.device)[tokens]
        known = valid[..., None] & (at < batch.lengths[:, None, None]) & (labels >= 0)
        return labels, known.cumprod(-1).bool()


def _tokens(batch: Batch, at: Tensor) -> Tensor:
    """Returns the tokens at some positions of each sequence.  # like ``at``: [batch, ...]"""
    flat = at.flatten(1).clamp(max=batch.tokens.shape[1] - 1)
    return batch.tokens.gather(1, flat).view(at.shape)


def _before(batch: Batch, rows: Tensor, num_tokens: int) -> Tensor:
    """Returns the token before each draft.  # int64 [batch, blocks, num_tokens]"""
    return _tokens(batch, rows[..., None] + 1 + torch.arange(num_tokens, device=rows.device))
