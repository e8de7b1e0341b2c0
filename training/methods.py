"""From a recipe's draft to what is trained: the model, its start, its objective, its export."""

from __future__ import annotations

from functools import partial

import msgspec
import torch

from paceline.training import causal_start, export, export_causal
from paceline.training.autoregressive import Autoregressive, Eagle3, Mtp, take
from paceline.training.causal_lm import CausalLM, CausalLMObjective
from paceline.training.corpus import Batch, Corpus
from paceline.training.objective import AutoregressiveObjective, Vocabulary
from paceline.training.recipe import DraftRecipe
from paceline.training.target import Shape, Target
from paceline.training.train import Made

NUM_OTHERS = 4096
"""Random tokens beside the frequent ones in a batch, for a draft that has the target's own head."""


def small(shape: Shape) -> Shape:
    """Returns the shape of a language model that drafts for a target of the given one.

    Its head's rows are most of what a step reads: its hidden size is what a step costs.
    """
    return msgspec.structs.replace(
        shape,
        hidden_size=256,
        # Three layers and both of SmolLM2's embeddings are 55 MB.
        intermediate_size=704,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        rope_theta=causal_start.ROPE_THETA,
    )


def make(
    draft: DraftRecipe,
    target: Target,
    vocabulary: Vocabulary,
    layers: tuple[int, ...],
    corpus: Corpus,
    samples: list[Batch],
    seed: int,
) -> Made:
    """Returns the draft as it starts.

    Args:
        layers: The layers of the auxiliary states.
        samples: Some batches, for the scale of the states.
    """
    if draft.method == "causal_lm":
        return _causal_lm(draft, target, vocabulary, corpus, seed)
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


def _causal_lm(
    draft: DraftRecipe, target: Target, vocabulary: Vocabulary, corpus: Corpus, seed: int
) -> Made:
    model = CausalLM(small(target.shape), draft.num_layers, len(vocabulary.ids))
    shape = target.shape
    found = causal_start.means(corpus.sequences(), shape.vocab_size, shape.hidden_size)
    causal_start.start(model, vocabulary, target.embedding, found, seed)
    objective = CausalLMObjective(model, vocabulary, seed=seed)
    # Its embedding and its head are most of it, and learn at a higher rate than a few norms.
    return Made(objective, partial(export_causal.export, model, vocabulary, target), 2e-3)
