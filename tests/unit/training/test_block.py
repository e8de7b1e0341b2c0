"""The block training computes what a drafter does that fills one block."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paceline.training.block import BlockLayer, DFlash, DSpark
from paceline.training.block_objective import BlockObjective
from paceline.training.block_queries import start_queries
from paceline.training.block_start import start
from paceline.training.corpus import Batch, collate
from paceline.training.layers import Attention, Rotary, rotate
from paceline.training.objective import Vocabulary
from paceline.training.target import Target
from tests.tiny import VOCAB_SIZE
from tests.unit.training.tiny_states import LAYERS, tiny_states, tiny_target

MASK = 7
IDS = torch.tensor([token for token in range(VOCAB_SIZE) if token % 16])
KINDS = ["dflash", "dflash, 2 layers", "dspark", "dspark, 2 layers"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def batch(target: Target) -> Batch:
    return collate(tiny_states(target, 3))


def make(kind: str, target: Target) -> DFlash:
    torch.manual_seed(1)
    num_layers = 2 if "2" in kind else 1
    sizes = (target.shape, target.embedding, len(LAYERS), MASK)
    model = (
        DSpark(*sizes, len(IDS), num_layers, markov_rank=4)
        if kind.startswith("dspark")
        else DFlash(*sizes, num_layers)
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    torch.nn.init.uniform_(model.aux_scale, 0.5, 2.0)
    return model


def heads(attention: Attention, x: Tensor, kind: str) -> Tensor:  # [heads, rows, head_dim]
    made = getattr(attention, f"{kind}_proj")(x).view(len(x), -1, attention.head_dim)
    if kind != "v":
        made = getattr(attention, f"{kind}_norm")(made)
    return made.transpose(0, 1)  # type: ignore[no-any-return]


def fill(model: DFlash, batch: Batch, sequence: int, row: int, num_tokens: int) -> Tensor:
    """Fills the block behind one row as an engine does: keys and values of the context, then the
    block's slots, all of which see each other; returns what the head gets.  # [tokens, hidden]"""
    context = model.context(batch.aux)[sequence, : row + 1]
    num_slots = num_tokens + model.first_slot
    tokens = [int(batch.tokens[sequence, row + 1])] + [MASK] * (num_slots - 1)
    x = model.embedding[tokens]
    cosine, sine = (part[:, 0] for part in model.rotary(torch.arange(row + 1 + num_slots)))
    for layer in model.layers:
        assert isinstance(layer, BlockLayer)
        attention = layer.self_attn
        inputs = layer.input_layernorm(x)
        seen = torch.cat([context, inputs])
        q = rotate(heads(attention, inputs, "q"), (cosine[row + 1 :], sine[row + 1 :]))
        k = rotate(heads(attention, seen, "k"), (cosine, sine))
        v = heads(attention, seen, "v")
        out = functional.scaled_dot_product_attention(q[None], k[None], v[None], enable_gqa=True)
        x = x + attention.o_proj(out[0].transpose(0, 1).flatten(1))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.norm(x)[model.first_slot :]  # type: ignore[no-any-return]


def chain(model: DFlash, hidden: Tensor, anchor: int, vocabulary: Vocabulary) -> list[int]:
    """Reads a block greedily, from left to right."""
    drafts, before = [], anchor
    for one in hidden:
        logits = vocabulary.head @ one
        if isinstance(model, DSpark):
            markov = model.markov_head
            logits = logits + markov.markov_w2.weight @ markov.markov_w1.weight[before]
        before = int(vocabulary.ids[logits.argmax()])
        drafts.append(before)
    return drafts


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_what_one_block_alone_gives(kind: str, target: Target, batch: Batch) -> None:
    model = make(kind, target)
    rows = batch.rows[:, [0, 3, 9]]
    with torch.no_grad():
        together = model(batch, rows, 3)
        torch.testing.assert_close(model(batch, rows, 3, 2), together[:, :, :2])
        for sequence in range(3):
            for column, row in enumerate(rows[sequence].tolist()):
                alone = fill(model, batch, sequence, row, 3)
                torch.testing.assert_close(together[sequence, column], alone)


