"""What a drafter learns from the commits of one verifier."""

from __future__ import annotations

import math

import pytest

from paceline.drafter.outlook import UNDRAFTED_PRIOR, Outlook
from paceline.messages import Commit, Committed
from paceline.scheduler.averages import PRIOR_ACCEPTANCE


def commit(*commits: Committed, verify_s: float = 0.03) -> Commit:
    return Commit(commits=list(commits), verify_s=verify_s)


def committed(
    handle: int = 1, num_drafted: int = 0, num_accepted: int = 0, num_ready: int = 0
) -> Committed:
    return Committed(
        handle=handle,
        base_length=9,
        num_drafted=num_drafted,
        num_accepted=num_accepted,
        num_ready=num_ready,
        tokens=[1] * (num_accepted + 1),
    )


def test_nothing_is_known_at_first() -> None:
    outlook = Outlook()
    assert outlook.undrafted == UNDRAFTED_PRIOR
    assert outlook.acceptance.at(0) == PRIOR_ACCEPTANCE
    assert outlook.ends_at == math.inf


def test_acceptance_is_learned_from_drafted_passes_of_all_requests() -> None:
    outlook = Outlook()
    for _ in range(50):
        outlook.commit(1.0, commit(committed(1, 2, 2, 2), committed(2, 0, 0, 2)))
    assert outlook.acceptance.at(0) > 0.95


def test_whether_a_pass_behind_a_miss_waits_is_learned() -> None:
    outlook = Outlook()
    outlook.commit(1.0, commit(committed(num_ready=0)))
    outlook.commit(2.0, commit(committed(num_drafted=0, num_ready=0)))
    assert outlook.undrafted == 1.0
    for _ in range(30):
        outlook.commit(3.0, commit(committed(num_drafted=2, num_ready=0)))
    assert outlook.undrafted == pytest.approx(0.0, abs=0.05)


def test_an_undrafted_pass_behind_a_hit_says_nothing() -> None:
    outlook = Outlook()
    outlook.commit(1.0, commit(committed(num_ready=2)))
    outlook.commit(2.0, commit(committed(num_drafted=0, num_ready=2)))
    assert outlook.undrafted == UNDRAFTED_PRIOR


def test_a_closed_request_is_forgotten() -> None:
    outlook = Outlook()
    outlook.commit(1.0, commit(committed(1), committed(2)))
    outlook.forget(1)
    outlook.forget(77)
    outlook.commit(2.0, commit(committed(1, num_drafted=2)))
    assert outlook.undrafted == UNDRAFTED_PRIOR


def test_a_pass_ends_so_long_after_the_commit() -> None:
    outlook = Outlook()
    outlook.commit(5.0, commit(committed(num_ready=2), verify_s=0.25))
    assert outlook.ends_at == 5.25


def test_a_pass_that_waits_for_proposals_begins_with_them() -> None:
    outlook = Outlook()
    for _ in range(30):
        outlook.commit(5.0, commit(committed(num_drafted=2), verify_s=0.25))
    assert outlook.ends_at == math.inf, "it has not begun"
    outlook.proposed_at = 5.5
    assert outlook.ends_at == 5.75
    outlook.commit(6.0, commit(committed(num_drafted=2), verify_s=0.25))
    assert outlook.ends_at == math.inf, "proposals of the pass before say nothing of this one"
    outlook.commit(6.0, commit(committed(num_drafted=2, num_ready=2), verify_s=0.25))
    assert outlook.ends_at == 6.25, "nobody missed"


def test_one_that_does_not_wait_begins_with_the_commit() -> None:
    outlook = Outlook()
    for _ in range(30):
        outlook.commit(5.0, commit(committed(num_drafted=0), verify_s=0.25))
    outlook.proposed_at = 5.2
    assert outlook.ends_at == 5.25
