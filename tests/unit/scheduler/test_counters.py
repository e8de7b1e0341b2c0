"""The counts of one request."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.scheduler.counters import RequestCounters
from tests.unit.scheduler.story import Story, due_story


def test_the_pass_that_ends_the_prefill_is_no_round() -> None:
    assert due_story().request().counters.rounds == 0


def test_drafted_and_undrafted_rounds_are_told_apart() -> None:
    story = due_story()
    story.commit(60, 61, num_drafted=3, num_accepted=1)
    story.commit(62)
    story.commit(63, 64, 65, 66, num_drafted=4, num_accepted=3)
    story.commit(67, num_drafted=2, num_accepted=0)
    assert story.request().counters == RequestCounters(
        rounds=4,
        drafted_rounds=3,
        proposed=9,
        accepted=4,
        accepted_per_position=[2, 1, 1, 0],
    )


def test_the_pass_that_ends_a_request_is_counted() -> None:
    story = due_story()
    request = story.request()
    story.close(num_drafted=2, num_accepted=2, num_committed=3)
    assert (request.counters.rounds, request.counters.accepted) == (1, 2)


def test_an_abort_between_passes_is_no_round() -> None:
    story = due_story()
    request = story.request()
    story.close()
    assert request.counters == RequestCounters()


def test_a_request_that_ends_with_its_prefill_had_no_round() -> None:
    story = Story()
    story.admit()
    request = story.request()
    story.close(num_committed=1)
    assert request.counters.rounds == 0


@given(st.lists(st.integers(0, 8).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k)))))
def test_the_sums_agree_with_each_other(passes: list[tuple[int, int]]) -> None:
    counters = RequestCounters()
    for num_drafted, num_accepted in passes:
        counters.count_pass(num_drafted, num_accepted)
    per_position = counters.accepted_per_position
    assert counters.rounds == len(passes)
    assert counters.drafted_rounds == sum(1 for k, _ in passes if k)
    assert counters.proposed == sum(k for k, _ in passes)
    assert counters.accepted == sum(j for _, j in passes) == sum(per_position)
    assert len(per_position) == max((k for k, _ in passes), default=0)
    assert per_position == sorted(per_position, reverse=True)
    assert all(count <= counters.drafted_rounds for count in per_position)
