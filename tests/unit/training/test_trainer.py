"""The loop: it learns, and an interrupted training goes on to the same end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from paceline.errors import InputError
from paceline.training.autoregressive import Eagle3
from paceline.training.corpus import Batch, Corpus
from paceline.training.objective import AutoregressiveObjective, Loss, Vocabulary
from paceline.training.target import Target
from paceline.training.trainer import CHECKPOINT, Schedule, Trainer, load_start
from tests.unit.training.tiny_states import LAYERS, tiny_corpus, tiny_states, tiny_target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def shards(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpus(tmp_path_factory.mktemp("states"), tiny_states(target, 40))


class Interrupted(Exception):
    """Stands for a signal."""


class Interrupting(AutoregressiveObjective):
    """Ends the training at a given batch."""

    ends_at: int | None = None
    count = 0

    def loss(self, batch: Batch) -> Loss:
        self.count += 1
        if self.count == self.ends_at:
            raise Interrupted
        return super().loss(batch)


def trainer(
    target: Target,
    shards: Path,
    folder: Path,
    said: list[str],
    ends_at: int | None = None,
    model: Eagle3 | None = None,
) -> Trainer:
    torch.manual_seed(0)
    model = model or Eagle3(target.shape, target.embedding, len(LAYERS))
    vocabulary = Vocabulary(torch.arange(200), target.head)
    # All rows in all steps: nothing is left to chance but the order of the corpus.
    objective = Interrupting(model, vocabulary, num_steps=2, share=1.0)
    objective.ends_at = ends_at
    corpus = Corpus(shards)
    schedule = Schedule(rows=1500, rows_per_step=100, validate_seconds=0.0, report_seconds=0.0)
    return Trainer(
        objective, corpus, corpus.validation(4), schedule, folder, said.append, torch.float32
    )


def weights(made: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in made.objective.model.named_parameters()}


def test_an_interrupted_training_comes_to_the_same_end(
    target: Target, shards: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    whole = trainer(target, shards, tmp_path / "whole", said)
    whole.run()

    with pytest.raises(Interrupted):
        trainer(target, shards, tmp_path / "parts", said, ends_at=6).run()
    with pytest.raises(Interrupted):
        trainer(target, shards, tmp_path / "parts", said, ends_at=7).run()
    last = trainer(target, shards, tmp_path / "parts", said)
    last.run()
    assert sum("going on" in line for line in said) == 2
    assert last.state.rows == whole.state.rows >= 1500
    torch.testing.assert_close(weights(last), weights(whole))

    lines = (tmp_path / "parts" / "held_out.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["rows"] == last.state.rows
    # One that is finished says so, and changes nothing.
    steps = last.state.steps
    again = trainer(target, shards, tmp_path / "parts", said)
    again.run()
    assert again.state.steps == steps


def test_a_draft_of_more_layers_starts_where_a_trained_one_ended(
    target: Target, shards: Path, tmp_path: Path
) -> None:
    base = trainer(target, shards, tmp_path / "base", [])
    base.run()
    model = Eagle3(target.shape, target.embedding, len(LAYERS), num_layers=2)
    deep = trainer(target, shards, tmp_path / "deep", [], model=model)
    model.start_from(target, list(deep.corpus.batches(256, 0)))
    load_start(tmp_path / "base" / CHECKPOINT, model)
    assert deep.validate() == base.validate()

    with pytest.raises(InputError, match="no place"):
        load_start(tmp_path / "base" / CHECKPOINT, torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match="train the draft that this one starts from first"):
        load_start(tmp_path / "none" / CHECKPOINT, model)


def test_what_is_held_apart_is_not_learned_from(shards: Path) -> None:
    corpus = Corpus(shards)
    learned = {tuple(row.tolist()) for batch in corpus.batches(100, 0) for row in batch.tokens}
    apart = {tuple(row.tolist()) for batch in corpus.validation(99) for row in batch.tokens}
    width = min(len(row) for row in learned | apart)
    assert apart and not {row[:width] for row in learned} & {row[:width] for row in apart}


def test_each_pass_has_every_row_once_in_an_order_of_its_own(shards: Path) -> None:
    corpus = Corpus(shards)
    _, num_rows = corpus.counts(256)
    first, second = ([b.rows.shape for b in corpus.batches(100, n)] for n in (0, 1))
    assert sum(b.num_rows for b in corpus.batches(100, 0)) == num_rows
    assert first != second
    assert max(batch * rows for batch, rows in first) <= 100


def test_a_folder_without_states_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run the stages answers and states"):
        Corpus(tmp_path)