@pytest.mark.parametrize("kind", KINDS)
def test_right_is_the_greedy_chain(kind: str, target: Target, batch: Batch) -> None:
    model, vocabulary = make(kind, target), Vocabulary(IDS, target.head)
    objective = BlockObjective(model, vocabulary)
    # Text that the draft itself would have written, in part: random text is never drafted.
    tokens = batch.tokens.clone()
    with torch.no_grad():
        for row in range(int(batch.rows[0, 0]), int(batch.lengths[0]) - 2, 5):
            drafts = chain(
                model, fill(model, batch, 0, row, 3), int(tokens[0, row + 1]), vocabulary
            )
            length = min(3, int(batch.lengths[0]) - row - 2)
            tokens[0, row + 2 : row + 2 + length] = torch.tensor(drafts[:length])
    batch = Batch(tokens, *(getattr(batch, name) for name in batch.__struct_fields__[1:]))
    right = objective.right(batch, 3)
    assert 0 < right.sum() < right.numel()
    for sequence in range(3):
        for column in range(int(batch.valid[sequence].sum())):
            row = int(batch.rows[sequence, column])
            text = batch.tokens[sequence, row + 1 : int(batch.lengths[sequence])].tolist()
            with torch.no_grad():
                hidden = fill(model, batch, sequence, row, 3)
            drafts = chain(model, hidden, text[0], vocabulary)
            length = 0
            while length < 3 and text[1:][length : length + 1] == [drafts[length]]:
                length += 1
            assert right[sequence, column].tolist() == [i < length for i in range(3)]


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_the_loss_is_the_plain_formula(kind: str, target: Target, batch: Batch) -> None:
    model, vocabulary = make(kind, target), Vocabulary(IDS, target.head)
    objective = BlockObjective(
        model,
        vocabulary,
        min_tokens=3,
        max_tokens=3,
        decay=0.5,
        reach=1.0,
        share=1.0,
        variation=0.2,
    )
    found = objective.loss(batch)
    expected, blocks, told = 0.0, 0, 0.0
    with torch.no_grad():
        for sequence in range(3):
            for row in batch.rows[sequence, : int(batch.valid[sequence].sum())].tolist():
                hidden = fill(model, batch, sequence, row, 3)
                for step in range(3):
                    at = row + 2 + step
                    if at >= int(batch.lengths[sequence]) or batch.tokens[sequence, at] % 16 == 0:
                        break
                    blocks += step == 0
                    logits = vocabulary.head @ hidden[step]
                    if isinstance(model, DSpark):
                        before = model.markov_head.markov_w1.weight[batch.tokens[sequence, at - 1]]
                        logits = logits + model.markov_head.markov_w2.weight @ before
                    aim = (vocabulary.head @ batch.final[sequence, at - 1]).softmax(-1)
                    overlap = torch.minimum(aim, logits.softmax(-1)).sum()
                    entropy = -(aim * logits.log_softmax(-1)).sum()
                    expected += 0.5**step * float(entropy + 0.2 * (1 - overlap))
                    if isinstance(model, DSpark):
                        said = model.confidence_head.proj(torch.cat([hidden[step], before]))[0]
                        told += 0.5**step * float(
                            functional.binary_cross_entropy_with_logits(said, overlap)
                        )
    torch.testing.assert_close(found.total.item(), (expected + told) / blocks, rtol=1e-4, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind: str, target: Target) -> None:
    states = tiny_states(target, 4)
    model = make(kind, target)
    with torch.no_grad():
        together = collate(states)
        out = model(together, together.rows, 3)
        for index, one in enumerate(states):
            alone = collate([one])
            single = model(alone, alone.rows, 3)[0]
            torch.testing.assert_close(out[index, : len(single)], single)


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_the_loss_falls(kind: str, target: Target, batch: Batch) -> None:
    model = make(kind, target)
    start(model, target, [batch])
    objective = BlockObjective(model, Vocabulary(IDS, target.head), share=1.0)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(40):
        loss = objective.loss(batch)
        loss.total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.total.item())
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])


def test_slots_start_by_reading_what_is_theirs(target: Target) -> None:
    # The patterns need heads of many dimensions, and one head of each kind.
    torch.manual_seed(0)
    shape = msgspec.structs.replace(
        target.shape, hidden_size=192, num_attention_heads=6, num_key_value_heads=1, head_dim=64
    )
    attention, rotary = Attention(shape, 192, qk_norm=True), Rotary(shape)
    usual_state, usual_token, mask = torch.randn(3, 192)
    states = usual_state + 0.5 * torch.randn(400, 192)
    tokens = usual_token + 0.5 * torch.randn(400, 192)
    row, anchor, masks = slice(37, 40), slice(40, 41), slice(41, 45)
    with torch.no_grad():
        start_queries(attention, rotary.frequencies, states, tokens, mask, first_slot=1)
        inputs = torch.cat([states[:40], tokens[:1], mask.expand(4, -1)])
        k, _ = attention.keys_values(inputs[None], rotary(torch.arange(45)[None]))
        q = attention.queries(mask.expand(4, -1)[None], rotary(torch.arange(41, 45)[None]))
    seen = (q[0] @ k[0, 0].T / 8).softmax(-1)  # [heads, masks, context + anchor + masks]
    wanted = [
        [row, row, row, row],
        [anchor, anchor, anchor, anchor],
        [row, masks, masks, masks],
        [anchor, masks, masks, masks],
        [row, row, masks, masks],
        [anchor, anchor, masks, masks],
    ]
    for head, parts in enumerate(wanted):
        for slot, part in enumerate(parts):
            assert seen[head, slot, part].sum() > 0.5, (head, slot)


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_a_start_is_better_than_chance(kind: str, target: Target) -> None:
    batches = [collate(tiny_states(target, 8))]
    model = make(kind, target)
    objective = BlockObjective(model, Vocabulary(IDS, target.head), share=1.0, reach=1e-9)
    losses = []
    with torch.no_grad():
        for _ in range(2):
            losses.append(objective.loss(batches[0]).total)
            start(model, target, batches)
    assert losses[1] < 0.9 * losses[0]
