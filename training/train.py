"""The stage that trains a recipe's drafts and writes them in their published layouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from paceline.errors import ConfigError
from paceline.training import shards
from paceline.training.parts import Share
from paceline.training.progress import say
from paceline.training.recipe import DraftRecipe, Recipe

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.training.objective import Objective

TRAINING = "training"
"""In a draft's folder: its checkpoint, its vocabulary and the curve of its held-out figure."""
VOCABULARY = "vocabulary.safetensors"

NUM_VALIDATION = 48
"""Answers of the held-out figure that is shown during training."""


class Made(msgspec.Struct, frozen=True):
    """A draft that can be trained, and how it is written."""

    objective: Objective
    export: Callable[[Path], None]
    other_learning_rate: float = 1e-3
    """Of what is not a layer's matrix."""


def train(recipe: Recipe, given: list[Share]) -> None:
    """Stage ``train``: one draft after the other, each from where it was interrupted.

    Raises:
        ConfigError: the recipe names no draft.
        InputError: there are no states to learn from.
    """
    if not recipe.drafts:
        raise ConfigError("the recipe has no drafts to train: name some under 'drafts'")
    for draft in recipe.drafts:
        train_draft(recipe, draft, given[0].device)


def train_draft(recipe: Recipe, draft: DraftRecipe, device: str) -> None:
    """Trains one draft and exports it to its folder under ``recipe.drafts_folder``."""
    import torch

    from paceline.training.corpus import Corpus
    from paceline.training.methods import make
    from paceline.training.objective import Vocabulary
    from paceline.training.target import Target, target_folder, top_tokens
    from paceline.training.trainer import CHECKPOINT, Schedule, Trainer, load_start

    torch.manual_seed(recipe.seed)
    if device == "cpu":
        # More threads wait for each other in every product of this size.
        torch.set_num_threads(1)
    target = Target(target_folder(recipe.target, recipe.dtype))
    plan = shards.load_plan(recipe.states_folder)
    corpus = Corpus(recipe.states_folder, recipe.seed)
    assert plan is not None
    counts, num_rows = corpus.counts(target.shape.vocab_size)
    folder = recipe.drafts_folder / draft.name
    base = recipe.drafts_folder / draft.start_from if draft.start_from else None
    ids = load_vocabulary(folder)
    if ids is None and base is not None:
        ids = load_vocabulary(base)
        if ids is not None:
            save_vocabulary(folder, ids)
    if ids is None:
        ids = top_tokens(counts, draft.draft_vocab_size or target.shape.vocab_size)
        save_vocabulary(folder, ids)
    vocabulary = Vocabulary(ids, target.head.to(device))
    share = float(counts[ids].sum() / counts.sum())
    say(
        f"{draft.name}: {num_rows:,} rows a pass; the draft vocabulary has {len(ids):,} tokens, "
        f"{share:.1%} of the text"
    )
    validation = [batch.to(torch.device(device)) for batch in corpus.validation(NUM_VALIDATION)]
    start = None if (folder / TRAINING / CHECKPOINT).is_file() else corpus
    made = make(draft, target, vocabulary, plan.layers, start, recipe.seed)
    if start is not None and base is not None:
        load_start(base / TRAINING / CHECKPOINT, made.objective.model)
    made.objective.model.to(device)
    schedule = Schedule(
        rows=max(1, round(draft.passes * num_rows)),
        rows_per_step=draft.rows_per_step,
        seconds=60.0 * draft.max_minutes if draft.max_minutes else float("inf"),
        learning_rate=draft.learning_rate or Schedule(rows=1).learning_rate,
        other_learning_rate=made.other_learning_rate,
        num_speculative_tokens=draft.num_speculative_tokens,
    )

    def tell(text: str) -> None:
        say(f"{draft.name}: {text}")

    Trainer(made.objective, corpus, validation, schedule, folder / TRAINING, tell).run()
    made.export(folder)
    say(f"{draft.name}: written to {folder}")


def load_vocabulary(folder: Path) -> Tensor | None:
    """Returns the draft vocabulary that a training of the draft began with, in ascending order;
    None if none began. Counted anew, over more text, it could be another one.  # int64 [drafted]
    """
    from safetensors.torch import load_file

    path = folder / TRAINING / VOCABULARY
    return load_file(path)["ids"] if path.is_file() else None


def save_vocabulary(folder: Path, ids: Tensor) -> None:
    from safetensors.torch import save_file

    path = folder / TRAINING / VOCABULARY
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    save_file({"ids": ids}, part)
    part.replace(path)
