"""The base rule: run now, or wait, and who takes part."""

from __future__ import annotations

import pytest

from paceline.scheduler.plan import MAX_HOLDS_IN_ROW
from tests.unit.scheduler.story import PATIENCE, RUN, Story, due_story, hold, impatient, wait


def test_nothing_to_decode_runs_at_once() -> None:
    assert Story().plan() == RUN


def test_a_request_without_a_drafter_is_not_waited_for() -> None:
    story = Story()
    story.admit()
    story.commit(50)
    assert story.plan(1) == RUN


def test_a_request_that_no_drafter_may_serve_is_not_waited_for() -> None:
    story = Story()
    story.join()
    assert story.admit(draftable=False) == []
    assert story.commit(50) == []
    assert story.plan(1) == RUN


def test_a_handle_that_is_unknown_is_an_undrafted_request() -> None:
    assert due_story().plan(1, 77) == wait(100.0 + PATIENCE)
    assert due_story().plan(77) == RUN


def test_a_due_proposal_is_waited_for() -> None:
    assert due_story().plan(1) == wait(100.0 + PATIENCE)


def test_once_it_is_here_the_pass_runs() -> None:
    story = due_story()
    story.propose(4, 60, 61)
    assert story.plan(1) == RUN
    assert story.request().proposal == (60, 61)


def test_a_drafter_that_declines_is_not_waited_for() -> None:
    story = due_story()
    story.propose(4)
    assert story.plan(1) == RUN
    assert story.request().proposal == ()


def test_all_due_proposals_are_waited_for_though_one_is_here() -> None:
    story = due_story(1, 2, 3)
    story.propose(4, 60, handle=1)
    story.propose(4, 60, handle=3)
    assert story.plan(1, 2, 3) == wait(100.0 + PATIENCE)
    story.propose(4, 60, handle=2)
    assert story.plan(1, 2, 3) == RUN


def test_only_requests_that_could_run_are_waited_for() -> None:
    story = due_story(1, 2)
    story.propose(4, 60, handle=1)
    assert story.plan(1) == RUN


def test_the_oldest_one_s_patience_ends_the_wait_for_all() -> None:
    story = due_story(1, 2)
    story.propose(4, 60, handle=2)
    story.now = 100.1
    story.commit(60, 70, handle=2, num_drafted=1, num_accepted=1)
    assert story.plan(1, 2) == wait(100.0 + PATIENCE)


def test_at_the_end_of_the_patience_everyone_runs() -> None:
    story = due_story(1, 2)
    story.propose(4, 60, handle=2)
    story.now = 100.0 + PATIENCE
    assert story.plan(1, 2) == impatient(1)


def test_just_before_it_the_target_still_waits() -> None:
    story = due_story()
    story.now = 100.0 + PATIENCE - 0.001
    assert story.plan(1) == wait(100.0 + PATIENCE)


def test_without_patience_nobody_is_waited_for() -> None:
    story = Story(patience=0)
    story.join()
    story.admit()
    story.commit(50)
    assert story.plan(1) == impatient(1)


@pytest.mark.parametrize("late", [0.0, PATIENCE, 10 * PATIENCE])
def test_a_prefill_never_waits(late: float) -> None:
    story = due_story(1, 2)
    story.propose(4, 60, handle=2)
    story.now += late
    assert story.plan(1, 2, prefill_ready=True) == hold(1)


def test_a_request_sits_out_at_most_two_passes_in_a_row() -> None:
    story = due_story()
    plans = [story.plan(1, prefill_ready=True) for _ in range(4)]
    assert MAX_HOLDS_IN_ROW == 2
    assert plans == [hold(1), hold(1), RUN, RUN]
    assert story.request().counters.holds == 2


def test_holds_in_a_row_are_counted_anew_after_a_pass() -> None:
    story = due_story()
    for _ in range(2):
        assert story.plan(1, prefill_ready=True) == hold(1)
    assert story.plan(1, prefill_ready=True) == RUN
    story.commit(51)
    assert story.plan(1, prefill_ready=True) == hold(1)
    assert story.request().counters.holds == 3


def test_a_ready_or_declining_request_is_not_held() -> None:
    story = due_story(1, 2, 3)
    story.propose(4, 60, handle=1)
    story.propose(4, handle=2)
    assert story.plan(1, 2, 3, prefill_ready=True) == hold(3)


def test_waiting_changes_nothing() -> None:
    story = due_story()
    first = story.plan(1)
    assert [story.plan(1) for _ in range(5)] == [first] * 5
    assert story.request().counters.holds == 0
