"""A drafter that let the patience end is not waited for until it answers in time again."""

from __future__ import annotations

from tests.unit.scheduler.story import PATIENCE, RUN, Story, due_story, hold, impatient, wait


def suspected(*handles: int) -> Story:
    """The drafter has let the patience end once."""
    handles = handles or (1,)
    story = due_story(*handles)
    story.now += PATIENCE
    assert story.plan(*handles) == impatient(*handles)
    return story


def test_a_silent_drafter_costs_one_wait_and_not_one_a_round() -> None:
    story = suspected()
    for token in range(60, 70):
        story.commit(token)
        assert story.plan(1) == RUN


def test_neither_is_it_held_for() -> None:
    story = suspected()
    story.commit(60)
    assert story.plan(1, prefill_ready=True) == RUN


def test_other_requests_of_the_same_drafter_are_not_waited_for_either() -> None:
    story = suspected()
    story.admit(2)
    story.commit(50, handle=2)
    assert story.plan(2) == RUN


def test_another_drafter_is_still_waited_for() -> None:
    story = due_story(1, 2, drafters=("a", "b"))
    assert (story.request(1).drafter, story.request(2).drafter) == ("a", "b")
    story.propose(4, 60, handle=2, drafter="b")
    story.now += PATIENCE
    assert story.plan(1, 2) == impatient(1)
    story.commit(60, 61, handle=2, num_drafted=1, num_accepted=1)
    assert story.plan(1, 2) == wait(story.now + PATIENCE)
    story.propose(6, 62, handle=2, drafter="b")
    assert story.plan(1, 2) == RUN


def test_an_answer_in_time_ends_the_suspicion() -> None:
    story = suspected()
    story.commit(60)
    story.now += PATIENCE / 2
    story.propose(5, 70)
    assert story.plan(1) == RUN
    story.commit(70, 71, num_drafted=1, num_accepted=1)
    assert story.plan(1) == wait(story.now + PATIENCE)


def test_an_empty_answer_in_time_ends_it_too() -> None:
    story = suspected()
    story.commit(60)
    story.propose(5)
    story.commit(61)
    assert story.plan(1) == wait(story.now + PATIENCE)


def test_a_stale_answer_that_came_in_time_ends_it_too() -> None:
    """The target went on at once, so the drafter cannot answer before the text moves on."""
    story = suspected()
    story.commit(60)
    story.commit(61)
    story.now += PATIENCE / 2
    story.propose(5, 99)
    assert story.request().counters.stale == 1
    assert story.plan(1) == wait(story.now - PATIENCE / 2 + PATIENCE)


def test_a_late_answer_does_not_end_it() -> None:
    story = suspected()
    story.commit(60)
    story.now += PATIENCE * 1.01
    story.propose(5, 70, 71)
    assert story.request().proposal == (70, 71), "late, but it still fits"
    story.commit(70, 71, 72, num_drafted=2, num_accepted=2)
    assert story.plan(1) == RUN


def test_a_late_answer_makes_a_suspect_without_any_wait() -> None:
    """Prefills kept the target busy meanwhile."""
    story = due_story()
    assert story.plan(1, prefill_ready=True) == hold(1)
    story.now += 2 * PATIENCE
    story.propose(4, 60)
    story.commit(60, 61, num_drafted=1, num_accepted=1)
    assert story.plan(1) == RUN


def test_an_answer_that_nobody_asked_for_ends_nothing() -> None:
    story = suspected()
    story.commit(60)
    story.now += PATIENCE / 2
    story.propose(4, 99)  # asked for longer ago than the patience
    story.propose(900, 99)
    story.commit(61)
    assert story.plan(1) == RUN


def test_a_new_incarnation_begins_without_suspicion() -> None:
    story = suspected()
    story.join()
    story.commit(60)
    assert story.plan(1) == wait(story.now + PATIENCE)


def test_each_further_time_it_has_to_answer_twice_as_often() -> None:
    """Else one that behaves only while nobody waits for it would cost a wait every other round."""
    story = suspected()
    for num_owed in (1, 2, 4, 8):
        for number in range(num_owed):
            story.commit(60)
            assert story.plan(1) == RUN, f"{number} of {num_owed} answers are enough"
            story.propose(story.request().length)
        story.commit(60)
        assert story.plan(1) == wait(story.now + PATIENCE)
        story.now += PATIENCE
        assert story.plan(1) == impatient(1)


def test_once_it_has_answered_while_it_was_waited_for_all_is_forgotten() -> None:
    story = suspected()
    for _ in range(2):  # the first is owed, the second is waited for
        story.commit(60)
        story.propose(story.request().length)
    story.commit(60)
    story.now += PATIENCE
    assert story.plan(1) == impatient(1)
    story.commit(60)
    story.propose(story.request().length)
    story.commit(60)
    assert story.plan(1) == wait(story.now + PATIENCE), "one answer is enough again"


def test_many_requests_that_expire_together_count_once() -> None:
    story = suspected(1, 2, 3)
    story.commit(60)
    story.propose(5)
    story.commit(61)
    assert story.plan(1) == wait(story.now + PATIENCE)
