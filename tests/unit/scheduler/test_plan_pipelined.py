"""Pipelined, the target waits where waiting gives more than the pass that it puts off."""

from __future__ import annotations

import pytest

from paceline.scheduler.events import StepPlan
from paceline.scheduler.plan import OVERDUE, Prospect, plan_step
from paceline.scheduler.request import RequestState
from tests.unit.scheduler.story import PATIENCE, RUN, Story, due_story, impatient

NOW = 100.0


def due(handle: int = 1, since: float = NOW, drafter: str = "d") -> RequestState:
    request = RequestState(handle=handle, prompt_ids=(1, 2), output_ids=[3], drafter=drafter)
    request.due_since = since
    request.asked.append((3, since))
    return request


def prospect(
    answer_s: float | None = 0.01, accepted: float | None = 2.0, suspect: bool = False
) -> Prospect:
    return Prospect(suspect=suspect, answer_s=answer_s, accepted=accepted)


def plan(
    *requests: RequestState,
    now: float = NOW,
    tokens_per_s: float | None = 100.0,
    prefill_ready: bool = False,
    **prospects: Prospect,
) -> StepPlan:
    """100 tokens/s: a draft that is accepted is worth 10 ms."""
    return plan_step(
        now=now,
        decodes=requests,
        prospects=prospects or {"d": prospect()},
        prefill_ready=prefill_ready,
        patience=PATIENCE,
        pipelined=True,
        tokens_per_s=tokens_per_s,
    )


def until(seconds: float) -> StepPlan:
    return about(NOW + seconds)


def about(time: float) -> StepPlan:
    return StepPlan(wait_until=pytest.approx(time))  # type: ignore[arg-type]


def test_with_nothing_due_the_pass_runs() -> None:
    assert plan() == RUN
    request = due()
    request.due_since = None
    assert plan(request) == RUN


@pytest.mark.parametrize(
    ("answer_s", "accepted", "waits"),
    [(0.01, 2.0, True), (0.019, 2.0, True), (0.021, 2.0, False), (0.01, 0.9, False)],
)
def test_it_waits_while_the_drafts_are_worth_more_than_the_time(
    answer_s: float, accepted: float, waits: bool
) -> None:
    made = plan(due(), d=prospect(answer_s, accepted))
    assert made == (until(OVERDUE * answer_s) if waits else RUN)


def test_what_has_passed_of_the_answer_s_time_is_not_waited_for_again() -> None:
    slow = prospect(answer_s=0.03, accepted=2.0)
    assert plan(due(), d=slow) == RUN
    assert plan(due(since=NOW - 0.015), d=slow) == until(0.045)


def test_an_answer_that_takes_twice_as_long_as_usual_is_not_counted_on() -> None:
    assert plan(due(), now=NOW + 0.0199) == until(0.02)
    assert plan(due(), now=NOW + 0.0201) == RUN


@pytest.mark.parametrize("missing", ["answer_s", "accepted", "tokens_per_s"])
def test_unmeasured_it_waits_as_long_as_the_patience(missing: str) -> None:
    if missing == "answer_s":
        assert plan(due(), d=prospect(answer_s=None)) == until(PATIENCE)
    elif missing == "accepted":
        assert plan(due(), d=prospect(answer_s=9.0, accepted=None)) == until(PATIENCE)
    else:
        assert plan(due(), tokens_per_s=None, d=prospect(answer_s=9.0)) == until(PATIENCE)


def test_the_patience_is_the_most() -> None:
    assert plan(due(), tokens_per_s=0.1, d=prospect(answer_s=1.0)) == until(PATIENCE)
    late = NOW + PATIENCE
    assert plan(due(), now=late, tokens_per_s=0.1, d=prospect(answer_s=1.0)) == impatient(1)


def test_patience_runs_on_over_passes_without_an_answer() -> None:
    request = due(since=NOW)
    request.asked.appendleft((2, NOW - PATIENCE))
    assert plan(request) == impatient(1)


def test_a_prefill_runs_at_once_and_nobody_is_held() -> None:
    assert plan(due(), prefill_ready=True) == RUN
    assert plan(due(), prefill_ready=True, d=prospect(answer_s=None)) == RUN


