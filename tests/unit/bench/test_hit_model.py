"""The expected hit rate, against trying every split, the draft's own law, and published numbers."""

from __future__ import annotations

import itertools
import random

import pytest

from paceline.bench.hit_model import expected_hit_rate, outcomes
from paceline.drafter.scripted import probability_of, rank_of


def formula(accuracy: float, split: tuple[int, ...]) -> float:
    """Returns p as the formula has it, for the number of tokens tried at each place."""
    *behind_some, behind_all = split
    found = 0.0
    for j, tried in enumerate(behind_some):
        found += accuracy**j * (1 - accuracy) * (1 - (1 + tried) ** -1.5)
    if behind_all:
        found += accuracy ** len(behind_some) * (1 - (1 - accuracy) * behind_all**-1.5)
    return found


@pytest.mark.parametrize("accuracy", [0.45, 0.75, 0.95])
@pytest.mark.parametrize(("num_drafts", "fanout"), [(1, 1), (1, 6), (2, 5), (3, 7)])
def test_no_split_is_better(accuracy: float, num_drafts: int, fanout: int) -> None:
    splits = itertools.product(range(fanout + 1), repeat=num_drafts + 1)
    best = max(formula(accuracy, split) for split in splits if sum(split) == fanout)
    assert expected_hit_rate(accuracy, num_drafts, fanout) == pytest.approx(best)


@pytest.mark.parametrize("accuracy", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_the_law_is_the_scripted_draft_s(accuracy: float) -> None:
    num_drafts, fanout = 3, 6
    chances = [
        accuracy**j * probability_of(rank, accuracy)
        for j in range(num_drafts + 1)
        for rank in range(1 if j == num_drafts else 2, 20)
    ]
    best = sum(sorted(chances)[-fanout:])
    assert expected_hit_rate(accuracy, num_drafts, fanout) == pytest.approx(best)


def test_a_draft_that_plays_by_the_law_hits_as_often() -> None:
    accuracy, num_drafts, num_passes = 0.75, 2, 20_000
    draws = random.Random(7)
    # The most probable 4 of the outcomes (accepted drafts, rank of the bonus token): 0.422, 0.162,
    # 0.121 and 0.091.
    tried = {(2, 1), (0, 2), (1, 2), (2, 2)}
    hits = 0
    for _ in range(num_passes):
        accepted = 0
        rank = rank_of(draws.getrandbits(64), accuracy)
        while rank == 1 and accepted < num_drafts:
            accepted += 1
            rank = rank_of(draws.getrandbits(64), accuracy)
        hits += (accepted, rank) in tried
    expected = expected_hit_rate(accuracy, num_drafts, fanout=4)
    assert hits / num_passes == pytest.approx(expected, abs=4 * 0.5 / num_passes**0.5)


@pytest.mark.parametrize(
    ("accuracy", "each", "published"), [(0.66, 3, 0.808), (0.8, 3, 0.808), (0.8, 5, 0.911)]
)
def test_equal_numbers_under_the_power_law(accuracy: float, each: int, published: float) -> None:
    def law(tried: int) -> float:
        return 1 - tried**-1.5 if tried else 0.0

    found = sum(outcomes(accuracy, 7, each, rejected=law, last=law))
    assert found == pytest.approx(published, abs=0.0005)


def test_everything_is_hit_in_the_end() -> None:
    assert expected_hit_rate(1.0, 4, 1) == 1.0, "all drafts are right, and so is the bonus token"
    assert expected_hit_rate(0.0, 4, 1) == pytest.approx(1 - 2**-1.5)
    assert 0.99 < expected_hit_rate(0.75, 2, 256) < 1
