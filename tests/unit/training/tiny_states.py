"""A tiny target and states of it, for tests of trainings."""

from __future__ import annotations

from pathlib import Path

import torch

from paceline.training.shards import shard_file
from paceline.training.states import Sequence, States, compute, save_shard
from paceline.training.target import Target
from tests.tiny import VOCAB_SIZE, make_tiny_llama

LAYERS = (0, 1)


def tiny_target(folder: Path) -> Target:
    return Target(make_tiny_llama(folder))


def tiny_states(target: Target, number: int, *, prompt: int = 5, answer: int = 20) -> list[States]:
    """The target's states over random text of unequal lengths."""
    from transformers import AutoModel

    generator = torch.Generator().manual_seed(number)
    sequences = []
    for index in range(number):
        ids = torch.randint(VOCAB_SIZE, (prompt + answer + index % 4,), generator=generator)
        sequences.append(Sequence(ids[:prompt].tolist(), ids[prompt:].tolist(), greedy=True))
    body = AutoModel.from_pretrained(target.folder, dtype=torch.float32).eval()
    return compute(body, LAYERS, sequences)


def tiny_corpus(folder: Path, states: list[States], per_shard: int = 8) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for index, start in enumerate(range(0, len(states), per_shard)):
        save_shard(shard_file(folder, index), states[start : start + per_shard])
    return folder
