"""Which answers are in which shard of states, and the work of computing the shards.

A plan beside the shards says so, and only grows: answers that come later fill new shards, and those
that are there stay as they are. The first shard is held apart: no draft learns from it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from paceline.errors import ConfigError, InputError
from paceline.training.answers import Answer
from paceline.training.progress import Progress, say

if TYPE_CHECKING:
    import torch

PLAN_FILE = "plan.json"
SEQUENCES_PER_SHARD = 128
VALIDATION_SHARE = 0.05
"""Of the answers of the first plan, but one shard at most."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the shards in a folder hold, and what they were computed with."""

    target: str
    dtype: str
    layers: tuple[int, ...]
    shards: list[list[str]] = []
    """Ids of the answers of each shard."""

    def missing(self, folder: Path) -> list[int]:
        """Returns the shards that are not there yet."""
        return [i for i in range(len(self.shards)) if not shard_file(folder, i).exists()]


def shard_file(folder: Path, index: int) -> Path:
    """Where a shard is; shard 0 is the one that is held apart."""
    return folder / f"{index:05}.safetensors"


def load_plan(folder: Path) -> Plan | None:
    """Returns the folder's plan; None if there is none yet.

    Raises:
        InputError: the plan cannot be read.
    """
    path = folder / PLAN_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Plan)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(
            f"{path} cannot be read ({error}): remove the folder, and states are computed anew"
        ) from error


def save_plan(folder: Path, plan: Plan) -> None:
    """Writes the plan; a reader sees the old one or the new one."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{PLAN_FILE}.part"
    part.write_bytes(msgspec.json.encode(plan))
    os.replace(part, folder / PLAN_FILE)


def check_plan(plan: Plan, wanted: Plan, folder: Path) -> None:
    """Raises ConfigError if the shards that are there were computed with something else."""
    for name in ("target", "dtype", "layers"):
        there, now = getattr(plan, name), getattr(wanted, name)
        if there != now:
            raise ConfigError(
                f"the states in {folder} are of {name} {there}, and the recipe says {now}: name "
                "another folder in the recipe, or remove this one"
            )


def extend(plan: Plan, ids: Iterable[str], seed: int) -> Plan:
    """Returns the plan with shards of those ids that it does not have yet, in a seeded order."""
    there = {one for shard in plan.shards for one in shard}
    new = sorted(set(ids) - there)
    random.Random(seed + len(plan.shards)).shuffle(new)
    shards = list(plan.shards)
    if not shards and new:
        size = min(SEQUENCES_PER_SHARD, max(1, round(len(new) * VALIDATION_SHARE)))
        shards.append(new[:size])
        new = new[size:]
    shards += [
        new[start : start + SEQUENCES_PER_SHARD]
        for start in range(0, len(new), SEQUENCES_PER_SHARD)
    ]
    return msgspec.structs.replace(plan, shards=shards)


def compute_shards(
    plan: Plan,
    folder: Path,
    answers: Iterator[Answer],
    load_target: Callable[[], torch.nn.Module],
    *,
    part: int = 0,
    parts: int = 1,
    max_batch_tokens: int = 2048,
    tell: Callable[[str], None] = say,
) -> None:
    """Computes this part's share of the shards that are missing, one after the other.

    ``load_target`` loads the target's body, if there is work for it; a batch holds
    ``max_batch_tokens`` tokens.

    Raises:
        InputError: an answer of the plan is not among ``answers``.
    """
    from paceline.training.states import Sequence, compute, save_shard

    mine = [index for index in plan.missing(folder) if index % parts == part]
    wanted = {one for index in mine for one in plan.shards[index]}
    sequences: dict[str, Sequence] = {}
    for answer in answers if wanted else ():
        if answer.id in wanted:
            sequences[answer.id] = Sequence(
                answer.prompt_ids, answer.answer_ids, answer.temperature == 0
            )
    for one in wanted - sequences.keys():
        raise InputError(
            f"the answer '{one}', which {folder / PLAN_FILE} names, is gone: bring its file back, "
            "or remove the folder"
        )
    if not mine:
        return
    target = load_target()
    progress = Progress("shards", len(mine), tell=tell)
    for index in mine:
        states = compute(
            target, plan.layers, [sequences[one] for one in plan.shards[index]], max_batch_tokens
        )
        save_shard(shard_file(folder, index), states)
        progress.count(1, sum(len(one.tokens) for one in states))
    progress.report()
