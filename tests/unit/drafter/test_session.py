"""What a drafter knows of each request: opened, committed, lost track of, closed."""

from __future__ import annotations

import pytest

from paceline.drafter.model import Draft
from paceline.messages import Close, Commit, Committed, Proposal, Proposed, Reopen
from tests.unit.drafter.talk import Talk, commit, opening, started


@pytest.fixture
def talk() -> Talk:
    return started()


def test_a_new_request_is_not_due_before_its_first_token() -> None:
    talk = Talk()
    talk.take(opening(1, [1, 2, 3]))
    assert talk.due() == [] and talk.text() == [1, 2, 3]


def test_a_request_taken_over_is_due_at_once() -> None:
    talk = Talk()
    talk.take(opening(1, [1, 2, 3], [50, 51]))
    assert talk.due() == [1] and talk.text() == [1, 2, 3, 50, 51]


def test_commits_in_order_are_appended_and_due(talk: Talk) -> None:
    assert talk.due() == [1]
    talk.answer()
    assert talk.due() == []
    assert talk.take(commit(1, 4, 51, 52)) is None
    assert talk.text() == [1, 2, 3, 50, 51, 52]
    assert talk.due() == [1]


def test_a_doubled_commit_is_neither_appended_nor_due_again(talk: Talk) -> None:
    talk.answer()
    assert talk.take(commit(1, 3, 50)) is None
    assert talk.text() == [1, 2, 3, 50] and talk.due() == []


def test_a_commit_that_overlaps_adds_what_is_new(talk: Talk) -> None:
    talk.answer()
    assert talk.take(commit(1, 3, 50, 51, 52)) is None
    assert talk.text() == [1, 2, 3, 50, 51, 52] and talk.due() == [1]


@pytest.mark.parametrize(
    "message",
    [
        commit(1, 5, 60),
        commit(1, 3, 99),
        commit(1, 3, 99, 51),
        commit(1, 2, 3, 49),
        commit(2, 3, 1),
    ],
    ids=["gap", "contradiction", "contradiction and more", "older contradiction", "unknown"],
)
def test_a_commit_that_does_not_follow_asks_for_open_and_changes_nothing(
    talk: Talk, message: Commit
) -> None:
    talk.answer()
    [committed] = message.commits
    assert talk.take(message) == Reopen(handles=[committed.handle])
    assert talk.text() == [1, 2, 3, 50] and talk.due() == []


def test_a_late_double_of_an_older_commit_is_ignored(talk: Talk) -> None:
    talk.take(commit(1, 4, 51, 52))
    assert talk.take(commit(1, 3, 50)) is None
    assert talk.text() == [1, 2, 3, 50, 51, 52]


def test_only_the_lost_ones_of_a_pass_are_asked_for(talk: Talk) -> None:
    talk.take(opening(2, [7]))
    both = Commit(
        commits=[
            Committed(handle=2, base_length=9, num_accepted=0, tokens=[1]),
            Committed(handle=1, base_length=4, num_accepted=0, tokens=[51]),
            Committed(handle=3, base_length=1, num_accepted=0, tokens=[1]),
        ]
    )
    assert talk.take(both) == Reopen(handles=[2, 3])
    assert talk.text(1) == [1, 2, 3, 50, 51]


def test_open_again_replaces_the_text(talk: Talk) -> None:
    old = talk.session.requests[1]
    talk.take(opening(1, [1, 2, 3], [50, 60, 61]))
    assert talk.text() == [1, 2, 3, 50, 60, 61] and talk.due() == [1]
    with pytest.raises(KeyError):
        talk.model.draft([old], 1, 1000)


def test_close_forgets_and_a_stranger_s_close_does_nothing(talk: Talk) -> None:
    request = talk.session.requests[1]
    assert talk.take(Close(handles=[77, 1, 1])) is None
    assert talk.session.requests == {} and talk.due() == []
    with pytest.raises(KeyError):
        talk.model.draft([request], 1, 1000)


def test_a_proposal_names_the_length_that_it_continues_and_settles_what_was_due(
    talk: Talk,
) -> None:
    talk.take(opening(2, [7], [8]))
    drafts = [
        (handle, request, Draft([9] * handle, [0.5] * handle))
        for handle, request in talk.session.due()
    ]
    assert talk.session.proposal(drafts) == Proposal(
        proposals=[
            Proposed(handle=1, base_length=4, tokens=[9], confidence=[0.5]),
            Proposed(handle=2, base_length=2, tokens=[9, 9], confidence=[0.5, 0.5]),
        ]
    )
    assert talk.due() == []
