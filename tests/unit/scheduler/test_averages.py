"""What the decisions are made from: averages, acceptance by position, times by rows, the pace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.scheduler.averages import PRIOR_ACCEPTANCE, Acceptance, Average, RowTimes
from paceline.scheduler.pace import MAX_GAP, Pace


def test_an_average_without_values_is_none() -> None:
    assert Average().value is None


def test_the_first_values_count_alike() -> None:
    average = Average()
    for value in (10.0, 1.0, 1.0, 4.0):
        average.add(value)
    assert average.value == pytest.approx(4.0)


def test_later_an_odd_one_counts_a_tenth_and_fades() -> None:
    average = Average()
    for _ in range(100):
        average.add(1.0)
    average.add(11.0)
    assert average.value == pytest.approx(2.0)
    for _ in range(50):
        average.add(1.0)
    assert average.value == pytest.approx(1.0, abs=0.01)


def test_before_anything_is_measured_acceptance_is_the_prior() -> None:
    assert [Acceptance().at(position) for position in (0, 7)] == [PRIOR_ACCEPTANCE] * 2


def test_a_draft_behind_a_rejected_one_was_not_tried() -> None:
    acceptance = Acceptance(prior=0.5, prior_weight=2)
    acceptance.add(num_drafted=4, num_accepted=1)
    assert acceptance.at(0) == pytest.approx(2 / 3)
    assert acceptance.at(1) == pytest.approx(1 / 3)
    assert acceptance.at(2) == acceptance.at(3) == acceptance.at(1), "as the last that was tried"


def test_with_all_accepted_there_was_no_further_one() -> None:
    acceptance = Acceptance(prior=0.5, prior_weight=2)
    acceptance.add(num_drafted=2, num_accepted=2)
    assert acceptance.at(0) == acceptance.at(1) == acceptance.at(5) == pytest.approx(2 / 3)


def test_old_passes_fade() -> None:
    acceptance = Acceptance()
    for _ in range(2000):
        acceptance.add(1, 1)
    for _ in range(350):
        acceptance.add(1, 0)
    assert acceptance.at(0) == pytest.approx(0.5, abs=0.03)


@given(
    st.lists(
        st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=30
    ),
    st.integers(0, 8),
)
def test_the_outcomes_of_a_pass_are_a_distribution(
    passes: list[tuple[int, int]], num_drafts: int
) -> None:
    acceptance = Acceptance()
    for num_drafted, num_accepted in passes:
        acceptance.add(num_drafted, num_accepted)
    outcomes = acceptance.outcomes(num_drafts)
    assert len(outcomes) == num_drafts + 1
    assert min(outcomes) >= 0
    assert sum(outcomes) == pytest.approx(1.0)


def test_outcomes_are_the_product_of_what_was_accepted() -> None:
    acceptance = Acceptance(prior=0.5)
    assert acceptance.outcomes(2) == [0.5, 0.25, 0.25]
    assert acceptance.outcomes(0) == [1.0]


def measured(*times: tuple[int, float]) -> RowTimes:
    made = RowTimes()
    for num_rows, seconds in times:
        made.add(num_rows, seconds)
    return made


def test_without_a_forward_nothing_is_known_and_one_row_is_tried() -> None:
    assert measured().seconds(1) is None
    assert measured().least_seconds(1) is None
    assert measured().best_rows([1.0] * 64, 1.0) == 1


def test_between_two_sizes_the_time_lies_on_a_line() -> None:
    times = measured((1, 1.0), (8, 3.1))
    assert [times.seconds(n) for n in (1, 2, 4, 8)] == pytest.approx([1.0, 1.3, 1.9, 3.1])
    assert times.least_seconds(4) == pytest.approx(1.9)


def test_beyond_the_largest_size_the_time_grows_as_the_rows_at_the_worst() -> None:
    assert measured((4, 2.0)).seconds(16) == pytest.approx(8.0)
    assert measured((4, 2.0)).least_seconds(16) == pytest.approx(2.0)


def test_below_the_smallest_size_the_time_stays_at_the_worst() -> None:
    assert measured((4, 2.0)).seconds(2) == pytest.approx(2.0)
    assert measured((4, 2.0)).least_seconds(2) == pytest.approx(1.0)


def test_sizes_of_one_power_of_two_are_averaged() -> None:
    times = measured((5, 1.0), (5, 1.0), (8, 2.5))
    assert times.seconds(6.5) == pytest.approx(1.75)


def test_what_is_slow_in_the_first_forward_of_a_size_is_left_out() -> None:
    assert measured((4, 9.0), (4, 1.0)).seconds(4) == 1.0
    assert measured((4, 9.0), (4, 1.0), (4, 2.0)).seconds(4) == 1.5
    assert measured((4, 1.0), (4, 2.0)).seconds(4) == 1.0


def test_as_many_rows_as_fit_into_the_time() -> None:
    times = measured((1, 1.0), (4, 1.5), (16, 4.0))
    assert times.most_rows(3.9, 64) == 8
    assert times.most_rows(4.0, 64) == 16
    assert times.most_rows(8.0, 64) == 32
    assert times.most_rows(8.0, 20) == 20
    assert times.most_rows(0.1, 64) == 1, "one row is always possible"


EVEN = [0.01] * 64


def test_twice_of_what_is_known_is_tried_twice_though_it_may_take_longer() -> None:
    times = measured((1, 1.0), (1, 1.0))
    for _ in range(2):
        assert times.best_rows(EVEN, 1.0) == 2
        times.add(2, 4.0)
    assert times.best_rows(EVEN, 1.0) == 1
    flat = measured(*((n, 1.0) for n in (1, 1, 2, 2, 4, 4)))
    assert flat.best_rows(EVEN, 1.5) == 8
    assert flat.best_rows(EVEN[:7], 1.5) == 7


def test_a_forward_that_is_too_long_is_worth_so_much_less() -> None:
    times = measured(*((n, seconds) for n, seconds in ((1, 1.0), (2, 1.2), (4, 2.0)) for _ in "ab"))
    falling = [0.5, 0.3, 0.1, 0.1, 0.0, 0.0]
    assert times.best_rows(falling, 2.0) == 4, "all of it is done in time"
    assert times.best_rows(falling, 1.0) == 2, "0.8 / 1.2 and not 0.5 or 1.0 / 2.0"
    assert times.best_rows(falling, 0.1) == 2, "the share that is done in time does not matter"
    assert times.best_rows([0.9, 0.05, 0.05], 1.0) == 1
    assert times.best_rows(EVEN, 0.0) == 1


@given(
    st.lists(st.tuples(st.integers(1, 300), st.floats(0.001, 1.0)), min_size=1, max_size=20),
    st.floats(0.0, 2.0),
    st.integers(1, 500),
)
def test_rows_stay_within_the_limits(
    forwards: list[tuple[int, float]], seconds: float, limit: int
) -> None:
    times = measured(*forwards)
    largest = 2 * (1 << max((n - 1).bit_length() for n, _ in forwards))
    for num_rows in (times.most_rows(seconds, limit), times.best_rows([0.1] * limit, seconds)):
        assert 1 <= num_rows <= min(limit, largest)
    known = times.seconds(times.most_rows(seconds, limit))
    assert known is not None
    assert times.most_rows(seconds, limit) == 1 or known <= seconds


class Clocked:
    """A pace with a clock."""

    def __init__(self) -> None:
        self.pace = Pace()
        self.now = 100.0

    def one_pass(self, *committed: int, pure: bool = True, gap: float = 0.01) -> None:
        """A pass of 40 ms behind a gap, with its commits."""
        self.pace.plan(pure=pure)
        self.now += gap
        self.pace.start(self.now)
        self.now += 0.04
        self.pace.end(self.now)
        for num_tokens in committed:
            self.pace.commit(num_tokens)


def test_before_two_passes_there_is_no_pace() -> None:
    clocked = Clocked()
    assert clocked.pace.tokens_per_s is None and clocked.pace.verify_s.value is None
    clocked.one_pass(2)
    assert clocked.pace.tokens_per_s is None
    assert clocked.pace.verify_s.value == pytest.approx(0.04)


def test_the_pace_is_tokens_over_the_whole_cycle() -> None:
    clocked = Clocked()
    for _ in range(4):
        clocked.one_pass(2, 3)
    assert clocked.pace.tokens_per_s == pytest.approx(5 / 0.05)
    assert clocked.pace.verify_s.value == pytest.approx(0.04)


def test_passes_with_a_prefill_are_left_out() -> None:
    clocked = Clocked()
    for _ in range(3):
        clocked.one_pass(2)
    before = clocked.pace.tokens_per_s, clocked.pace.verify_s.value
    clocked.one_pass(900, pure=False, gap=0.5)
    clocked.pace.plan(pure=True)
    assert (clocked.pace.tokens_per_s, clocked.pace.verify_s.value) == before


def test_idleness_is_no_part_of_it() -> None:
    clocked = Clocked()
    for _ in range(3):
        clocked.one_pass(2)
    clocked.one_pass(2, gap=MAX_GAP)
    assert clocked.pace.tokens_per_s == pytest.approx(2 / 0.05)


def test_asking_again_while_waiting_counts_nothing_twice() -> None:
    clocked = Clocked()
    for _ in range(3):
        clocked.one_pass(2)
        clocked.pace.plan(pure=True)
    assert clocked.pace.tokens_per_s == pytest.approx(2 / 0.05)
