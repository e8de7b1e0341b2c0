"""What a training asks of a draft: a loss to lower, and which drafts would be accepted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec
import torch
from torch import Tensor, nn

from paceline.training.autoregressive import Autoregressive, Step
from paceline.training.corpus import Batch
from paceline.training.head_loss import head_loss


class Loss(msgspec.Struct):
    """The loss of a batch and what it says of the batch."""

    total: Tensor
    """Mean over the batch's rows, summed over the steps; what is differentiated."""
    right: list[Tensor]
    """Of each step, the share of its rows whose best token is the text's."""


class Objective(Protocol):
    """One method's training."""

    @property
    def model(self) -> nn.Module: ...

    def loss(self, batch: Batch) -> Loss: ...

    def right(self, batch: Batch, num_steps: int) -> Tensor:
        """Whether each row's draft tokens are the text's, up to the first that is not.

        Returns: bool [batch, rows, num_steps]; False behind the text's end.
        """
        ...


class Vocabulary:
    """The tokens that a draft may propose, and the target's head cut to them."""

    def __init__(self, ids: Tensor, head: Tensor) -> None:
        """``ids`` is ascending; ``head`` is the whole vocabulary's.  # [vocab, hidden]"""
        self.ids = ids
        self.whole = head
        self.head = head[ids]
        self.places = torch.full((len(head),), -1, dtype=torch.int64)
        """By token id, its index in ``ids``, or -1."""
        self.places[ids] = torch.arange(len(ids))

    def with_others(self, number: int, generator: torch.Generator) -> Vocabulary:
        """Returns this vocabulary with so many random tokens more.

        For a draft whose head is the whole vocabulary's: it has to learn that rare tokens are rare.
        """
        others = torch.randperm(len(self.whole), generator=generator)[:number]
        return Vocabulary(torch.unique(torch.cat([self.ids, others])), self.whole)


class AutoregressiveObjective:
    """Cross-entropy to the target's distribution in each of the unrolled steps."""

    def __init__(
        self,
        model: Autoregressive,
        vocabulary: Vocabulary,
        *,
        num_steps: int = 4,
        decay: float = 0.8,
        share: float = 0.5,
        num_others: int = 0,
        seed: int = 0,
    ) -> None:
        """
        Args:
            decay: Weight of each step against the one before, as in EAGLE-3.
            share: Share of rows that take part in the steps behind the first.
            num_others: Tokens beside the vocabulary in each batch; 0: the draft's head has the
                vocabulary only.
        """
        self.model: Autoregressive = model
        self.vocabulary = vocabulary
        self.num_steps, self.decay, self.share = num_steps, decay, share
        self.num_others = num_others
        self.generator = torch.Generator().manual_seed(seed)

    def loss(self, batch: Batch) -> Loss:
        vocabulary = self.vocabulary
        if self.num_others:
            vocabulary = vocabulary.with_others(self.num_others, self.generator)
        head = vocabulary.head
        probabilities = target_probabilities(batch, head)
        total = torch.zeros((), device=batch.tokens.device)
        right: list[Tensor] = []
        for step in self.model.unroll(batch, self.num_steps, self.share, self.generator):
            labels, known = _labels(batch, step, vocabulary)
            weights = known.float()
            weights = weights * (self.decay**step.index / weights.sum().clamp(min=1.0))
            loss, hits, _ = head_loss(
                step.output.flatten(0, 1).to(head.dtype),
                head,
                probabilities,
                places(batch, step.columns + step.index).flatten(),
                weights.flatten(),
                labels.flatten(),
            )
            total = total + loss
            right.append((hits & step.valid.flatten()).sum() / step.valid.sum().clamp(min=1))
        return Loss(total, right)

    @torch.no_grad()
    def right(self, batch: Batch, num_steps: int) -> Tensor:
        vocabulary = self.vocabulary
        if self.num_others:
            vocabulary = Vocabulary(torch.arange(len(vocabulary.whole)), vocabulary.whole)
        found = []
        for step in self.model.unroll(batch, num_steps):
            labels, known = _labels(batch, step, vocabulary)
            output = step.output.to(vocabulary.head.dtype)
            best = torch.stack([(row @ vocabulary.head.T).argmax(-1) for row in output])
            found.append((best == labels) & known)
        return torch.stack(found, -1).cumprod(-1).bool()


def target_probabilities(batch: Batch, head: Tensor) -> Tensor:
    """Returns the target's distribution for the token that each row drafts first.

    Returns: [batch * rows, vocab] in the head's dtype
    """
    at = batch.rows + 1
    final = batch.final.gather(1, at[..., None].expand(-1, -1, batch.final.shape[-1]))
    return distributions(final.flatten(0, 1), head)


def distributions(final: Tensor, head: Tensor) -> Tensor:
    """Returns the target's distributions that belong to its final states.

    Args:
        final: # [rows, hidden]

    Returns: [rows, vocab] in the head's dtype
    """
    rows = final.to(head.dtype)
    return torch.cat(
        [(part @ head.T).float().softmax(-1).to(head.dtype) for part in torch.split(rows, 512)]
    )


def places(batch: Batch, columns: Tensor) -> Tensor:
    """Returns the row of ``target_probabilities`` for some of each text's rows: a text's rows
    follow each other, so what one drafts second is what the next one drafts first.

    Args:
        columns: The row that drafts the token first; behind the last, the last.  # [batch, ...]

    Returns: int64, like ``columns``
    """
    batch_size, num_rows = batch.rows.shape
    first = torch.arange(batch_size, device=columns.device) * num_rows
    return first.view(-1, *[1] * (columns.ndim - 1)) + columns.clamp(max=num_rows - 1)


def _labels(batch: Batch, step: Step, vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    at = (step.rows + 2 + step.index).clamp(max=batch.tokens.shape[1] - 1)
    labels = vocabulary.places.to(at.device)[batch.tokens.gather(1, at)]
    return labels, step.valid & (labels >= 0)


def played(lengths: list[int], num_rows: int) -> Iterator[int]:
    """Yields how many drafts each round over a text accepts; each begins behind what the one before
    committed.

    Args:
        lengths: Of each row, how many of its drafts are the text's.
        num_rows: Of the text; further ones are padding.
    """
    at = 0
    while at < num_rows:
        yield lengths[at]
        at += lengths[at] + 1


class Rounds(msgspec.Struct):
    """Counts of drafted rounds over recorded greedy text, as a run would have them."""

    rounds: int = 0
    accepted: list[int] = []

    def add(self, right: Tensor, valid: Tensor) -> None:
        """Plays the rounds of a batch.

        Args:
            right: As ``Objective.right`` returns it.  # bool [batch, rows, num_steps]
            valid: # bool [batch, rows]
        """
        num_steps = right.shape[-1]
        self.accepted = self.accepted or [0] * num_steps
        lengths = right.sum(-1).tolist()
        for row_lengths, num_rows in zip(lengths, valid.sum(1).tolist(), strict=True):
            for num_accepted in played(row_lengths, num_rows):
                self.rounds += 1
                for position in range(num_accepted):
                    self.accepted[position] += 1

    @property
    def mean_acceptance_length(self) -> float:
        """With the bonus token."""
        return 1.0 + sum(self.accepted) / max(1, self.rounds)

    def per_position(self) -> list[float]:
        return [count / max(1, self.rounds) for count in self.accepted]
