"""The unrolled training computes what a drafter does that takes one step after the other."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from paceline.training import autoregressive
from paceline.training.autoregressive import Autoregressive, Eagle3, Mtp
from paceline.training.corpus import Batch, collate
from paceline.training.head_start import take
from paceline.training.layers import Attention, DecoderLayer
from paceline.training.objective import AutoregressiveObjective, Rounds, Vocabulary
from paceline.training.target import Target
from tests.tiny import VOCAB_SIZE
from tests.unit.training.tiny_states import LAYERS, tiny_states, tiny_target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def batch(target: Target) -> Batch:
    return collate(tiny_states(target, 3))


def models(target: Target) -> dict[str, Autoregressive]:
    torch.manual_seed(1)
    shape, embedding = target.shape, target.embedding
    made: dict[str, Autoregressive] = {
        "eagle3": Eagle3(shape, embedding, len(LAYERS)),
        "eagle3, 3 layers": Eagle3(shape, embedding, len(LAYERS), 3),
        "mtp": Mtp(shape, embedding, target.norm),
    }
    for model in made.values():
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    return made


KINDS = ["eagle3", "eagle3, 3 layers", "mtp"]


def attend(attention: Attention, inputs: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Plain causal attention over all given positions."""
    q = attention.queries(inputs, rotation)
    k, v = attention.keys_values(inputs, rotation)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return attention.o_proj(out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def draft(
    model: Autoregressive, batch: Batch, sequence: int, row: int, num_steps: int
) -> list[Tensor]:
    """Drafts behind one row as an engine does: all positions up to it at once, then one position
    for each step, whose hidden state comes from the step before."""
    tokens = batch.tokens[sequence : sequence + 1]
    conditions = model.conditions(batch)[sequence : sequence + 1, : row + 1]
    first = model.first_embeds(batch.tokens)[sequence : sequence + 1, : row + 1]
    hidden, embeds, outputs = conditions, first, []
    for step in range(num_steps):
        length = hidden.shape[1]
        rotation = model.rotary(torch.arange(length)[None])
        x = model.begin(hidden, embeds)
        for layer in model.layers:
            assert isinstance(layer, DecoderLayer)
            inputs = layer.attention_input(x, embeds)
            x = x + attend(layer.self_attn, inputs, rotation)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        feedback, output = model.end(x)
        outputs.append(output[0, -1])
        hidden = torch.cat([hidden, feedback[:, -1:]], 1)
        at = row + 2 + step
        embeds = torch.cat([embeds, model.embed(tokens[:, at : at + 1])], 1)
    return outputs


@pytest.mark.parametrize("kind", KINDS)
def test_unrolled_rows_are_what_single_steps_give(kind: str, target: Target, batch: Batch) -> None:
    model = models(target)[kind]
    num_steps = 4
    with torch.no_grad():
        steps = list(model.unroll(batch, num_steps))
        for sequence in range(3):
            for column in (0, 3, 9):
                row = int(batch.rows[sequence, column])
                expected = draft(model, batch, sequence, row, num_steps)
                for step, one in zip(steps, expected, strict=True):
                    torch.testing.assert_close(step.output[sequence, column], one)


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_of_the_rows_gives_the_same_rows(kind: str, target: Target, batch: Batch) -> None:
    model = models(target)[kind]
    with torch.no_grad():
        whole = list(model.unroll(batch, 3))
        part = list(model.unroll(batch, 3, 0.4, torch.Generator().manual_seed(0)))
    assert part[1].rows.shape[1] == round(0.4 * batch.rows.shape[1])
    for one, every in zip(part, whole, strict=True):
        torch.testing.assert_close(one.output, take(every.output, one.columns))
        assert torch.equal(one.valid, every.valid.gather(1, one.columns))


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind: str, target: Target) -> None:
    states = tiny_states(target, 4)
    model = models(target)[kind]
    with torch.no_grad():
        together = list(model.unroll(collate(states), 3))
        for index, one in enumerate(states):
            alone = list(model.unroll(collate([one]), 3))
            for step, other in zip(together, alone, strict=True):
                size = int(other.valid.sum())
                assert int(step.valid[index].sum()) == size
                torch.testing.assert_close(step.output[index, :size], other.output[0, :size])


def test_the_loss_falls_and_what_is_right_rises(target: Target, batch: Batch) -> None:
    vocabulary = Vocabulary(torch.arange(0, VOCAB_SIZE, 2), target.head)
    model = Eagle3(target.shape, target.embedding, len(LAYERS))
    objective = AutoregressiveObjective(model, vocabulary, num_steps=3, share=1.0)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    torch.manual_seed(0)
    losses = []
    for _ in range(40):
        loss = objective.loss(batch)
        loss.total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.total.item())
    assert losses[-1] < 0.8 * losses[0]


def test_right_counts_a_token_that_is_in_no_draft_vocabulary_as_wrong(
    target: Target, batch: Batch
) -> None:
    outside = batch.tokens[0, int(batch.rows[0, 0]) + 2]
    ids = torch.tensor([token for token in range(VOCAB_SIZE) if token != int(outside)])
    objective = AutoregressiveObjective(
        models(target)["eagle3"], Vocabulary(ids, target.head), num_steps=2
    )
    assert not objective.right(batch, 2)[0, 0].any()


def test_rounds_begin_behind_what_the_one_before_committed() -> None:
    lengths = torch.tensor([[2, 0, 0, 1, 0, 3, 0], [0, 0, 9, 9, 9, 9, 9]])
    right = torch.arange(3)[None, None] < lengths[..., None]
    valid = torch.arange(7)[None] < torch.tensor([[6], [2]])
    rounds = Rounds()
    rounds.add(right, valid)
    # The first: rows 0 (2 accepted), 3 (1), 5 (3). The second: rows 0 and 1, with none.
    assert (rounds.rounds, rounds.accepted) == (5, [3, 2, 1])
    assert rounds.mean_acceptance_length == 1 + 6 / 5


@pytest.mark.parametrize("kind", ["eagle3", "mtp"])
def test_an_untrained_head_repeats_what_it_has_seen(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_target(tmp_path, hidden_size=256)
    states = [
        # A target that is sure of the text, and whose states tell of their own token.
        msgspec.structs.replace(
            one, final=target.head[one.tokens.roll(-1)] + target.embedding[one.tokens]
        )
        for one in tiny_states(target, 300, prompt=12, answer=24, period=12, num_tokens=24)
    ]

    def share_of_right(copy_logit: float) -> float:
        monkeypatch.setattr(autoregressive, "EAGLE3_COPY", copy_logit)
        monkeypatch.setattr(autoregressive, "MTP_COPY", copy_logit)
        model: Eagle3 | Mtp
        if kind == "eagle3":
            model = Eagle3(target.shape, target.embedding, len(LAYERS))
        else:
            model = Mtp(target.shape, target.embedding, target.norm)
        model.start_from(target, [collate(states[at : at + 8]) for at in range(0, 280, 8)])
        vocabulary = Vocabulary(torch.arange(VOCAB_SIZE), target.head)
        right = AutoregressiveObjective(model, vocabulary).right(collate(states[280:]), 1)
        # The first row that can know begins at the prompt's last token but one.
        return float(right[:, 1:20].float().mean())

    assert share_of_right(0.01) < 0.2
    assert share_of_right(30.0) > 0.8
