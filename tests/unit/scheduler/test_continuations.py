"""The speculation cache of one request: what is chosen, what is left, and why something missed."""

from __future__ import annotations

import pytest

from paceline.scheduler.continuations import (
    MAX_CONTINUATIONS,
    Continuation,
    Continuations,
)
from paceline.scheduler.counters import MissCause


def held(*continuations: tuple[int, tuple[int, ...]]) -> Continuations:
    """Takes in pairs of ``num_outcome`` and ``tokens``, in order."""
    made = Continuations()
    for num_outcome, tokens in continuations:
        made.add(Continuation(tokens, num_outcome))
    return made


def test_nothing_is_known_at_first() -> None:
    assert not held()
    assert held().best(4) == ()


def test_a_later_proposal_goes_before_an_earlier_one() -> None:
    assert held((0, (1, 2)), (0, (3, 4))).best(4) == (3, 4)


def test_a_proposal_goes_before_guesses() -> None:
    assert held((1, (5, 6, 7)), (0, (1, 2)), (1, (8, 9))).best(4) == (1, 2)


def test_a_guess_about_the_present_pass_is_no_proposal() -> None:
    """It is one of many, and the proposal may be on its way."""
    cache = held((1, (5, 6)), (1, (7, 8)))
    assert not cache
    assert cache.best(4) == ()


def test_what_is_left_of_a_guess_is_used_though_it_reaches_behind_its_pass() -> None:
    """An undrafted pass has chosen d1 = 5; the earliest guess goes before the others."""
    cache = held((2, (5, 6, 7)), (2, (5, 8, 9)))
    cache.commit((5,))
    assert cache
    assert cache.best(4) == (6, 7)


def test_a_guess_fills_up_the_proposal_that_it_continues() -> None:
    """Behind an undrafted pass that chose d1; to no more drafts than were thought worth it."""
    cache = held((0, (1, 2, 3)), (2, (1, 9, 5, 6)), (4, (1, 2, 3, 4, 5, 6)))
    assert cache.best(8) == (1, 2, 3)
    cache.commit((1,))
    assert cache.best(8) == (2, 3, 4)
    assert cache.best(2) == (2, 3)


def test_no_more_than_the_limit_is_chosen_though_it_changes() -> None:
    cache = held((0, (1, 2, 3)))
    assert [cache.best(limit) for limit in (2, 3, 4, 1)] == [(1, 2), (1, 2, 3), (1, 2, 3), (1,)]


def test_a_new_one_changes_the_answer() -> None:
    cache = held((0, (1, 2)))
    assert cache.best(4) == (1, 2)
    cache.add(Continuation((3,), 0))
    assert cache.best(4) == (3,)
    cache.commit((3,))
    assert cache.best(4) == ()


def test_the_outcome_s_branch_is_the_next_proposal() -> None:
    cache = held((0, (1, 2)), (1, (7, 8)), (2, (1, 7, 9)), (3, (1, 2, 7, 5)))
    cache.commit((1, 7))
    assert cache.best(4) == (9,)


def test_what_contradicts_is_dropped_and_does_not_come_back() -> None:
    cache = held((0, (1, 2)), (1, (7, 8)))
    cache.commit((3,))
    assert not cache


def test_what_lies_within_the_committed_text_is_dropped() -> None:
    cache = held((0, (1, 2)))
    cache.commit((1, 2))
    assert not cache


def test_an_outcome_of_which_a_part_has_come_stays_a_guess() -> None:
    cache = held((3, (1, 2, 7, 5)))
    cache.commit((1,))
    cache.add(Continuation((9,), 0))
    assert cache.best(4) == (9,), "it went before the proposal"
    cache.commit((2, 7))
    assert cache.best(4) == (5,)


def test_a_guess_becomes_a_proposal_once_its_outcome_has_come() -> None:
    cache = held((2, (1, 7, 5)))
    cache.commit((1, 7))
    cache.add(Continuation((8, 8), 1))
    assert cache.best(4) == (5,)


def test_of_too_many_the_newest_guess_is_dropped() -> None:
    cache = held(*((1, (number, 1)) for number in range(MAX_CONTINUATIONS + 10)))
    for token, fits in ((0, True), (MAX_CONTINUATIONS - 1, True), (MAX_CONTINUATIONS, False)):
        copy = held(*((h.num_outcome, h.tokens) for h in cache._held))
        copy.commit((token,))
        assert bool(copy) == fits
    cache.add(Continuation((5, 6), 0))
    assert cache.best(4) == (5, 6), "a proposal is always taken"
    assert len(cache._held) == MAX_CONTINUATIONS


D = (1, 2, 3)
"""Drafts of the pass."""


@pytest.mark.parametrize(
    ("guesses", "committed", "cause"),
    [
        ([], (1, 2, 9), "none"),
        ([(0, D)], (1, 2, 9), "none"),
        ([(3, (1, 2, 8, 5))], (1, 2, 9), "bonus"),
        ([(3, (1, 2, 8, 5)), (1, (8, 5))], (1, 2, 9), "bonus"),
        ([(2, (1, 8, 5))], (1, 2, 9), "length"),
        ([(4, (1, 2, 3, 8, 5))], (1, 2, 9), "length"),
        ([(1, (8, 5))], (1, 2, 9), "length"),
        ([(3, (1, 7, 8, 5))], (1, 2, 9), "stale"),
        ([(4, (1, 7, 3, 8, 5))], (1, 2, 9), "stale"),
        ([(1, (8, 5))], (9,), "bonus"),
    ],
)
def test_why_a_drafted_pass_missed(
    guesses: list[tuple[int, tuple[int, ...]]], committed: tuple[int, ...], cause: MissCause
) -> None:
    assert held((0, D), *guesses).why_missed(committed, was_drafted=True) == cause


@pytest.mark.parametrize(
    ("held_now", "cause"),
    [
        ([], "none"),
        ([(0, D)], "bonus"),
        ([(0, D), (1, (8, 5))], "bonus"),
        ([(2, (1, 8, 5))], "length"),
    ],
)
def test_why_an_undrafted_pass_missed(
    held_now: list[tuple[int, tuple[int, ...]]], cause: MissCause
) -> None:
    assert held(*held_now).why_missed((9,), was_drafted=False) == cause
