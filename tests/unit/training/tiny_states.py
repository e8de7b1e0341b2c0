"""A tiny target and states of it, for tests of trainings."""

from __future__ import annotations

from pathlib import Path

import torch

from paceline.training.shards import shard_file
from paceline.training.states import Sequence, States, compute, save_shard
from paceline.training.target import Target
from tests.tiny import VOCAB_SIZE, make_tiny_llama

LAYERS = (0, 1)


def tiny_target(folder: Path, hidden_size: int = 64) -> Target:
    return Target(make_tiny_llama(folder, hidden_size=hidden_size))


def tiny_states(
    target: Target,
    number: int,
    *,
    prompt: int = 5,
    answer: int = 20,
    num_tokens: int = VOCAB_SIZE,
    period: int | None = None,
) -> list[States]:
    """The target's states over random text of unequal lengths.

    Args:
        num_tokens: Of the vocabulary, how many occur.
        period: The text repeats itself after so many tokens, which are different ones.
    """
    from transformers import AutoModel

    generator = torch.Generator().manual_seed(number)
    sequences = []
    for index in range(number):
        size = prompt + answer + index % 4
        if period is None:
            ids = torch.randint(num_tokens, (size,), generator=generator)
        else:
            ids = torch.randperm(num_tokens, generator=generator)[torch.arange(size) % period]
        sequences.append(Sequence(ids[:prompt].tolist(), ids[prompt:].tolist(), greedy=True))
    body = AutoModel.from_pretrained(target.folder, dtype=torch.float32).eval()
    return compute(body, LAYERS, sequences)


def tiny_corpus(folder: Path, states: list[States], per_shard: int = 8) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for index, start in enumerate(range(0, len(states), per_shard)):
        save_shard(shard_file(folder, index), states[start : start + per_shard])
    return folder