def test_a_suspect_is_not_waited_for() -> None:
    assert plan(due(), d=prospect(suspect=True)) == RUN


def test_who_has_something_at_hand_is_not_waited_for() -> None:
    assert due_ready() == RUN


def due_ready() -> StepPlan:
    request = due()
    assert request.take_proposal(request.length - 1, (request.output_ids[-1], 8))
    return plan(request)


def test_the_gains_of_several_add_up_and_the_slowest_counts() -> None:
    two = [due(1), due(2, drafter="e")]
    slow = prospect(0.015, 1.0)
    assert plan(two[1], e=slow) == RUN, "for itself it is not worth the time"
    assert plan(*two, d=prospect(0.005, 1.0), e=slow) == until(OVERDUE * 0.005), (
        "one of them answers soon at any rate"
    )
    assert plan(two[1], due(3, drafter="e"), e=prospect(0.015, 1.0)) == until(OVERDUE * 0.015)


def test_a_suspect_adds_nothing() -> None:
    two = [due(1), due(2, drafter="e")]
    assert plan(*two, d=prospect(0.015, 1.0), e=prospect(0.015, 1.0)) == until(OVERDUE * 0.015)
    assert plan(*two, d=prospect(0.015, 1.0), e=prospect(0.015, 1.0, suspect=True)) == RUN


def learned(*, answer_s: float = 0.005, num_passes: int = 5) -> Story:
    """Passes of 30 ms, each with an answer in time, all drafts accepted."""
    story = due_story(mode="pipelined")
    for _ in range(num_passes):
        length = story.request().length
        while story.plan(1).wait_until is not None:
            story.now += answer_s
            story.propose(length, *range(length, length + 4))
        story.run_pass()
        story.commit(*range(length, length + 5), num_drafted=4, num_accepted=4)
    return story


def test_the_state_measures_what_the_rule_needs() -> None:
    story = learned()
    assert story.state.verify_s == pytest.approx(0.03)
    drafter = story.state.drafters["d"].prospect()
    assert drafter.answer_s == pytest.approx(0.005)
    assert drafter.accepted == pytest.approx(4.0)
    # 5 tokens in 35 ms: four drafts are worth 28 ms.
    assert story.plan(1) == about(story.now + 0.01)


def test_a_dead_drafter_costs_the_patience_once_though_each_wait_is_short() -> None:
    story = learned()
    waited = 0.0
    for _ in range(200):
        plan_now = story.plan(1)
        while plan_now.wait_until is not None:
            waited += plan_now.wait_until - story.now
            story.now = plan_now.wait_until
            plan_now = story.plan(1)
        story.run_pass()
        story.commit(9)
    assert 0 < waited <= PATIENCE
    assert story.state.drafters["d"].suspect


def test_a_drafter_that_never_finds_anything_is_soon_not_waited_for() -> None:
    story = due_story(mode="pipelined")
    for _ in range(6):
        length = story.request().length
        while story.plan(1).wait_until is not None:
            story.now += 0.005
            story.propose(length)
        story.run_pass()
        story.commit(9)
    assert story.plan(1) == RUN


def test_a_hit_runs_at_once() -> None:
    story = learned()
    length = story.request().length
    story.propose(length, 60, 61)
    story.branch(length, 1, 70, 80)
    story.run_pass()
    story.commit(70, num_drafted=2)
    assert story.plan(1) == RUN
    assert story.request().proposal == (80,)


def test_a_slow_drafter_does_not_spoil_the_wait_for_a_quick_one() -> None:
    two = [due(1), due(2, drafter="e")]
    assert plan(*two, d=prospect(0.002, 1.0), e=prospect(0.2, 1.0)) == until(OVERDUE * 0.002)


def test_an_overdue_answer_does_not_spoil_the_wait_for_another() -> None:
    two = [due(1), due(2, drafter="e")]
    made = plan(*two, now=NOW + 0.005, d=prospect(0.002, 1.0), e=prospect(0.012, 2.0))
    assert made == until(OVERDUE * 0.012)
