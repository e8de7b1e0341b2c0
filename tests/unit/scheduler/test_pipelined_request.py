"""Hits, misses and what is due, with branches that may come in time or late."""

from __future__ import annotations

import pytest

from paceline.scheduler.counters import MissCause
from paceline.scheduler.events import SendCommit, SendOpen
from tests.unit.scheduler.story import PROMPT, Story, committed, due_story


def pipelined() -> Story:
    """Request 1 has four tokens, and drafts 60, 61 are at hand for it."""
    story = due_story(mode="pipelined")
    story.propose(4, 60, 61)
    return story


def misses(story: Story) -> dict[MissCause, int]:
    return dict(story.request().counters.misses)


def test_the_outcome_s_branch_is_the_next_proposal_and_nothing_is_due() -> None:
    story = pipelined()
    story.branch(4, 2, 60, 70, 80, 81)
    assert story.commit(60, 70, num_drafted=2, num_accepted=1) == [
        committed(4, 60, 70, num_drafted=2, num_accepted=1, num_ready=2)
    ]
    assert story.request().proposal == (80, 81)
    assert story.request().due_since is None
    assert story.request().was_hit
    assert story.request().counters.hits == 1
    assert not misses(story)


def test_num_ready_is_no_more_than_k() -> None:
    story = Story(mode="pipelined")
    story.join(k=3)
    story.admit()
    story.branch(3, 1, 50, 60, 61, 62, 63)
    [command] = story.commit(50)
    assert isinstance(command, SendCommit) and command.num_ready == 3


def test_a_miss_makes_a_proposal_due() -> None:
    story = pipelined()
    story.branch(4, 2, 60, 70, 80)
    [command] = story.commit(60, 71, num_drafted=2, num_accepted=1)
    assert isinstance(command, SendCommit) and command.num_ready == 0
    assert story.request().due_since == story.now
    assert not story.request().was_hit
    assert story.request().proposal == ()
    assert misses(story) == {"bonus": 1}


def test_each_cause_is_counted() -> None:
    story = pipelined()
    story.commit(99, num_drafted=2)
    story.propose(5, 60, 61)
    story.branch(5, 3, 60, 61, 70, 80)
    story.commit(99, num_drafted=2)
    assert misses(story) == {"none": 1, "length": 1}


def test_the_pass_that_ends_the_prefill_is_neither_hit_nor_miss() -> None:
    story = due_story(mode="pipelined")
    assert story.request().counters.hits == 0 and not misses(story)
    other = Story(mode="pipelined")
    other.join()
    other.admit()
    other.branch(3, 1, 50, 60)
    other.commit(50)
    assert other.request().proposal == (60,)
    assert other.request().counters.hits == 0 and not misses(other)


def test_without_a_drafter_nothing_is_counted() -> None:
    story = pipelined()
    story.lose()
    story.commit(60, 70, num_drafted=2, num_accepted=1)
    story.commit(71)
    assert story.request().counters.hits == 0 and not misses(story)
    assert story.request().due_since is None


def test_a_branch_that_comes_after_its_pass_is_used_and_was_late() -> None:
    story = pipelined()
    story.commit(60, 70, num_drafted=2, num_accepted=1)
    assert misses(story) == {"none": 1}
    story.branch(4, 2, 60, 70, 80, 81)
    assert story.request().proposal == (80, 81)
    assert story.request().due_since is None
    assert misses(story) == {"late": 1}
    assert story.request().counters.hits == 0


def test_a_miss_is_corrected_once() -> None:
    story = pipelined()
    story.commit(60, 70, num_drafted=2, num_accepted=1)
    for _ in range(2):
        story.branch(4, 2, 60, 70, 80, 81)
    assert misses(story) == {"late": 1}


def test_a_late_branch_of_another_outcome_changes_nothing() -> None:
    story = pipelined()
    story.commit(60, 70, num_drafted=2, num_accepted=1)
    for outcome in ((60, 71, 80), (61, 70, 80), (60, 70)):
        story.branch(4, len(outcome) - 1, *outcome)
    assert story.request().proposal == ()
    assert story.request().due_since is not None
    assert misses(story) == {"none": 1}


