"""Block drafts: rows in pieces and from the middle, bad rows, limits, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.drafter.block import CHUNK, BlockDrafter
from paceline.drafter.model import Draft, DraftRequest
from paceline.drafter.rows import RowBuffer
from paceline.errors import ModelError
from tests.oracle.block_checkpoints import (
    AUX_LAYERS,
    BLOCK_SIZE,
    DRAFT_VOCAB_SIZE,
    load_block_draft,
    make_block_draft,
    num_tokens,
)
from tests.oracle.eagle3_checkpoints import HIDDEN_SIZE, VOCAB_SIZE, make_target

KINDS = ["dflash-z-lab-mixed", "dspark-deepspec", "dspark-speculators"]
WIDTH = len(AUX_LAYERS) * HIDDEN_SIZE
MAX_LENGTH = 2 * CHUNK + 100


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_target(tmp_path_factory.mktemp("block") / "target")


@pytest.fixture(scope="module", params=KINDS)
def drafter(
    request: pytest.FixtureRequest, target: Path, tmp_path_factory: pytest.TempPathFactory
) -> BlockDrafter:
    folder = tmp_path_factory.mktemp("draft") / request.param
    make_block_draft(folder, request.param, str(target), max_position_embeddings=MAX_LENGTH)
    return load_block_draft(folder, target)


def text(length: int, seed: int = 0) -> tuple[list[int], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB_SIZE, (length,), generator=generator).tolist()
    return tokens, torch.randn(length - 1, WIDTH, generator=generator)


def opened(
    drafter: BlockDrafter, tokens: list[int], rows: Tensor, begin: int = 0, name: str = "aux"
) -> DraftRequest:
    buffer = RowBuffer(begin)
    buffer.insert(begin, {name: rows[begin:]})
    request = DraftRequest(tokens=tokens, rows=buffer)
    drafter.open(request)
    return request


def drafted(drafter: BlockDrafter, *requests: DraftRequest, k: int = 5) -> list[Draft]:
    for request in requests:
        while drafter.has_work(request):
            drafter.prepare(request)
        assert drafter.is_ready(request)
    return drafter.draft(requests, k, VOCAB_SIZE)


def same(one: Draft, other: Draft) -> None:
    assert one.tokens == other.tokens and one.tokens
    assert one.confidence == pytest.approx(other.confidence, abs=1e-5)


def fresh(drafter: BlockDrafter, *args: Any, **options: Any) -> Draft:
    request = opened(drafter, *args, **options)
    [draft] = drafted(drafter, request)
    drafter.close(request)
    return draft


def test_rows_that_come_bit_by_bit_give_what_they_give_at_once(drafter: BlockDrafter) -> None:
    tokens, rows = text(2 * CHUNK + 50)
    at_once = fresh(drafter, tokens, rows)
    buffer = RowBuffer()
    request = DraftRequest(tokens=tokens[:20], rows=buffer)
    drafter.open(request)
    for end in (20, 21, 25, 300, len(tokens)):
        request.tokens[:] = tokens[:end]
        assert not drafter.is_ready(request)
        assert drafter.draft([request], 5, VOCAB_SIZE) == [Draft([])]
        buffer.insert(buffer.end, {"aux": rows[buffer.end : end - 1]})
        [draft] = drafted(drafter, request)
        same(draft, fresh(drafter, tokens[:end], rows[: end - 1]))
    same(draft, at_once)
    drafter.close(request)


def test_a_piece_is_bounded(drafter: BlockDrafter, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, rows = text(2 * CHUNK + 50)
    request = opened(drafter, tokens, rows)
    sizes: list[int] = []
    remember = drafter._stack.remember

    def counted(projected: Tensor, *args: Any) -> None:
        sizes.append(len(projected))
        remember(projected, *args)

    monkeypatch.setattr(drafter._stack, "remember", counted)
    drafted(drafter, request)
    assert sizes == [CHUNK, CHUNK, 49]
    drafter.close(request)


def test_one_forward_drafts_for_all(drafter: BlockDrafter, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [text(length, seed) for seed, length in enumerate((30, 2, 77, 30))]
    alone = [fresh(drafter, *one) for one in texts]
    requests = [opened(drafter, *one) for one in texts]
    drafter.close(requests.pop(1))  # the slots are no range
    del alone[1]
    calls: list[int] = []
    forward = drafter._stack.forward

    def counted(x: Tensor, *args: Any) -> Tensor:
        calls.append(len(x))
        return forward(x, *args)

    monkeypatch.setattr(drafter._stack, "forward", counted)
    for draft, expected in zip(drafted(drafter, *requests[::-1]), alone[::-1], strict=True):
        same(draft, expected)
    assert calls == [3]
    for request in requests:
        drafter.close(request)


def test_context_from_the_middle_is_a_shorter_text(drafter: BlockDrafter) -> None:
    tokens, rows = text(60)
    # Only distances of positions count, and nothing is mixed between rows.
    same(fresh(drafter, tokens, rows, begin=25), fresh(drafter, tokens[25:], rows[25:]))
    assert fresh(drafter, tokens, rows, begin=59).tokens


def test_rows_that_begin_anew_replace_what_was_there(drafter: BlockDrafter) -> None:
    tokens, rows = text(60)
    request = opened(drafter, tokens[:20], rows[:19])
    drafted(drafter, request)
    assert request.rows is not None
    request.rows.insert(40, {"aux": rows[40:]})
    request.rows.skip_gap()
    request.tokens[:] = tokens
    [draft] = drafted(drafter, request)
    same(draft, fresh(drafter, tokens, rows, begin=40))
    request.tokens[:] = tokens[:30]  # the rows begin behind it
    assert drafter.draft([request], 5, VOCAB_SIZE) == [Draft([])]
    drafter.close(request)


def test_projected_rows_give_the_same(drafter: BlockDrafter) -> None:
    tokens, rows = text(60)
    with torch.inference_mode():
        projected = drafter._stack.fc(rows)
    same(fresh(drafter, tokens, projected, name="projected"), fresh(drafter, tokens, rows))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bad_rows_harm_their_own_request_only(drafter: BlockDrafter, value: float) -> None:
    tokens, rows = text(30)
    expected = fresh(drafter, tokens, rows)
    bad_rows = rows.clone()
    bad_rows[7, 3] = value
    bad, good = opened(drafter, tokens, bad_rows), opened(drafter, tokens, rows)
    nothing, draft = drafted(drafter, bad, good)
    assert nothing == Draft([])
    same(draft, expected)
    assert drafted(drafter, bad) == [Draft([])]  # the row is there still
    drafter.close(bad)
    # In the same slot, and shorter.
    same(fresh(drafter, tokens[:5], rows[:4]), fresh(drafter, tokens[:5], rows[:4]))
    drafter.close(good)


def test_what_is_no_number_in_the_block_is_no_draft(
    drafter: BlockDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, rows = text(30)
    head = drafter._head.clone()
    head[-1] = float("nan")
    monkeypatch.setattr(drafter, "_head", head)
    assert fresh(drafter, tokens, rows) == Draft([])


def test_no_drafts_behind_the_context_limit(drafter: BlockDrafter) -> None:
    tokens, rows = text(MAX_LENGTH)
    assert len(fresh(drafter, tokens[:-5], rows[:-5]).tokens) == 5
    assert fresh(drafter, tokens[:-4], rows[:-4]) == Draft([])
    assert fresh(drafter, tokens, rows) == Draft([])


def test_fewer_tokens_and_no_more_than_a_block_has(drafter: BlockDrafter) -> None:
    tokens, rows = text(30)
    request = opened(drafter, tokens, rows)
    assert [len(d.tokens) for d in drafter.draft([request], 2, VOCAB_SIZE)] == [2]
    most = drafter._layout.max_tokens
    assert [len(d.tokens) for d in drafter.draft([request], 30, VOCAB_SIZE)] == [most]
    [draft] = drafter.draft([request], 5, 120)
    assert max(draft.tokens) < 120
    assert all(0 <= one <= 1 for one in draft.confidence)
    drafter.close(request)


def test_the_confidence_of_a_confidence_head_only_falls(drafter: BlockDrafter) -> None:
    confidence = fresh(drafter, *text(30)).confidence
    if drafter._layout.method == "DSpark":
        assert confidence == sorted(confidence, reverse=True)


def test_what_it_needs(drafter: BlockDrafter) -> None:
    assert drafter.needs is not None and drafter.needs.aux_layers == list(AUX_LAYERS)
    assert drafter.hidden_size == HIDDEN_SIZE and drafter.vocab_size == VOCAB_SIZE
    drafter.warm_up()
    assert drafter.extend([], 1, 1, VOCAB_SIZE) == []


def test_how_many_tokens_a_block_has(target: Path, tmp_path: Path) -> None:
    for kind in (*KINDS, "dspark-speculators-anchor"):
        made = load_block_draft(make_block_draft(tmp_path / kind, kind, str(target)), target)
        assert made._layout.max_tokens == num_tokens(kind) <= BLOCK_SIZE


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("dspark-deepspec", {"markov_head_type": "gated"}, "a Markov head of kind gated"),
        ("dspark-speculators", {"markov_head_type": "rnn"}, "a Markov head of kind rnn"),
        ("dspark-deepspec", {"markov_rank": 0}, "markov_rank is 0"),
        ("dflash-z-lab", {"sample_from_anchor": True}, "sample_from_anchor true"),
        ("dflash-z-lab", {"block_size": None}, "block_size is None"),
        ("dflash-z-lab", {"is_neox_style": False}, "interleaved rotary embeddings"),
        ("dflash-z-lab", {"dflash_config": {"attention_sink_bias": True}}, "attention_sink_bias"),
        ("dflash-z-lab", {"quantization_config": {"bits": 4}}, "quantized weights"),
        ("dflash-z-lab", {"dflash_config": {"target_layer_ids": []}}, "does not name the layers"),
        ("dflash-z-lab", {"dflash_config": {"mask_token_id": 999}}, "mask_token_id is 999"),
        ("dflash-z-lab", {"layer_types": ["linear_attention"] * 2}, "layers of kind linear_att"),
        ("dflash-z-lab", {"layer_types": ["full_attention"]}, "has 1 kinds for 2 layers"),
        ("dflash-z-lab", {"dflash_config": {"use_swa": True}}, "sliding_window is None"),
        ("dflash-z-lab", {"vocab_size": 251}, "251 tokens and not 256"),
        ("dflash-z-lab", {"target_hidden_size": 32}, "states of size 32 and not 64"),
        ("dflash-z-lab", {"dflash_config": {"target_layer_ids": [1, 2, 8]}}, "9 layers or more"),
        ("dflash-z-lab", {"num_hidden_layers": 3}, "lacks the tensors layers.2"),
        ("dflash-z-lab", {"intermediate_size": 96}, r"has the shape \[128, 64\], but by its con"),
    ],
)
def test_what_is_refused(
    kind: str, changes: dict[str, Any], reason: str, target: Path, tmp_path: Path
) -> None:
    folder = make_block_draft(tmp_path, kind, str(target), **changes)
    with pytest.raises(ModelError, match=reason):
        load_block_draft(folder, target)


def test_a_part_of_the_vocabulary_needs_its_map(target: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = make_block_draft(tmp_path, "dflash-speculators", str(target))
    tensors = load_file(folder / "model.safetensors")
    for name in ("d2t", "lm_head.weight"):
        save_file({k: v for k, v in tensors.items() if k != name}, folder / "model.safetensors")
        reason = f"has {DRAFT_VOCAB_SIZE} of the target's {VOCAB_SIZE} tokens, but no {name}"
        with pytest.raises(ModelError, match=reason):
            load_block_draft(folder, target)
