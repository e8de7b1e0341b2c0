"""From a recipe's draft to what is trained: the model, its start, its objective, its export."""

from __future__ import annotations

from functools import partial

import torch

from paceline.training import export
from paceline.training.autoregressive import Autoregressive, Eagle3, Mtp, take
from paceline.training.corpus import Batch
from paceline.training.objective import AutoregressiveObjective, Vocabulary
from paceline.training.recipe import DraftRecipe
from paceline.training.target import Target
from paceline.training.train import Made

NUM_OTHERS = 4096
"""Random tokens beside the frequent ones in a batch, for a draft that has the target's own head."""


def make(
    draft: DraftRecipe,
    target: Target,
    vocabulary: Vocabulary,
    layers: tuple[int, ...],
    samples: list[Batch],
    seed: int,
) -> Made:
    """Returns the draft as it starts.

    Args:
        layers: The layers of the auxiliary states.
        samples: Some batches, for the scale of the states.
    """
    aux = torch.cat([take(batch.aux, batch.rows)[batch.valid] for batch in samples])
    model: Autoregressive
    if draft.method == "eagle3":
        model = Eagle3(target.shape, target.embedding, len(layers), draft.num_layers)
        num_others = 0
    else:
        model = Mtp(target.shape, target.embedding, target.norm)
        num_others = NUM_OTHERS
    model.start_from(target, aux)
    objective = AutoregressiveObjective(
        model,
        vocabulary,
        num_steps=draft.num_speculative_tokens,
        share=draft.share,
        num_others=num_others,
        seed=seed,
    )
    return Made(objective, partial(export.export, model, vocabulary, target, layers))
