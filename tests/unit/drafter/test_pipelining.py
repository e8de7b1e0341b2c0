"""What each forward extends, and what is sent when, by a clock that only the forwards move."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.drafter.pipelining import SLACK
from paceline.messages import Branch, Branches, Proposal, Proposed
from tests.unit.drafter.playing import FANOUT, K, Played, PlayedLookup, Stage


def proposed_stage(model: Played | None = None, verify_s: float = 0.0) -> Stage:
    """Request 1 has tokens 1, 2; drafts 3, 4, 5 were sent just now."""
    stage = Stage(model)
    stage.open(1, 1, due=False)
    stage.commit(1, 2, verify_s=verify_s)
    while not (proposals := stage.proposed()):
        stage.step()
    assert proposals == [(1, 2, [3, 4, 5])]
    stage.model.forwards.clear()
    return stage


def branches(stage: Stage) -> list[tuple[int, list[int], int]]:
    """Length, tokens and size of the outcome of the branches sent since the last call."""
    sent = stage.sent()
    assert not [p for p in sent if isinstance(p, Proposed)]
    return [(b.base_length, b.tokens, b.num_outcome) for b in sent if isinstance(b, Branch)]


def test_without_requests_there_is_nothing_to_do() -> None:
    assert not Stage().pipelining.step(Stage().links)


def test_what_is_due_is_drafted_first_and_alone_while_nothing_is_measured() -> None:
    stage = Stage()
    stage.open(1, 1, 2)
    stage.step()
    assert stage.model.forwards == [[(1, 2)]]
    assert stage.sent() == []


def test_a_proposal_goes_out_with_its_last_token() -> None:
    stage = Stage()
    stage.open(1, 1, 2)
    stage.open(2, 7, 8)
    stage.step(K)
    [(_, message)] = stage.links[0][0].sent
    assert isinstance(message, Proposal), "one message for both, and no branches yet"
    assert stage.proposed() == [(1, 2, [3, 4, 5]), (2, 2, [9, 10, 11])]
    assert stage.session().due() == []


def test_a_lookup_proposes_after_one_forward() -> None:
    stage = Stage(PlayedLookup())
    stage.open(1, 1, 2)
    stage.step()
    assert stage.proposed() == [(1, 2, [3, 4, 5])]


@pytest.mark.parametrize("model", [Played, PlayedLookup])
def test_who_finds_nothing_proposes_nothing_at_once(model: type[Played]) -> None:
    stage = Stage(model(lambda text: []))
    stage.open(1, 1, 2)
    stage.rest()
    assert stage.proposed() == [(1, 2, [])]
    assert len(stage.model.forwards) == 1


def test_who_is_not_ready_declines_at_once_and_holds_nobody_up() -> None:
    stage = Stage()
    stage.open(1, 1, 2)
    stage.open(2, 7, 8)
    stage.model.unready.add(stage.session().requests[1])
    stage.step()
    assert stage.proposed() == [(1, 2, [])]
    assert stage.model.forwards == [[(7, 8)]]
    stage.step(K - 1)
    assert stage.proposed() == [(2, 2, [9, 10, 11])]


def test_once_ready_it_drafts_behind_the_undrafted_pass() -> None:
    stage = Stage()
    stage.open(1, 1, 2)
    stage.model.unready.add(stage.session().requests[1])
    assert not stage.pipelining.step(stage.links)
    stage.sent()
    stage.model.unready.clear()
    stage.rest()
    assert stage.model.forwards[0] == [(1, 2)]
    outcomes = {tuple(tokens[:size]) for _, tokens, size in branches(stage)}
    assert outcomes == {(3,), (103,), (203,), (303,)}


def test_behind_the_proposal_the_likeliest_outcomes_come_first() -> None:
    stage = proposed_stage()
    stage.rest()
    begun = [text for texts in stage.model.forwards for text in texts]
    first_places = [begun.index((1, 2, *outcome)) for outcome in ((3, 4, 5), (103,), (3, 104))]
    others = [begun.index((1, 2, *outcome)) for outcome in ((303,), (3, 304))]
    assert max(first_places) < min(others)


def test_everything_that_may_come_is_drafted_and_told_in_the_end_and_nothing_twice() -> None:
    stage = proposed_stage()
    stage.rest()
    texts = [text for forward in stage.model.forwards for text in forward]
    assert len(set(texts)) == len(texts)
    told = {tuple(tokens) for _, tokens, _ in branches(stage)}
    rejected = {
        (*range(3, 3 + j), b, b + 1, b + 2, b + 3)
        for j in range(K)
        for b in (103 + j, 203 + j, 303 + j)
    }
    behind = {(3, 4, 5, b, b + 1, b + 2, b + 3) for b in (6, 106, 206, 306)}
    assert {tokens for tokens in told if len(tokens) >= K + 1} >= rejected | behind


def test_a_branch_is_sent_when_it_is_finished() -> None:
    stage = proposed_stage(verify_s=1e6)
    while not (sent := branches(stage)):
        stage.step()
    assert all(len(tokens) == size + K for _, tokens, size in sent)


def test_before_the_pass_ends_all_that_is_there_is_sent() -> None:
    """Forwards of 10 ms, a pass of 35: what is unfinished after 30 would come too late."""
    model = Played()
    model.cost = lambda num_rows: 0.0
    stage = proposed_stage(model, verify_s=0.035)
    model.cost = lambda num_rows: 0.01
    began = stage.now
    sizes = []
    while stage.now < began + 0.03:
        stage.step()
        sizes.append([len(tokens) - size for _, tokens, size in branches(stage)])
    assert {*sizes[0], *sizes[1]} <= {K}, "there was still time"
    assert sizes[2] and min(sizes[2]) < K


@pytest.mark.parametrize("waits", [False, True])
def test_a_proposal_is_cut_short_where_the_pass_runs_without_it(waits: bool) -> None:
    """Three forwards of 10 ms in a pass of 25."""
    stage = Stage()
    stage.model.cost = lambda num_rows: 0.01
    stage.open(1, 1, due=False)
    for token in range(2, 30):
        stage.commit(1, token, num_drafted=int(waits), verify_s=0.025)
    while not (proposals := stage.proposed()):
        stage.step()
    assert proposals == [(1, 29, [30, 31, 32] if waits else [30, 31])]


def test_only_what_is_new_is_sent_again() -> None:
    model = Played()
    model.cost = lambda num_rows: 0.0
    stage = proposed_stage(model, verify_s=0.001)
    model.cost = lambda num_rows: 0.01
    stage.rest()
    sent = [(tuple(tokens[:size]), len(tokens) - size) for _, tokens, size in branches(stage)]
    assert len(set(sent)) == len(sent)
    assert max(size for _, size in sent) == K


def test_what_an_outcome_makes_impossible_stops_at_the_next_depth() -> None:
    stage = proposed_stage()
    stage.step(4)
    begun = {text for texts in stage.model.forwards for text in texts}
    assert {text[:3] for text in begun} >= {(1, 2, 3), (1, 2, 103)}
    stage.sent()
    stage.commit(1, 103, num_drafted=3, num_ready=1)
    stage.model.forwards.clear()
    stage.rest()
    assert stage.model.forwards
    for texts in stage.model.forwards:
        assert {text[:3] for text in texts} == {(1, 2, 103)}
    assert {length for length, _, _ in branches(stage)} == {3}


def test_a_closed_request_is_not_extended() -> None:
    stage = proposed_stage()
    stage.step()
    stage.close(1)
    assert not stage.pipelining.step(stage.links)
    assert not stage.model.requests


def test_a_hit_goes_on_from_its_branch() -> None:
    stage = proposed_stage()
    stage.rest()
    known = {text for texts in stage.model.forwards for text in texts}
    stage.sent()
    stage.commit(1, 3, 104, num_drafted=3, num_ready=3)
    stage.model.forwards.clear()
    stage.rest()
    assert not known & {text for texts in stage.model.forwards for text in texts}
    assert not stage.proposed(), "nobody waits for it"


def test_a_miss_that_is_at_hand_here_is_answered_without_a_forward() -> None:
    stage = proposed_stage()
    stage.rest()
    stage.sent()
    stage.commit(1, 103, num_drafted=3, num_ready=0)
    stage.model.forwards.clear()
    stage.pipelining.step(stage.links)
    assert stage.sent()[0] == Proposed(
        handle=1, base_length=3, tokens=[104, 105, 106], confidence=[]
    )


def test_one_request_s_miss_makes_no_other_one_draft_anything_again() -> None:
    stage = Stage()
    stage.open(1, 1, 2)
    stage.open(2, 11, 12)
    stage.rest()
    stage.sent()
    seen = [text for texts in stage.model.forwards for text in texts]
    for round_ in range(5):
        stage.commit(1, 777 + round_, num_drafted=3, num_ready=0)  # nobody thought of that
        last = stage.session().requests[2].tokens[-1]
        stage.commit(2, *range(last + 1, last + 5), num_drafted=3, num_ready=3)
        stage.model.forwards.clear()
        stage.rest()
        seen += [text for texts in stage.model.forwards for text in texts]
        assert not [p for p in stage.proposed() if p[0] == 2]
    assert len(set(seen)) == len(seen)


def test_a_miss_goes_before_the_branches_of_others() -> None:
    stage = Stage()
    stage.open(1, 1, 2)
    stage.open(2, 11, 12)
    stage.step(K + 2)
    stage.sent()
    stage.commit(1, 777, num_drafted=3, num_ready=0)
    stage.model.forwards.clear()
    stage.step(K)
    assert [texts[0] for texts in stage.model.forwards] == [
        (1, 2, 777),
        (1, 2, 777, 778),
        (1, 2, 777, 778, 779),
    ]
    assert stage.proposed() == [(1, 3, [778, 779, 780])]


def test_rows_are_as_many_as_fit_into_the_pass() -> None:
    """4 rows take 10 ms, more of them 100; K + 1 forwards have 50 ms."""
    model = Played()
    model.cost = lambda num_rows: 0.01 if num_rows <= 4 else 0.1
    stage = proposed_stage(model, verify_s=0.05)
    stage.rest()
    sizes = [len(texts) for texts in stage.model.forwards]
    assert max(sizes) == 4
    assert sizes.count(4) > 5, "it learned that four cost no more"


def test_rows_are_tried_at_most_twice_as_many_as_before() -> None:
    stage = proposed_stage(verify_s=1.0)
    stage.rest()
    largest = 1
    for texts in stage.model.forwards:
        assert len(texts) <= 2 * largest
        largest = max(largest, 1 << (len(texts) - 1).bit_length())


@pytest.mark.parametrize("fanout", [1, 3])
def test_no_forward_has_more_of_a_request_than_its_verifier_wants(fanout: int) -> None:
    stage = Stage(fanouts=(fanout, 9))
    stage.model.cost = lambda num_rows: 0.01
    stage.open(1, 1, 2)
    stage.open(1, 501, 502, verifier=1)
    stage.rest()
    each = [sum(text[0] == 1 for text in texts) for texts in stage.model.forwards]
    assert max(each) == fanout


@pytest.mark.parametrize(
    "cost",
    [
        lambda n: 0.01 * n,
        lambda n: 0.005 + 0.001 * n,
        lambda n: 0.01 if n <= 8 else 0.03,
        lambda n: 0.01,
    ],
    ids=["linear", "sloped", "jump", "flat"],
)
@pytest.mark.parametrize("num_missing", [1, 2, 5])
def test_who_waits_is_delayed_by_the_slack_at_the_most(
    cost: Callable[[int], float], num_missing: int
) -> None:
    model = Played()
    model.cost = cost
    stage = Stage(model)
    handles = range(1, 7)
    for handle in handles:
        stage.open(handle, 1, 10 * handle)
    stage.rest()
    for round_ in range(4):
        for handle in handles:
            last = stage.session().requests[handle].tokens[-1]
            missed = handle <= num_missing
            tokens = [500 + 10 * round_] if missed else list(range(last + 1, last + 5))
            stage.commit(handle, *tokens, num_drafted=3, num_ready=0 if missed else 3, verify_s=0.5)
        stage.sent()
        stage.model.forwards.clear()
        while not stage.proposed():
            stage.step()
        assert len(stage.model.forwards) == K
        for texts in stage.model.forwards:
            assert len(texts) == num_missing or cost(len(texts)) <= SLACK * cost(num_missing)
        stage.rest()


def test_a_large_forward_s_time_says_nothing_of_what_a_small_one_may_cost() -> None:
    """Only 16 rows were measured so far: two that are awaited must not be made 16 for it."""
    stage = Stage()
    stage.pipelining.times.add(16, 0.04)
    for handle in (1, 2):
        stage.open(handle, 1, 10 * handle)
    stage.step()
    assert len(stage.model.forwards[0]) == 2


def test_a_verifier_in_lockstep_is_left_to_others() -> None:
    stage = Stage(fanouts=(0,))
    stage.open(1, 1, 2)
    assert not stage.session().is_pipelined and not stage.session().branchings
    assert not stage.pipelining.step(stage.links)


def test_each_verifier_gets_its_own() -> None:
    stage = Stage(fanouts=(FANOUT, FANOUT))
    stage.open(1, 1, 2)
    stage.open(1, 501, 502, verifier=1)
    stage.rest()
    for verifier, first in ((0, 3), (1, 503)):
        sent = stage.sent(verifier)
        assert isinstance(sent[0], Proposed) and sent[0].tokens[0] == first
        assert len({b.tokens[0] for b in sent if isinstance(b, Branch)}) == FANOUT


def test_many_branches_are_sent_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.drafter.pipelining._MESSAGE_BRANCHES", 2)
    model = Played()
    model.cost = lambda num_rows: 0.01
    stage = proposed_stage(model, verify_s=1.0)
    stage.rest()
    sizes = [len(m.branches) for _, m in stage.links[0][0].sent if isinstance(m, Branches)]
    assert max(sizes) == 2
