"""The target's states on disk: one safetensors file per shard of answers.

A draft that is conditioned on its target learns from what the target computed: the auxiliary hidden
states at the input of some layers and the final hidden state, at every position of a prompt and its
answer. They are computed once, by one teacher-forced pass, and read by every training.

A shard holds, for its sequences one after the other (T tokens in all, A auxiliary layers, H hidden):

    tokens    int32 [T]          aux       [T, A * H]     in the target's dtype
    starts    int64 [N + 1]      final     [T, H]         after the target's last norm
    prompts   int64 [N]          number of prompt tokens of each sequence
    greedy    bool  [N]          whether its answer was decoded greedily

``aux`` layer i is the input of layer i: Hugging Face's ``hidden_states[i]``, EAGLE-3's numbering.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

SEQUENCES_PER_SHARD = 128


class Sequence(msgspec.Struct, frozen=True):
    """An answer that the target gave."""

    prompt: list[int]
    answer: list[int]
    greedy: bool


class States(msgspec.Struct, frozen=True):
    """What one sequence of n tokens brings to a training."""

    tokens: Tensor  # int64 [n]
    num_prompt: int
    greedy: bool
    aux: Tensor  # [n, A * H]
    final: Tensor  # [n, H]


def batches(sequences: list[Sequence], max_tokens: int) -> Iterator[list[int]]:
    """Yields indices of sequences of like length: ``max_tokens`` a batch, padding counted."""
    batch: list[int] = []
    longest = 0
    order = sorted(range(len(sequences)), key=lambda i: -_length(sequences[i]))
    for index in order:
        longest = max(longest, _length(sequences[index]))
        if batch and longest * (len(batch) + 1) > max_tokens:
            yield batch
            batch, longest = [], _length(sequences[index])
        batch.append(index)
    if batch:
        yield batch


def _length(sequence: Sequence) -> int:
    return len(sequence.prompt) + len(sequence.answer)


@torch.inference_mode()
def compute(
    target: torch.nn.Module,
    layers: tuple[int, ...],
    sequences: list[Sequence],
    max_tokens: int = 2048,
) -> list[States]:
    """Runs the target's body (a transformers model without its head) over the sequences.

    Sequences are padded on the right: attention is causal, so no row that is kept sees the padding.
    """
    found: dict[int, States] = {}
    device = next(target.parameters()).device
    for batch in batches(sequences, max_tokens):
        rows = [sequences[i].prompt + sequences[i].answer for i in batch]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)
        output = target(input_ids=ids, use_cache=False, output_hidden_states=True)
        hidden = output.hidden_states
        for at, index in enumerate(batch):
            length = len(rows[at])
            found[index] = States(
                tokens=ids[at, :length].cpu(),
                num_prompt=len(sequences[index].prompt),
                greedy=sequences[index].greedy,
                aux=torch.cat([hidden[layer][at, :length] for layer in layers], -1).cpu(),
                final=output.last_hidden_state[at, :length].cpu(),
            )
    return [found[index] for index in range(len(sequences))]


def save_shard(path: Path, states: list[States]) -> None:
    """Writes a shard; a reader sees it whole or not at all."""
    lengths = torch.tensor([0] + [len(one.tokens) for one in states])
    tensors = {
        "tokens": torch.cat([one.tokens for one in states]).to(torch.int32),
        "starts": lengths.cumsum(0),
        "prompts": torch.tensor([one.num_prompt for one in states]),
        "greedy": torch.tensor([one.greedy for one in states]),
        "aux": torch.cat([one.aux for one in states]),
        "final": torch.cat([one.final for one in states]),
    }
    part = path.with_suffix(".part")
    save_file(tensors, part)
    os.replace(part, path)


def read_shard(path: Path) -> Iterable[States]:
    """Yields the sequences of a shard; their tensors are views of the mapped file."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    starts = tensors["starts"].tolist()
    for index, (start, end) in enumerate(zip(starts, starts[1:], strict=False)):
        yield States(
            tokens=tensors["tokens"][start:end].long(),
            num_prompt=int(tensors["prompts"][index]),
            greedy=bool(tensors["greedy"][index]),
            aux=tensors["aux"][start:end],
            final=tensors["final"][start:end],
        )
