"""Batches of cached states, shuffled, of sequences of like length."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from paceline.errors import InputError
from paceline.training.shards import shard_file
from paceline.training.states import States, read_shard

SHARDS_AT_ONCE = 6
"""Sequences are mixed among so many shards: about 1.5 GB of them for a target of 576 hidden."""


class Batch(msgspec.Struct, frozen=True):
    """Sequences that are padded on the right to one length, and the rows that answers give.

    Row r of a sequence is the position i at which a draft begins: it has the target's states up to
    i and the token at i + 1, and drafts the token at i + 2 first.
    """

    tokens: Tensor  # int64 [batch, length]
    aux: Tensor  # [batch, length, A * hidden]
    final: Tensor  # [batch, length, hidden]
    rows: Tensor  # int64 [batch, rows]; padded by repeating the last one
    valid: Tensor  # bool [batch, rows]
    lengths: Tensor  # int64 [batch]

    @property
    def num_rows(self) -> int:
        return int(self.valid.sum())

    def to(self, device: torch.device) -> Batch:
        return Batch(*(getattr(self, name).to(device) for name in self.__struct_fields__))


def collate(sequences: list[States]) -> Batch:
    """Pads sequences; each has at least one row."""
    pad = torch.nn.utils.rnn.pad_sequence
    rows = [torch.arange(one.num_prompt - 1, len(one.tokens) - 2) for one in sequences]
    most = max(len(row) for row in rows)
    return Batch(
        tokens=pad([one.tokens for one in sequences], batch_first=True),
        aux=pad([one.aux for one in sequences], batch_first=True),
        final=pad([one.final for one in sequences], batch_first=True),
        rows=torch.stack([torch.cat([row, row[-1:].expand(most - len(row))]) for row in rows]),
        valid=torch.stack([torch.arange(most) < len(row) for row in rows]),
        lengths=torch.tensor([len(one.tokens) for one in sequences]),
    )


def num_rows(one: States) -> int:
    return len(one.tokens) - 1 - one.num_prompt


class Corpus:
    """The shards of a folder; those that are added while it is read are read as well.

    Raises:
        InputError: there are none, beside the first, which is held apart.
    """

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self._folder = folder
        self._seed = seed
        if not self.shards():
            raise InputError(f"there are no states in {folder}: run the stages answers and states")

    def shards(self) -> list[Path]:
        paths = sorted(self._folder.glob("[0-9]*.safetensors"))
        return [path for path in paths if path != shard_file(self._folder, 0)]

    def counts(self, vocab_size: int) -> tuple[Tensor, int]:
        """Returns how often each token occurs in the answers, and the number of rows.

        Tokens of prompts count a tenth, since answers take them up.  # float32 [vocab]
        """
        counts = torch.zeros(vocab_size)
        rows = 0
        for one in self.sequences():
            answer, prompt = one.tokens[one.num_prompt :], one.tokens[: one.num_prompt]
            counts += answer.bincount(minlength=vocab_size)
            counts += 0.1 * prompt.bincount(minlength=vocab_size)
            rows += max(0, num_rows(one))
        return counts, rows

    def sequences(self) -> Iterator[States]:
        """Yields everything once."""
        for path in self.shards():
            yield from read_shard(path)

    def validation(self, size: int, per_batch: int = 8) -> list[Batch]:
        """Returns greedy answers of the shard that is held apart."""
        path = shard_file(self._folder, 0)
        apart = read_shard(path) if path.is_file() else []
        chosen = [one for one in apart if one.greedy and num_rows(one) > 0][:size]
        chosen.sort(key=num_rows)
        return [collate(chosen[at : at + per_batch]) for at in range(0, len(chosen), per_batch)]

    def batches(self, max_rows: int, number: int) -> Iterator[Batch]:
        """Yields the batches of one pass, whose rows (padding counted) are ``max_rows`` at most."""
        order = random.Random(self._seed + number)
        done: set[Path] = set()
        while shards := [path for path in self.shards() if path not in done]:
            order.shuffle(shards)
            chosen = shards[:SHARDS_AT_ONCE]
            done.update(chosen)
            pool = [one for path in chosen for one in read_shard(path) if num_rows(one) > 0]
            yield from _batches(pool, max_rows, order)


def _batches(pool: list[States], max_rows: int, order: random.Random) -> Iterator[Batch]:
    order.shuffle(pool)
    # Like lengths beside each other, but not in the same company in every pass.
    pool.sort(key=lambda one: num_rows(one) + order.uniform(-8, 8))
    groups: list[list[States]] = [[]]
    for one in pool:
        widest = max([num_rows(one), *map(num_rows, groups[-1])])
        if groups[-1] and widest * (len(groups[-1]) + 1) > max_rows:
            groups.append([])
        groups[-1].append(one)
    order.shuffle(groups)
    for group in groups:
        yield collate(group)
