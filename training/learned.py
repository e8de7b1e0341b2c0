"""What a recipe's drafts learned from, in numbers, and where the prompts are from."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from paceline.training.answers import answer_files, read_answers
from paceline.training.prompt_rows import Origin, read_origins
from paceline.training.recipe import Recipe
from paceline.training.shards import load_plan


class Learned(msgspec.Struct, kw_only=True):
    """Sums over the answers that drafts learned from."""

    num_answers: int = 0
    num_greedy: int = 0
    num_tokens: int = 0
    """Of the answers, without the prompts."""
    num_rows: int = 0
    """Positions that a draft was trained at in one pass."""
    origins: dict[Origin, int] = {}
    """Answers by the origin of their prompts, the most frequent first."""


def learned(recipe: Recipe) -> Learned:
    """Reads the answers once; where states were computed, those that were held apart are left out.

    Raises:
        InputError: a file of answers or prompts cannot be read.
    """
    plan = load_plan(recipe.states_folder)
    wanted = {one for shard in plan.shards[1:] for one in shard} if plan else None
    found = Learned()
    ids: set[str] = set()
    for file in answer_files(recipe.answer_paths):
        for answer in read_answers(file):
            if answer.id in ids or (wanted is not None and answer.id not in wanted):
                continue
            ids.add(answer.id)
            found.num_answers += 1
            found.num_greedy += answer.temperature == 0
            found.num_tokens += len(answer.answer_ids)
            found.num_rows += max(0, len(answer.answer_ids) - 1)
    found.origins = _origins(recipe, ids)
    return found


def _origins(recipe: Recipe, ids: set[str]) -> dict[Origin, int]:
    counts: Counter[Origin] = Counter()
    left = set(ids)
    for source in recipe.prompts.sources:
        if source.file:
            for one, origin in read_origins(Path(source.file)):
                if one in left:
                    left.remove(one)
                    counts[origin] += 1
        else:
            prefix = "-".join(filter(None, (source.dataset, source.name, source.split))) + "-"
            there = {one for one in left if one.startswith(prefix)}
            left -= there
            counts[Origin(source.dataset, "")] += len(there)
    if left:
        counts[Origin("", "")] += len(left)
    return dict(counts.most_common())
