"""Rankings from logits."""

from __future__ import annotations

import pytest
import torch

from paceline.drafter.ranking import rank
from paceline.scheduler.branching import Ranking


def assert_ranking(ranking: Ranking, expected: Ranking) -> None:
    assert [token for token, _ in ranking] == [token for token, _ in expected]
    assert [value for _, value in ranking] == pytest.approx([value for _, value in expected])


def test_the_most_probable_come_first_with_their_probabilities() -> None:
    logits = torch.tensor([[0.25, 0.5, 0.125, 0.125], [0.5, 0.1, 0.15, 0.25]]).log()
    one, other = rank(logits, 2, 4)
    assert_ranking(one, [(1, 0.5), (0, 0.25)])
    assert_ranking(other, [(0, 0.5), (3, 0.25)])


def test_only_tokens_below_the_vocabulary_size_count() -> None:
    [ranking] = rank(torch.tensor([[0.1, 0.3, 0.6]]).log(), 3, 2)
    assert_ranking(ranking, [(1, 0.75), (0, 0.25)])


@pytest.mark.parametrize("num_ranked", [1, 2, 5])
def test_of_equal_ones_the_lowest_is_the_first_choice(num_ranked: int) -> None:
    logits = torch.zeros(1, 2000, dtype=torch.bfloat16)
    logits[0, [700, 900, 1500]] = 8.0
    [ranking] = rank(logits, num_ranked, 2000)
    assert len(ranking) == num_ranked
    assert ranking[0][0] == 700
    assert len({token for token, _ in ranking}) == num_ranked
    assert rank(logits, num_ranked, 2000) == [ranking]


def test_sixteen_bit_logits_are_normalised_in_float32() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 500).bfloat16()
    expected = logits.float().softmax(-1).max(-1).values.tolist()
    assert [ranking[0][1] for ranking in rank(logits, 4, 500)] == expected


def test_a_probability_lies_between_0_and_1() -> None:
    [ranking] = rank(torch.tensor([[200.0, -200.0, 0.0]]), 3, 3)
    assert all(0 <= value <= 1 for _, value in ranking)
    assert ranking[0] == (0, 1.0)


def test_each_of_many_rows_is_ranked_in_its_place() -> None:
    torch.manual_seed(0)
    logits = torch.randn(11, 50)
    best = logits.softmax(-1).topk(3)
    for row, ranking in enumerate(rank(logits, 3, 50)):
        expected = zip(best.indices[row].tolist(), best.values[row].tolist(), strict=True)
        assert_ranking(ranking, list(expected))
