"""What a drafter drafts behind for one request: outcomes, their weights, what a pass leaves."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from paceline.scheduler.averages import Acceptance
from paceline.scheduler.branching import (
    NEXT_TRUNK,
    Branching,
    Extension,
    Ranking,
    choose,
)

K = 3
HALF = Acceptance(prior=0.5)
"""Each draft is accepted with probability one half: P(0) = 1/2, P(1) = 1/4, …"""


def ranking(first: int, *others: int) -> Ranking:
    """The first choice has probability 0.6, each further one half of what is left."""
    chances = [0.6, 0.2, 0.1, 0.05]
    return list(zip((first, *others), chances, strict=False))


def chain(*firsts: int) -> list[Ranking]:
    """Rankings with these first choices; their second choice is 100 more."""
    return [ranking(first, first + 100) for first in firsts]


def extensions(
    branching: Branching, acceptance: Acceptance = HALF, undrafted: float = 0.0
) -> dict[tuple[int, ...], Extension]:
    """Returns what would be extended, by outcome; ``()`` is the trunk."""
    found = list(branching.extensions(acceptance, undrafted))
    by_outcome = {extension.branch.outcome: extension for extension in found}
    assert len(by_outcome) == len(found), "an outcome twice"
    return by_outcome


def take(branching: Branching, outcome: Iterable[int], rankings: list[Ranking]) -> None:
    branching.take(extensions(branching)[tuple(outcome)], rankings)
    branching.validate()


def propose(branching: Branching, *, unfinished: bool = False) -> None:
    proposal = branching.proposal(unfinished=unfinished)
    assert proposal is not None
    branching.proposed(len(proposal))
    branching.validate()


def in_flight(*drafts: int) -> Branching:
    """K drafts are proposed, and the position behind them is known."""
    branching = Branching(K, due=True)
    take(branching, (), chain(*(drafts or (1, 2, 3))))
    propose(branching)
    take(branching, (), chain(4))
    return branching


def test_the_trunk_goes_first_until_it_is_proposed() -> None:
    branching = Branching(K, due=True)
    assert branching.needs_proposal() and branching.proposal() is None
    take(branching, (), chain(1))
    found = extensions(branching)
    assert found[()].num_wanted == K - 1
    assert all(found[()].weight > e.weight for outcome, e in found.items() if outcome)
    take(branching, (), chain(2, 3))
    assert branching.proposal() == (1, 2, 3) and not branching.needs_proposal()


def test_no_more_is_taken_than_was_wanted() -> None:
    branching = Branching(K, due=True)
    take(branching, (), chain(1, 2, 3, 4, 5))
    assert branching.trunk.drafts == (1, 2, 3)


def test_a_trunk_that_ends_is_proposed_as_it_is() -> None:
    branching = Branching(K, due=True)
    take(branching, (), chain(1))
    take(branching, (), [])
    assert branching.proposal() == (1,)
    propose(branching)
    assert branching.num_in_flight == 1
    assert () not in extensions(branching)


def test_two_drafts_are_proposed_where_more_would_be_too_late() -> None:
    branching = Branching(K, due=True)
    take(branching, (), chain(1))
    assert branching.proposal(unfinished=True) is None, "an undrafted pass takes its place"
    take(branching, (), chain(2))
    assert branching.proposal() is None
    propose(branching, unfinished=True)
    assert branching.num_in_flight == 2
    assert extensions(branching)[()].num_wanted == 1


def test_with_nothing_to_draft_nothing_is_extended() -> None:
    branching = Branching(K, due=True)
    take(branching, (), [])
    assert branching.proposal() == ()
    propose(branching)
    assert extensions(branching) == {}


def test_behind_the_proposal_one_more_position_is_looked_at() -> None:
    branching = Branching(K, due=True)
    take(branching, (), chain(1, 2, 3))
    propose(branching)
    assert extensions(branching)[()].num_wanted == 1
    assert extensions(branching)[()].weight == pytest.approx(1 / 8), "all drafts are accepted"
    take(branching, (), chain(4))
    assert () not in extensions(branching)


def test_each_outcome_has_its_probability() -> None:
    found = extensions(in_flight())
    assert {outcome: e.weight for outcome, e in found.items()} == pytest.approx(
        {
            (101,): 0.5 * 0.2 / 0.4,
            (1, 102): 0.25 * 0.2 / 0.4,
            (1, 2, 103): 0.125 * 0.2 / 0.4,
            (1, 2, 3, 4): 0.125 * 0.6,
            (1, 2, 3, 104): 0.125 * 0.2,
        }
    )
    assert {e.num_wanted for e in found.values()} == {K}


def test_a_pass_that_may_be_undrafted_may_choose_any_token_at_once() -> None:
    found = extensions(in_flight(), undrafted=0.5)
    assert found[(101,)].weight == pytest.approx(0.5 * 0.25 + 0.5 * 0.2)
    assert found[(1, 102)].weight == pytest.approx(0.5 * 0.125)
    assert (1,) not in found, "the trunk lies behind that"


def test_a_certain_draft_leaves_nothing_for_others() -> None:
    branching = Branching(1, due=True)
    branching.take(extensions(branching)[()], [[(1, 1.0), (2, 0.0)]])
    propose(branching)
    assert extensions(branching)[(2,)].weight == 0.0


def test_a_branch_grows_to_k_and_then_one_further() -> None:
    branching = in_flight()
    take(branching, (101,), chain(20))
    assert extensions(branching)[(101,)].num_wanted == K - 1
    weight = extensions(branching)[(101,)].weight
    take(branching, (101,), chain(21, 22))
    last = extensions(branching)[(101,)]
    assert last.num_wanted == 1
    assert last.weight == pytest.approx(weight * NEXT_TRUNK)
    take(branching, (101,), chain(23))
    assert (101,) not in extensions(branching)


def test_a_branch_that_ends_is_left_alone() -> None:
    branching = in_flight()
    take(branching, (101,), [])
    assert (101,) not in extensions(branching)


def test_finished_branches_are_sent_once() -> None:
    branching = in_flight()
    take(branching, (101,), chain(20, 21, 22))
    take(branching, (1, 102), chain(30))
    [finished] = branching.unsent(unfinished=False)
    assert (finished.outcome, finished.drafts) == ((101,), (20, 21, 22))
    finished.num_sent = 3
    assert list(branching.unsent(unfinished=False)) == []
    [growing] = branching.unsent(unfinished=True)
    assert growing.outcome == (1, 102)
    growing.num_sent = 1
    assert list(branching.unsent(unfinished=True)) == []
    take(branching, (1, 102), chain(31, 32))
    assert [b.outcome for b in branching.unsent(unfinished=False)] == [(1, 102)]


def test_a_branch_that_ended_short_is_finished_and_an_empty_one_is_not_sent() -> None:
    branching = in_flight()
    take(branching, (101,), chain(20))
    take(branching, (101,), [])
    take(branching, (1, 102), [])
    assert [b.outcome for b in branching.unsent(unfinished=False)] == [(101,)]


def test_the_position_behind_k_is_not_sent() -> None:
    branching = in_flight()
    take(branching, (101,), chain(20, 21, 22))
    next(branching.unsent(unfinished=False)).num_sent = K
    take(branching, (101,), chain(23))
    assert list(branching.unsent(unfinished=True)) == []


def test_the_outcome_s_branch_becomes_the_trunk() -> None:
    branching = in_flight()
    take(branching, (1, 102), chain(30, 31, 32))
    take(branching, (1, 102), chain(33))
    take(branching, (101,), chain(20))
    branching.commit((1, 102), num_ready=3)
    branching.validate()
    assert branching.trunk.drafts == (30, 31, 32, 33)
    assert not branching.due and branching.num_in_flight == 3
    assert not branching.may_be_undrafted
    assert set(extensions(branching)) == {(130,), (30, 131), (30, 31, 132), (30, 31, 32, 33)} | {
        (30, 31, 32, 133)
    }, "nothing is left of the other outcomes"


def test_an_outcome_that_nobody_drafted_behind_leaves_nothing() -> None:
    branching = in_flight()
    take(branching, (101,), chain(20))
    branching.commit((1, 77), num_ready=0)
    branching.validate()
    assert branching.due and branching.may_be_undrafted
    assert branching.trunk.drafts == () and branching.needs_proposal()
    assert set(extensions(branching)) == {()}


def test_a_miss_for_the_verifier_may_be_at_hand_here() -> None:
    """The branch came too late there: it is proposed at once."""
    branching = in_flight()
    take(branching, (101,), chain(20, 21, 22))
    branching.commit((101,), num_ready=0)
    assert branching.due and branching.proposal() == (20, 21, 22)


def test_behind_an_undrafted_pass_that_chose_d1_the_rest_of_the_trunk_counts() -> None:
    branching = in_flight()
    take(branching, (1, 102), chain(30))
    take(branching, (101,), chain(20))
    branching.commit((1,), num_ready=2)
    branching.validate()
    assert branching.trunk.drafts == (2, 3, 4)
    assert branching.num_in_flight == 2
    assert extensions(branching)[(102,)].num_wanted == K - 1, "its branch goes on"


def test_what_lies_along_the_trunk_becomes_a_part_of_it() -> None:
    branching = in_flight()
    take(branching, (1, 2, 3, 4), chain(5, 6))
    branching.commit((1,), num_ready=0)
    branching.validate()
    assert branching.trunk.drafts == (2, 3, 4, 5, 6)
    assert branching.proposal() == (2, 3, 4)
    propose(branching)
    branching.validate()
    assert extensions(branching)[(2, 3, 4, 5)].num_wanted == K - 1, "6 is known already"
    assert [b.drafts for b in branching.unsent(unfinished=True)] == [(6,)]


def test_of_two_that_fit_the_one_with_more_behind_it_counts() -> None:
    branching = in_flight()
    take(branching, (1, 2, 3, 4), chain(5, 6))
    branching.commit((1, 2, 3, 4), num_ready=0)
    assert branching.trunk.drafts == (5, 6)
    other = in_flight()
    take(other, (101,), chain(20, 21, 22))
    other.commit((101, 20), num_ready=0)
    assert other.trunk.drafts == (21, 22), "two passes at a time"


def test_a_trunk_that_is_longer_than_what_the_verifier_has_begins_a_branch() -> None:
    branching = in_flight()
    take(branching, (101,), chain(20, 21, 22))
    take(branching, (101,), chain(23))
    branching.commit((101,), num_ready=1)
    branching.validate()
    assert [(b.outcome, b.drafts) for b in branching.unsent(unfinished=True)] == [
        ((20, 21), (22, 23))
    ]


def test_a_proposal_that_was_declined_leaves_an_undrafted_pass() -> None:
    branching = Branching(K, due=True)
    branching.proposed(0)
    assert not branching.due and branching.num_in_flight == 0
    take(branching, (), chain(1))
    found = extensions(branching, undrafted=0.5)
    assert {outcome: e.weight for outcome, e in found.items()} == pytest.approx(
        {(1,): 0.6, (101,): 0.2}
    )


def test_during_the_prefill_the_first_token_s_candidates_are_drafted_behind() -> None:
    branching = Branching(K, due=False)
    take(branching, (), chain(1))
    assert set(extensions(branching)) == {(1,), (101,)}
    take(branching, (1,), chain(2, 3, 4))
    branching.commit((1,), num_ready=3)
    assert branching.trunk.drafts == (2, 3, 4) and branching.num_in_flight == 3


def test_what_the_verifier_has_and_this_side_lost_is_drafted_anew() -> None:
    branching = Branching(K, due=True)
    branching.commit((9,), num_ready=2)
    branching.validate()
    assert extensions(branching)[()].num_wanted == 3
    assert not branching.needs_proposal()


def test_the_greatest_weights_of_all_requests_are_chosen() -> None:
    one, two = in_flight(), in_flight(7, 8, 9)
    candidates = [(0, e) for e in one.extensions(HALF)] + [
        (1, e) for e in two.extensions(Acceptance(prior=0.9))
    ]
    chosen = choose(candidates, 4, [9, 9])
    weights = [extension.weight for _, extension in chosen]
    assert weights == sorted((e.weight for _, e in candidates), reverse=True)[:4]
    assert {number for number, _ in chosen} == {0, 1}


def test_each_request_has_its_own_limit() -> None:
    one, two = in_flight(), in_flight(7, 8, 9)
    candidates = [(0, e) for e in one.extensions(HALF)] + [(1, e) for e in two.extensions(HALF)]
    chosen = choose(candidates, 99, [1, 3])
    assert sorted(number for number, _ in chosen) == [0, 1, 1, 1]
    assert choose([], 5, []) == []


def test_what_a_look_up_left_over_is_looked_up_anew_where_a_proposal_is_due() -> None:
    """With a longer text it finds better; what the verifier holds it must reckon with."""
    for num_ready, kept in ((0, 0), (2, 2)):
        branching = Branching(K, due=True, is_lookup=True)
        take(branching, (), chain(5, 6, 7))
        branching.commit([5], num_ready)
        assert len(branching.trunk.rankings) == kept
    model = Branching(K, due=True)
    take(model, (), chain(5, 6, 7))
    model.commit([5], 0)
    assert model.trunk.drafts == (6, 7)


def test_a_text_that_used_up_all_drafts_is_not_at_its_end() -> None:
    branching = Branching(K, due=True)
    take(branching, (), chain(5))
    branching.trunk.extend([])
    assert branching.trunk.ended
    branching.commit([5], 0)
    assert not branching.trunk.ended
    assert branching.needs_proposal()


def test_a_look_up_that_finds_fewer_drafts_than_k_is_not_made_longer() -> None:
    branching = Branching(K, due=True, is_lookup=True)
    take(branching, (), chain(5, 6))
    assert branching.proposal() == (5, 6), "what it thinks worth verifying"
    propose(branching)
    take(branching, (), chain(7))  # the candidates behind it
    assert branching.trunk.drafts == (5, 6, 7)
    take(branching, (5, 6, 7), chain(8))
    assert [b.outcome for b in branching.unsent(unfinished=False)] == [(5, 6, 7)]
    assert extensions(branching)[(5, 6, 7)].num_wanted == 1, "candidates, and no second draft"
    branching.commit([5, 6, 7], 1)
    branching.validate()
    assert [ranking[0][0] for ranking in branching.trunk.rankings] == [8]
