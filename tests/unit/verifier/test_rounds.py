"""Where the time between two passes goes: to waiting, to us, to vLLM; and to whom it is booked."""

from __future__ import annotations

import pytest

from paceline.scheduler.request import RequestState
from paceline.verifier.rounds import MAX_GAP, Rounds


def request(handle: int = 1, was_hit: bool = False) -> RequestState:
    return RequestState(handle=handle, prompt_ids=(1, 2), was_hit=was_hit)


def after_one_pass(*running: RequestState) -> Rounds:
    """A pass from 10.0 to 10.5."""
    rounds = Rounds()
    rounds.decide(running, 0.0)
    rounds.start(10.0)
    rounds.end(10.5)
    return rounds


def test_a_pass_s_time_is_booked_to_who_took_part() -> None:
    one, two, other = request(1), request(2), request(3)
    after_one_pass(one, two)
    assert [r.counters.verify_s for r in (one, two, other)] == [0.5, 0.5, 0.0]


def test_before_the_first_pass_there_is_no_gap() -> None:
    one = request()
    after_one_pass(one)
    assert one.counters.lookup_s == one.counters.schedule_s == 0.0


def test_a_gap_has_three_parts() -> None:
    one = request()
    rounds = after_one_pass(one)
    rounds.look_up(0.01)
    rounds.look_up(0.02)
    rounds.decide([one], waited=0.1)
    rounds.start(10.75)
    assert one.counters.waited_s == 0.1
    assert one.counters.lookup_s == pytest.approx(0.03)
    assert one.counters.schedule_s == pytest.approx(0.12)


def test_each_gap_is_counted_anew() -> None:
    one = request()
    rounds = after_one_pass(one)
    rounds.look_up(0.01)
    rounds.decide([one], waited=0.0)
    rounds.start(10.6)
    rounds.end(11.0)
    rounds.decide([one], waited=0.0)
    rounds.start(11.0)
    assert one.counters.lookup_s == pytest.approx(0.01)


def test_only_a_hit_s_exposed_time_counts_as_such() -> None:
    hit, miss = request(1, was_hit=True), request(2)
    rounds = after_one_pass()
    rounds.look_up(0.01)
    rounds.decide([hit, miss], waited=0.1)
    rounds.start(10.7)
    rounds.end(11.0)
    assert hit.counters.hit_exposed_s == pytest.approx(0.11)
    assert hit.counters.hit_verify_s == pytest.approx(0.3)
    assert miss.counters.hit_exposed_s == miss.counters.hit_verify_s == 0.0
    assert miss.counters.waited_s == 0.1, "whoever could have run has waited"


def test_idleness_is_no_gap() -> None:
    one = request()
    rounds = after_one_pass(one)
    rounds.look_up(0.01)
    rounds.decide([one], waited=0.0)
    rounds.start(10.5 + MAX_GAP)
    assert one.counters.lookup_s == one.counters.schedule_s == 0.0


def test_a_long_wait_is_a_gap_all_the_same() -> None:
    one = request()
    rounds = after_one_pass(one)
    rounds.decide([one], waited=2.0)
    rounds.start(12.6)
    assert one.counters.schedule_s == pytest.approx(0.1)


def test_a_pass_that_was_never_started_has_no_time() -> None:
    one = request()
    rounds = Rounds()
    rounds.decide([one], 0.0)
    rounds.end(10.0)
    assert one.counters.verify_s == 0.0


def test_who_took_part_in_the_last_pass_is_not_booked_the_next_one() -> None:
    one, two = request(1), request(2)
    rounds = after_one_pass(one)
    rounds.decide([two], 0.0)
    rounds.start(10.6)
    rounds.end(11.6)
    assert one.counters.verify_s == 0.5 and two.counters.verify_s == 1.0
