"""From a recipe's draft to what is trained: the model, its start, its objective, its export."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import partial

import msgspec

from paceline.training import block_start, causal_start, export, export_block, export_causal
from paceline.training.autoregressive import Autoregressive, Eagle3, Mtp
from paceline.training.block import DFlash, DSpark
from paceline.training.block_objective import BlockObjective
from paceline.training.block_queries import NUM_KINDS
from paceline.training.causal_lm import CausalLM, CausalLMObjective
from paceline.training.corpus import Batch, Corpus
from paceline.training.objective import AutoregressiveObjective, Vocabulary
from paceline.training.recipe import DraftRecipe
from paceline.training.target import Shape, Target
from paceline.training.train import Made

ROWS_AT_ONCE = 2048
NUM_BATCHES = 90
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
    corpus: Corpus | None,
    seed: int,
) -> Made:
    """Returns the draft as it starts.

    Args:
        layers: The layers of the auxiliary states.
        corpus: What the start is computed from; None: with random weights, for a draft that a
            checkpoint is loaded into.
    """
    if draft.method == "causal_lm":
        return _causal_lm(draft, target, vocabulary, corpus, seed)
    if draft.method in ("dflash", "dspark"):
        return _block(draft, target, vocabulary, layers, corpus, seed)
    model: Autoregressive
    if draft.method == "eagle3":
        model = Eagle3(target.shape, target.embedding, len(layers), draft.num_layers)
        num_others = 0
    else:
        model = Mtp(target.shape, target.embedding, target.norm)
        num_others = NUM_OTHERS
    if corpus is not None:
        model.start_from(target, _samples(corpus))
    objective = AutoregressiveObjective(
        model,
        vocabulary,
        num_steps=draft.num_speculative_tokens,
        share=draft.share,
        num_others=num_others,
        seed=seed,
    )
    return Made(objective, partial(export.export, model, vocabulary, target, layers))


def _samples(corpus: Corpus) -> Iterator[Batch]:
    """Yields as many rows as determine a regression."""
    return itertools.islice(corpus.batches(ROWS_AT_ONCE, 0), NUM_BATCHES)


def _block(
    draft: DraftRecipe,
    target: Target,
    vocabulary: Vocabulary,
    layers: tuple[int, ...],
    corpus: Corpus | None,
    seed: int,
) -> Made:
    # Each key head has a query head of every kind that a draft starts with.
    shape = msgspec.structs.replace(
        target.shape, num_attention_heads=NUM_KINDS * target.shape.num_key_value_heads
    )
    sizes = (shape, target.embedding, len(layers), mask_token(target, vocabulary))
    model: DFlash
    if draft.method == "dflash":
        model = DFlash(*sizes, draft.num_layers)
    else:
        model = DSpark(*sizes, len(vocabulary.ids), draft.num_layers)
    if corpus is not None:
        block_start.start(model, target, _samples(corpus))
    max_tokens = max(draft.num_speculative_tokens, draft.block_size - model.first_slot)
    objective = BlockObjective(
        model,
        vocabulary,
        min_tokens=draft.num_speculative_tokens,
        max_tokens=max_tokens,
        share=draft.share,
        seed=seed,
    )
    return Made(
        objective, partial(export_block.export, model, vocabulary, target, layers, max_tokens)
    )


def mask_token(target: Target, vocabulary: Vocabulary) -> int:
    """Returns a token that marks what is to be drafted: a special one that no text has, or, if the
    tokenizer has none to spare, any that is not in the draft vocabulary."""
    file = target.folder / "tokenizer.json"
    added = json.loads(file.read_text())["added_tokens"] if file.is_file() else []
    special = [int(token["id"]) for token in added if token["special"]]
    for token in (*reversed(special), *reversed(range(target.shape.vocab_size))):
        if vocabulary.places[token] < 0:
            return token
    return special[-1] if special else target.shape.vocab_size - 1


def _causal_lm(
    draft: DraftRecipe, target: Target, vocabulary: Vocabulary, corpus: Corpus | None, seed: int
) -> Made:
    model = CausalLM(small(target.shape), draft.num_layers, len(vocabulary.ids))
    shape = target.shape
    if corpus is not None:
        found = causal_start.means(corpus.sequences(), shape.vocab_size, shape.hidden_size)
        causal_start.start(model, vocabulary, target.embedding, found, seed)
    objective = CausalLMObjective(model, vocabulary, seed=seed)
    # Its embedding and its head are most of it, and learn at a higher rate than a few norms.
    return Made(objective, partial(export_causal.export, model, vocabulary, target), 2e-3)
