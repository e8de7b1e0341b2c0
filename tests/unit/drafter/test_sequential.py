"""Heads that draft one token after the other: their entries, however the rows come."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline.drafter.eagle3 import Eagle3Drafter
from paceline.drafter.model import Draft, DraftRequest
from paceline.drafter.rows import RowBuffer
from tests.oracle.eagle3_checkpoints import (
    VOCAB_SIZE,
    load_eagle3,
    make_eagle3,
    make_target,
    num_row_values,
)

K = 4
KINDS = ["safeailab", "speculators-qwen3"]
MAX_LENGTH = 512


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    torch.set_num_threads(1)
    return str(request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sequential")
    make_target(folder / "target")
    for kind in KINDS:
        make_eagle3(folder / kind, kind)
    return folder


@pytest.fixture
def drafter(folder: Path, kind: str) -> Eagle3Drafter:
    return load_eagle3(folder / kind, folder / "target")


class Text:
    """Random tokens, and random rows of them."""

    def __init__(self, kind: str, length: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (length, num_row_values(kind))
        self.tokens: list[int] = torch.randint(VOCAB_SIZE, (length,), generator=generator).tolist()
        self.rows = torch.randn(shape, generator=generator)

    def request(
        self, length: int, begin: int = 0, rows: torch.Tensor | None = None
    ) -> DraftRequest:
        """Returns a request of ``length`` tokens, with its rows from ``begin`` on."""
        buffer = RowBuffer(begin)
        buffer.insert(begin, {"aux": (self.rows if rows is None else rows)[begin : length - 1]})
        return DraftRequest(tokens=self.tokens[:length], rows=buffer)


def fresh(
    drafter: Eagle3Drafter, *requests: DraftRequest, vocab_size: int = VOCAB_SIZE
) -> list[Draft]:
    """Drafts behind requests that nothing is known of."""
    for request in requests:
        drafter.open(request)
        while not drafter.is_ready(request):
            drafter.prepare(request)
    drafts = drafter.draft(requests, K, vocab_size)
    for request in requests:
        drafter.close(request)
    return drafts


def assert_same(found: Draft, wanted: Draft) -> None:
    assert found.tokens == wanted.tokens and len(found.tokens) == K
    assert found.confidence == pytest.approx(wanted.confidence, abs=1e-4)


def test_true_rows_overwrite_what_stood_in(drafter: Eagle3Drafter, kind: str) -> None:
    text = Text(kind, 400)
    request = text.request(20)
    drafter.open(request)
    length = 20
    for new in (1, 3, 5, 1, 300, 2):
        drafter.draft([request], K, VOCAB_SIZE)
        request.tokens.extend(text.tokens[length : length + new])
        assert request.rows is not None
        request.rows.insert(length - 1, {"aux": text.rows[length - 1 : length + new - 1]})
        length += new
        while not drafter.is_ready(request):
            drafter.prepare(request)
        [found] = drafter.draft([request], K, VOCAB_SIZE)
        [again] = drafter.draft([request], K, VOCAB_SIZE)
        [wanted] = fresh(drafter, text.request(length))
        assert_same(found, wanted)
        assert_same(again, wanted)


def test_a_batch_drafts_what_each_request_does_alone(drafter: Eagle3Drafter, kind: str) -> None:
    texts = [Text(kind, 90, seed) for seed in range(4)]
    lengths = [2, 60, 17, 90]
    alone = [fresh(drafter, text.request(n))[0] for text, n in zip(texts, lengths, strict=True)]
    requests = [text.request(n) for text, n in zip(texts, lengths, strict=True)]
    for found, wanted in zip(fresh(drafter, *requests), alone, strict=True):
        assert_same(found, wanted)


def test_it_is_ready_when_rows_are_here_and_few_are_unprocessed(
    drafter: Eagle3Drafter, kind: str
) -> None:
    text = Text(kind, 401)
    request = DraftRequest(tokens=text.tokens[:400], rows=RowBuffer())
    drafter.open(request)
    assert request.rows is not None
    assert not drafter.is_ready(request) and not drafter.has_work(request)
    request.rows.insert(0, {"aux": text.rows[:300]})
    assert not drafter.is_ready(request) and drafter.has_work(request)
    drafter.prepare(request)
    assert not drafter.is_ready(request) and not drafter.has_work(request)
    assert drafter.draft([request], K, VOCAB_SIZE) == [Draft([])]
    request.rows.insert(300, {"aux": text.rows[300:399]})
    assert drafter.is_ready(request)
    [found] = drafter.draft([request], K, VOCAB_SIZE)
    assert_same(found, fresh(drafter, text.request(400))[0])


def test_a_context_without_its_beginning_is_drafted_from(drafter: Eagle3Drafter, kind: str) -> None:
    text, behind = Text(kind, 60), Text(kind, 60)
    # Rotary positions are relative: the same entries at other positions draft the same.
    behind.tokens, behind.rows = text.tokens[25:], text.rows[25:]
    [found] = fresh(drafter, text.request(60, begin=25))
    assert_same(found, fresh(drafter, behind.request(35))[0])
    assert fresh(drafter, text.request(60, begin=59)) == [Draft([])]


def test_rows_that_begin_anew_void_what_was_made_of_them(drafter: Eagle3Drafter, kind: str) -> None:
    text = Text(kind, 60)
    request = text.request(30)
    drafter.open(request)
    drafter.draft([request], K, VOCAB_SIZE)
    request.tokens.extend(text.tokens[30:60])
    assert request.rows is not None
    request.rows.insert(40, {"aux": text.rows[40:59]})
    assert not drafter.is_ready(request)
    request.rows.skip_gap()
    assert drafter.is_ready(request)
    [found] = drafter.draft([request], K, VOCAB_SIZE)
    assert_same(found, fresh(drafter, text.request(60, begin=40))[0])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_rows_that_are_not_finite_harm_nobody_else(
    drafter: Eagle3Drafter, kind: str, value: float
) -> None:
    text, broken = Text(kind, 30), Text(kind, 300)
    wanted = fresh(drafter, text.request(30))[0]
    broken.rows[270, 5] = value
    good, bad = text.request(30), broken.request(300)
    for request in (bad, good):
        drafter.open(request)
    while not drafter.is_ready(bad):
        drafter.prepare(bad)
    first, second = drafter.draft([bad, good], K, VOCAB_SIZE)
    assert first == Draft([])
    assert_same(second, wanted)
    assert drafter.is_ready(bad) and not drafter.has_work(bad)
    assert drafter.draft([bad], K, VOCAB_SIZE) == [Draft([])]
    # Whoever gets its slot next is not harmed either, long texts or short.
    drafter.close(bad)
    assert_same(fresh(drafter, text.request(30))[0], wanted)
    both = fresh(drafter, text.request(30), Text(kind, 280).request(280))
    assert_same(both[0], wanted)
    assert len(both[1].tokens) == K


def test_beyond_its_own_positions_nothing_is_drafted(drafter: Eagle3Drafter, kind: str) -> None:
    text = Text(kind, MAX_LENGTH)
    last, beyond = text.request(MAX_LENGTH - K), text.request(MAX_LENGTH - K + 1)
    [found, none] = fresh(drafter, last, beyond)
    assert len(found.tokens) == K and none == Draft([])


def test_only_tokens_below_the_limit_are_drafted(drafter: Eagle3Drafter, kind: str) -> None:
    texts = [Text(kind, 30, seed) for seed in range(8)]
    drafts = fresh(drafter, *(text.request(30) for text in texts), vocab_size=100)
    assert all(token < 100 for draft in drafts for token in draft.tokens)
    unlimited = fresh(drafter, *(text.request(30) for text in texts))
    assert any(token >= 100 for draft in unlimited for token in draft.tokens)


def test_projected_rows_draft_the_same(drafter: Eagle3Drafter, kind: str) -> None:
    texts = [Text(kind, 30, seed) for seed in range(3)]
    wanted = fresh(drafter, *(text.request(30) for text in texts))
    requests = [text.request(30) for text in texts]
    for text, request in zip(texts[1:], requests[1:], strict=True):
        request.rows = RowBuffer()
        with torch.inference_mode():
            request.rows.insert(0, {"projected": drafter._head.project(text.rows[:29])})
    for found, expected in zip(fresh(drafter, *requests), wanted, strict=True):
        assert_same(found, expected)


def test_warming_up_leaves_nothing(drafter: Eagle3Drafter, kind: str) -> None:
    text = Text(kind, 30)
    wanted = fresh(drafter, text.request(30))[0]
    drafter.warm_up()
    assert_same(fresh(drafter, text.request(30))[0], wanted)
