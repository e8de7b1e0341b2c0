"""Who drafts for whom: the least loaded, within limits, and who takes over."""

from __future__ import annotations

from tests.unit.scheduler.story import (
    PATIENCE,
    PROMPT,
    RUN,
    Story,
    closed,
    committed,
    due_story,
    opened,
    wait,
)


def test_a_new_request_is_opened_with_its_prompt_at_once() -> None:
    story = Story()
    assert story.join() == []
    assert story.admit() == [opened()]
    assert story.request().method == "method-d"


def test_commits_follow_with_their_base_length() -> None:
    story = Story()
    story.join()
    story.admit()
    assert story.commit(50) == [committed(len(PROMPT), 50)]
    assert story.commit(60, 61, num_drafted=3, num_accepted=1) == [
        committed(4, 60, 61, num_drafted=3, num_accepted=1)
    ]
    assert story.commit(62) == [committed(6, 62)]


def test_the_least_loaded_drafter_gets_the_next_request() -> None:
    story = Story()
    for name in ("b", "a", "c"):
        story.join(name)
    for handle, name in enumerate(["a", "b", "c", "a", "b", "c"], 1):
        assert story.admit(handle) == [opened(name, handle)]
    story.close(2)
    assert story.admit(7) == [opened("b", 7)]


def test_a_full_drafter_gets_no_more() -> None:
    story = Story()
    story.join("small", max_requests=1)
    assert story.admit(1) == [opened("small", 1)]
    assert story.admit(2) == []
    assert story.commit(50, handle=2) == []
    assert story.plan(2) == RUN


def test_room_that_is_freed_goes_to_who_waits_with_its_output() -> None:
    story = Story()
    story.join("small", max_requests=1)
    story.admit(1)
    story.admit(2)
    story.commit(50, handle=2)
    assert story.close(1) == [closed("small", 1), opened("small", 2, output=[50])]


def test_who_waits_longest_gets_room_first() -> None:
    story = Story()
    story.join("small", max_requests=1)
    for handle in (1, 2, 3):
        story.admit(handle)
    assert story.close(1) == [closed("small", 1), opened("small", 2)]
    assert story.close(3) == []
    assert story.close(2) == [closed("small", 2)]


def test_a_request_that_no_drafter_may_serve_is_never_opened() -> None:
    story = Story()
    story.admit(draftable=False)
    assert story.join() == []
    assert story.commit(50) == []
    assert story.lose() == []
    assert story.join() == []
    assert story.close() == []


def test_a_drafter_that_comes_late_gets_those_who_wait() -> None:
    story = Story()
    story.admit(1)
    story.admit(2)
    story.commit(50, 51, handle=1)
    assert story.join(max_requests=2) == [opened(handle=1, output=[50, 51]), opened(handle=2)]


def test_a_lost_drafter_s_requests_go_to_another_with_prompt_and_output() -> None:
    story = due_story(1, drafters=("a", "b"))
    story.commit(51, 52)
    assert story.lose("a") == [opened("b", 1, output=[50, 51, 52])]
    assert story.commit(53) == [committed(6, 53, drafter="b")]


def test_with_no_other_drafter_they_run_undrafted_and_unwaited() -> None:
    story = due_story()
    assert story.lose() == []
    assert story.request().drafter is None
    assert story.plan(1) == RUN
    assert story.plan(1, prefill_ready=True) == RUN
    assert story.commit(51) == []


def test_no_more_are_taken_over_than_there_is_room_for() -> None:
    story = Story()
    story.join("big", max_requests=8)
    for handle in (1, 2, 3):
        story.admit(handle)
    story.join("small", max_requests=2)
    assert story.lose("big") == [opened("small", 1), opened("small", 2)]
    assert story.request(3).drafter is None


def test_a_request_taken_over_is_not_waited_for_before_its_next_commit() -> None:
    """The new drafter has to read all of its text first."""
    story = due_story(drafters=("a", "b"))
    story.lose("a")
    assert story.plan(1) == RUN
    story.propose(4, 60, drafter="b")
    assert story.request().proposal == (60,), "but what comes in time is used"
    story.commit(60, 61, num_drafted=1, num_accepted=1)
    assert story.plan(1) == wait(100.0 + PATIENCE)


def test_the_old_drafter_s_late_answer_is_not_taken_after_a_takeover() -> None:
    story = due_story(drafters=("a", "b"))
    story.lose("a")
    story.propose(4, 60, drafter="a")
    assert story.request().proposal == ()


def test_a_new_incarnation_gets_everything_opened_again() -> None:
    story = due_story(1, 2)
    assert story.join() == [opened(handle=1, output=[50]), opened(handle=2, output=[50])]
    assert story.plan(1, 2) == RUN


def test_losing_a_stranger_does_nothing() -> None:
    story = due_story()
    assert story.lose("nobody") == []
    assert story.request().drafter == "d"


def test_a_drafter_that_lost_track_gets_all_of_the_text() -> None:
    story = due_story()
    story.commit(51)
    assert story.reopen() == [opened(output=[50, 51])]
    assert story.plan(1) == wait(100.0 + PATIENCE), "its proposal is due as before"


def test_reopening_what_is_closed_is_answered_with_close() -> None:
    assert due_story().reopen(handle=77) == [closed(handle=77)]


def test_reopening_another_drafter_s_request_does_nothing() -> None:
    story = due_story(drafters=("a", "b"))
    assert story.reopen(drafter="b") == []


def test_events_of_unknown_requests_do_nothing() -> None:
    story = due_story()
    assert story.commit(1, handle=77) == []
    assert story.close(77) == []
