"""Which part of a proposal is used: it may be late, doubled, reordered, stale or garbage."""

from __future__ import annotations

import pytest

from tests.unit.scheduler.story import PATIENCE, RUN, Story, due_story, wait


def test_a_proposal_for_the_present_length_is_used_whole() -> None:
    story = due_story()
    assert story.propose(4, 60, 61, 62) == []
    assert story.request().proposal == (60, 61, 62)
    assert story.request().due_since is None


def test_it_is_used_up_by_the_pass() -> None:
    story = due_story()
    story.propose(4, 60, 61)
    story.commit(60, 99, num_drafted=2, num_accepted=1)
    assert story.request().proposal == ()
    assert story.plan(1) == wait(100.0 + PATIENCE)


def test_a_late_proposal_is_trimmed_by_what_was_committed_meanwhile() -> None:
    story = due_story()
    story.commit(60)
    story.propose(4, 60, 61, 62)
    assert story.request().proposal == (61, 62)
    assert story.plan(1) == RUN
    assert story.request().counters.stale == 0


def test_it_is_trimmed_over_several_passes() -> None:
    story = due_story()
    story.commit(60)
    story.commit(61)
    story.propose(4, 60, 61, 62)
    assert story.request().proposal == (62,)


@pytest.mark.parametrize(
    "tokens", [(99, 61, 62), (60, 99, 62), (60, 61), (60,), ()], ids=lambda t: f"{t}"
)
def test_a_late_proposal_that_contradicts_or_adds_nothing_is_stale(tokens: tuple[int, ...]) -> None:
    story = due_story()
    story.commit(60)
    story.commit(61)
    story.propose(4, *tokens)
    assert story.request().proposal == ()
    assert story.request().counters.stale == 1
    assert story.plan(1) == wait(100.0 + PATIENCE), "the answer for this length is still due"


def test_the_answer_for_the_present_length_replaces_a_trimmed_one() -> None:
    story = due_story()
    story.commit(60)
    story.propose(4, 60, 61, 62)
    story.propose(5, 71, 72)
    assert story.request().proposal == (71, 72)


def test_an_empty_answer_for_the_present_length_leaves_a_trimmed_one() -> None:
    story = due_story()
    story.commit(60)
    story.propose(4, 60, 61, 62)
    story.propose(5)
    assert story.request().proposal == (61, 62)
    assert story.request().due_since is None


def test_a_late_one_does_not_replace_the_answer_for_the_present_length() -> None:
    """Reordered: the newer of two proposals came first."""
    story = due_story()
    story.commit(60)
    story.propose(5, 71, 72)
    story.propose(4, 60, 61, 62)
    assert story.request().proposal == (71, 72)
    assert story.request().counters.stale == 1


def test_a_late_one_does_not_replace_an_empty_answer_for_the_present_length() -> None:
    story = due_story()
    story.commit(60)
    story.propose(5)
    story.propose(4, 60, 61, 62)
    assert story.request().proposal == ()
    assert story.plan(1) == RUN


def test_a_doubled_proposal_changes_nothing() -> None:
    story = due_story()
    for _ in range(2):
        story.propose(4, 60, 61)
        assert story.request().proposal == (60, 61)
    assert story.plan(1) == RUN


def test_a_doubled_proposal_after_its_pass_is_stale() -> None:
    story = due_story()
    story.propose(4, 60, 61)
    story.commit(60, 61, 62, num_drafted=2, num_accepted=2)
    story.propose(4, 60, 61)
    assert story.request().proposal == ()
    assert story.request().counters.stale == 1
    assert story.plan(1) == wait(100.0 + PATIENCE)


@pytest.mark.parametrize("base_length", [5, 6, 1 << 21])
def test_a_proposal_for_a_future_length_is_stale(base_length: int) -> None:
    story = due_story()
    story.propose(base_length, 60)
    assert story.request().proposal == ()
    assert story.request().counters.stale == 1
    assert story.plan(1) == wait(100.0 + PATIENCE)


@pytest.mark.parametrize("base_length", [0, 1, 2])
def test_a_proposal_within_the_prompt_is_stale(base_length: int) -> None:
    story = due_story()
    story.propose(base_length, *[1, 2, 3, 50, 60][base_length:])
    assert story.request().proposal == ()
    assert story.request().counters.stale == 1


def test_a_stale_proposal_leaves_a_good_one_in_place() -> None:
    story = due_story()
    story.propose(4, 60, 61)
    for base_length in (0, 3, 5, 900):
        story.propose(base_length, 9, 9)
    assert story.request().proposal == (60, 61)


def test_another_drafter_s_proposal_is_not_taken() -> None:
    story = due_story(drafters=("a", "b"))
    assert story.request().drafter == "a"
    story.propose(4, 60, drafter="b")
    story.propose(4, 60, drafter="nobody")
    assert story.request().proposal == ()
    assert story.request().counters.stale == 0


def test_a_proposal_for_an_unknown_or_closed_request_is_ignored() -> None:
    story = due_story()
    assert story.propose(4, 60, handle=77) == []
    story.close()
    assert story.propose(4, 60) == []


def test_a_proposal_survives_the_loss_of_its_drafter() -> None:
    """It is as right as before; only nothing more is due."""
    story = due_story()
    story.propose(4, 60, 61)
    story.lose()
    assert story.request().proposal == (60, 61)
    assert story.plan(1) == RUN


def test_many_unanswered_commits_do_not_pile_up() -> None:
    story = Story()
    story.join()
    story.admit()
    for token in range(1000):
        story.commit(token)
    assert len(story.request().asked) <= 64