def test_a_branch_for_the_pass_after_is_no_late_one() -> None:
    story = pipelined()
    story.commit(60, 70, num_drafted=2, num_accepted=1)
    story.branch(6, 1, 71, 80)
    assert misses(story) == {"none": 1}
    assert story.request().due_since is not None


def test_a_proposal_that_comes_after_an_undrafted_pass_is_late_and_stays_due() -> None:
    story = due_story(mode="pipelined")
    story.commit(60)
    assert misses(story) == {"none": 1}
    story.propose(4, 60, 61, 62)
    assert story.request().proposal == (61, 62)
    assert misses(story) == {"late": 1}
    assert story.request().due_since is not None


def test_a_proposal_that_comes_during_an_undrafted_pass_makes_it_a_hit() -> None:
    story = due_story(mode="pipelined")
    story.propose(4, 60, 61, 62)
    [command] = story.commit(60)
    assert isinstance(command, SendCommit) and command.num_ready == 2
    assert story.request().counters.hits == 1


def test_behind_a_hit_an_old_answer_is_stale() -> None:
    story = pipelined()
    story.branch(4, 2, 60, 70, 80)
    story.commit(60, 70, num_drafted=2, num_accepted=1)
    story.propose(4, 60, 70, 90)
    assert story.request().proposal == (80,)
    assert story.request().counters.stale == 1


def test_unanswered_commits_before_a_hit_are_forgotten() -> None:
    story = due_story(mode="pipelined")
    story.now += 1
    story.commit(60)
    assert len(story.request().asked) == 2
    story.branch(5, 1, 70, 80)
    story.commit(70)
    assert not story.request().asked


@pytest.mark.parametrize("base_length", [0, 2, 5, 9, 1 << 21])
def test_a_branch_of_another_place_is_not_taken(base_length: int) -> None:
    story = due_story(mode="pipelined")
    story.branch(base_length, 1, *[1, 2, 3, 50, 60][base_length:4], 70, 80)
    assert story.request().proposal == ()


def test_a_branch_of_another_drafter_or_of_a_closed_request_is_not_taken() -> None:
    story = due_story(mode="pipelined", drafters=("a", "b"))
    story.branch(4, 1, 70, 80, drafter="b")
    story.branch(4, 1, 70, 80, handle=77, drafter="a")
    assert story.request().proposal == ()
    story.close()
    assert story.branch(4, 1, 70, 80, drafter="a") == []


def test_continuations_survive_the_loss_of_their_drafter_with_the_next_one_s_k() -> None:
    story = pipelined()
    story.lose()
    assert story.request().proposal == (60, 61)
    [command] = story.join("e", k=1)
    assert isinstance(command, SendOpen)
    assert story.request().proposal == (60,)
    story.branch(4, 2, 60, 70, 80, 81, drafter="e")
    [commit] = story.commit(60, 70, num_drafted=1, num_accepted=1)
    assert commit == committed(4, 60, 70, drafter="e", num_drafted=1, num_accepted=1, num_ready=1)


def test_in_lockstep_a_proposal_is_due_after_each_commit_whatever_is_left() -> None:
    story = due_story()
    story.propose(4, 60, 61, 62)
    [command] = story.commit(60)
    assert isinstance(command, SendCommit) and command.num_ready == 0
    assert story.request().due_since == story.now
    assert story.request().proposal == (61, 62), "it helps out while the answer is due"
    assert story.plan(1).wait_until is None
    assert not story.request().was_hit
    assert story.request().counters.hits == 0 and not misses(story)


def test_in_lockstep_a_late_proposal_is_no_miss() -> None:
    story = due_story()
    story.commit(60)
    story.propose(4, 60, 61, 62)
    assert not misses(story)


def test_hits_and_misses_add_up_to_the_passes_that_went_on() -> None:
    story = pipelined()
    story.branch(4, 3, 60, 61, 70, 80)
    story.commit(60, 61, 70, num_drafted=2, num_accepted=2)
    story.commit(99, num_drafted=1)
    story.commit(98)
    story.branch(8, 1, 98, 80)
    counters = story.request().counters
    assert counters.rounds == 3 == counters.hits + sum(counters.misses.values())
    assert story.request().length == len(PROMPT) + 1 + counters.rounds + counters.accepted
