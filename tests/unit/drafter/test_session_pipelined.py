"""A session whose verifier wants branches: what a commit does to them."""

from __future__ import annotations

import pytest

from paceline.drafter.outlook import Outlook
from paceline.messages import Commit, Committed, Message, Reopen
from tests.unit.drafter.playing import FANOUT, K, Stage, welcome
from tests.unit.drafter.talk import opening


def commit(base_length: int, *tokens: int, num_ready: int = 0, handle: int = 1) -> Commit:
    committed = Committed(
        handle=handle,
        base_length=base_length,
        num_accepted=0,
        num_ready=num_ready,
        tokens=list(tokens),
    )
    return Commit(commits=[committed])


def drafted() -> Stage:
    """Request 1 has tokens 1, 2, and everything is drafted behind 3, 4, 5."""
    stage = Stage()
    stage.open(1, 1, 2)
    stage.rest()
    stage.sent()
    return stage


def take(stage: Stage, message: Message) -> Message | None:
    answer = stage.session().take(message)
    stage.validate()
    return answer


def test_each_request_has_a_branching_with_the_verifier_s_k() -> None:
    stage = Stage()
    stage.session().take(welcome(FANOUT, k=2))
    stage.open(1, 1, 2)
    stage.open(2, 7, due=False)
    branchings = stage.session().branchings
    assert [(b.k, b.due) for b in branchings.values()] == [(2, True), (2, False)]
    stage.close(1)
    assert branchings.keys() == {2}


def test_what_the_verifier_has_is_not_due() -> None:
    stage = drafted()
    assert take(stage, commit(2, 3, num_ready=2)) is None
    assert stage.session().due() == []
    branching = stage.session().branchings[1]
    assert not branching.due and branching.num_in_flight == 2


def test_a_miss_is_due() -> None:
    stage = drafted()
    assert take(stage, commit(2, 99)) is None
    assert [handle for handle, _ in stage.session().due()] == [1]
    assert stage.session().branchings[1].needs_proposal()


def test_a_doubled_commit_leaves_everything_as_it_is() -> None:
    stage = drafted()
    take(stage, commit(2, 3, num_ready=2))
    trunk = stage.session().branchings[1].trunk
    assert take(stage, commit(2, 3)) is None
    assert stage.session().branchings[1].trunk is trunk
    assert stage.session().due() == []


def test_of_a_commit_that_overlaps_only_the_end_is_new() -> None:
    stage = drafted()
    take(stage, commit(2, 3, num_ready=2))
    assert take(stage, commit(2, 3, 4, num_ready=1)) is None
    assert stage.session().requests[1].tokens == [1, 2, 3, 4]
    assert stage.session().branchings[1].trunk.drafts[0] == 5


@pytest.mark.parametrize("message", [commit(4, 9), commit(1, 9), commit(2, 3, handle=7)])
def test_a_commit_that_does_not_follow_asks_for_open_and_leaves_the_branches(
    message: Commit,
) -> None:
    stage = drafted()
    trunk = stage.session().branchings[1].trunk
    assert isinstance(take(stage, message), Reopen)
    assert stage.session().branchings[1].trunk is trunk


def test_open_again_begins_with_nothing_drafted_and_a_proposal_due() -> None:
    stage = drafted()
    take(stage, opening(1, [1], [2, 3, 4]))
    branching = stage.session().branchings[1]
    assert branching.due and branching.trunk.drafts == ()
    assert len(stage.model.requests) == 1
    stage.rest()
    assert stage.proposed() == [(1, 4, [5, 6, 7])]


def test_a_proposal_settles_both_that_are_due() -> None:
    stage = Stage()
    stage.open(1, 1, 2)
    assert stage.session().due()
    stage.step(K)
    assert not stage.session().due() and not stage.session().branchings[1].due


def test_a_new_verifier_is_learned_of_anew() -> None:
    stage = drafted()
    take(stage, commit(2, 3, handle=77))
    assert stage.session().outlook != Outlook()
    stage.session().take(welcome(incarnation=10))
    assert not stage.session().branchings and not stage.model.requests
    assert stage.session().outlook._missed == set()
    assert stage.session().outlook.committed_at == 0.0


def test_an_unknown_request_s_miss_is_forgotten_with_its_close() -> None:
    stage = Stage()
    assert isinstance(take(stage, commit(2, 3, handle=77)), Reopen)
    assert stage.session().outlook._missed == {77}
    stage.close(77)
    assert stage.session().outlook._missed == set()
