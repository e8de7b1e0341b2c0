"""Prompt lookup equals a scan of the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafter.model import DraftRequest
from paceline.drafter.ngram import NgramDrafter
from tests.unit.drafter.reference import lookup

VOCAB = 1 << 20
SIZES = st.integers(1, 3).flatmap(lambda low: st.tuples(st.just(low), st.integers(low, 5)))
FEW = st.integers(0, 2)
"""Few different tokens, so that n-grams do occur again."""


def draft(
    text: list[int], k: int = 4, vocab_size: int = VOCAB, sizes: tuple[int, int] = (2, 4)
) -> list[int]:
    drafter, request = NgramDrafter(*sizes), DraftRequest(text)
    drafter.open(request)
    [answer] = drafter.draft([request], k, vocab_size)
    assert answer.confidence == [], "a look-up knows no probability"
    return answer.tokens


@given(st.lists(FEW, min_size=1, max_size=40), SIZES, st.integers(1, 9), st.integers(1, 3))
def test_a_draft_equals_the_scan_s(
    text: list[int], sizes: tuple[int, int], k: int, vocab_size: int
) -> None:
    expected = lookup(text, *sizes, k, vocab_size)
    assert draft(text, k, vocab_size, sizes) == expected


@given(st.lists(st.lists(FEW, min_size=1, max_size=6), min_size=1, max_size=12), SIZES)
def test_an_index_that_grows_with_the_text_equals_one_made_anew(
    pieces: list[list[int]], sizes: tuple[int, int]
) -> None:
    drafter, request = NgramDrafter(*sizes), DraftRequest([])
    drafter.open(request)
    for piece in pieces:
        request.tokens.extend(piece)
        [answer] = drafter.draft([request], 5, VOCAB)
        assert answer.tokens == lookup(request.tokens, *sizes, 5, VOCAB)


@given(st.lists(st.integers(0, 99), min_size=2, max_size=6, unique=True), st.integers(1, 32))
def test_a_periodic_text_is_continued_in_full(period: list[int], k: int) -> None:
    """Also behind the end of the text, where the draft goes on in itself."""
    text = (period * 3)[:-1]
    expected = [(period * 40)[len(text) + offset] for offset in range(k)]
    assert draft(text, k) == expected


def test_a_single_repeated_token_is_continued() -> None:
    assert draft([5, 5, 5], 6) == [5] * 6


def test_the_longest_match_wins_over_a_later_shorter_one() -> None:
    assert draft([1, 2, 3, 70, 9, 2, 3, 80, 1, 2, 3], 1) == [70]


def test_the_latest_of_equal_matches_wins() -> None:
    assert draft([1, 2, 70, 1, 2, 80, 1, 2], 1) == [80]


def test_the_suffix_does_not_match_itself() -> None:
    assert draft([1, 2, 3, 4], 4) == []


@pytest.mark.parametrize("text", [[1], [1, 2], [1, 2, 3]])
def test_nothing_is_proposed_for_a_text_without_repetition(text: list[int]) -> None:
    assert draft(text) == []


def test_a_draft_ends_before_a_token_that_the_target_does_not_have() -> None:
    text = [1, 2, 7, 100, 8, 1, 2]
    assert draft(text, 4, vocab_size=101) == [7, 100, 8, 1]
    assert draft(text, 4, vocab_size=100) == [7]
    assert draft(text, 4, vocab_size=7) == []


def test_requests_do_not_see_each_other() -> None:
    drafter = NgramDrafter(2, 4)
    one, other = DraftRequest([1, 2, 3, 1, 2]), DraftRequest([1, 2, 4, 1, 2])
    for request in (one, other):
        drafter.open(request)
    drafts = drafter.draft([other, one, other], 1, VOCAB)
    assert [answer.tokens for answer in drafts] == [[4], [3], [4]]
    drafter.close(one)
    drafter.close(one)
    [answer] = drafter.draft([other], 1, VOCAB)
    assert answer.tokens == [4]


def test_it_is_always_ready_and_forgets_what_is_closed() -> None:
    drafter, request = NgramDrafter(2, 4), DraftRequest(list(range(5000)))
    drafter.open(request)
    assert drafter.is_ready(request)
    drafter.close(request)
    with pytest.raises(KeyError):
        drafter.draft([request], 1, VOCAB)
