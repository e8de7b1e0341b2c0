"""One step: wait a moment for what is due, then run with what is there."""

from __future__ import annotations

import pytest

from paceline.verifier.pipeline import MAX_WAIT_IN_STEP, Step
from tests.unit.verifier.scripted import PATIENCE, due_rig

NOTHING: frozenset[str] = frozenset()


def test_a_proposal_that_is_here_is_used_without_waiting() -> None:
    rig = due_rig()
    rig.arrive(1, 4, 60, 61)
    assert rig.pipeline.step(["a"], prefill_ready=False) == Step(
        wait=False, held=NOTHING, drafts={"a": [60, 61]}
    )
    assert rig.control.waits == []


def test_a_proposal_that_comes_during_the_wait_ends_it() -> None:
    rig = due_rig()
    rig.control.on_wait = lambda: rig.arrive(1, 4, 60)
    assert rig.pipeline.step(["a"], prefill_ready=False).drafts == {"a": [60]}
    assert rig.control.waits == [pytest.approx(MAX_WAIT_IN_STEP)]


def test_a_step_returns_soon_though_the_patience_is_long() -> None:
    """New requests and aborts are read between the steps."""
    rig = due_rig()
    began = rig.control.now
    assert rig.pipeline.step(["a"], prefill_ready=False) == Step(
        wait=True, held=frozenset({"a"}), drafts={}
    )
    assert rig.control.now - began == pytest.approx(MAX_WAIT_IN_STEP)


def test_an_event_of_something_else_does_not_prolong_the_wait() -> None:
    rig = due_rig()
    began = rig.control.now

    def chatter() -> None:
        assert rig.control.now < began + MAX_WAIT_IN_STEP, "it goes on waiting"
        rig.control.now += MAX_WAIT_IN_STEP / 4
        rig.arrive(77, 4, 1)

    rig.control.on_wait = chatter
    assert rig.pipeline.step(["a"], prefill_ready=False).wait
    assert len(rig.control.waits) >= 4, "it gave up at the first event"


def test_steps_wait_until_the_patience_ends_and_then_run_undrafted() -> None:
    rig = due_rig()
    began = rig.control.now
    step = rig.pipeline.step(["a"], prefill_ready=False)
    while step.wait:
        assert rig.control.now < began + PATIENCE + MAX_WAIT_IN_STEP, "it waits for ever"
        step = rig.pipeline.step(["a"], prefill_ready=False)
    assert step == Step(wait=False, held=NOTHING, drafts={})
    assert rig.control.now == pytest.approx(began + PATIENCE)


def test_the_last_wait_is_no_longer_than_the_patience() -> None:
    rig = due_rig()
    rig.control.now += PATIENCE - MAX_WAIT_IN_STEP / 4
    assert not rig.pipeline.step(["a"], prefill_ready=False).wait
    assert rig.control.waits == [pytest.approx(MAX_WAIT_IN_STEP / 4)]


def test_with_a_prefill_to_run_it_holds_whose_proposal_is_due() -> None:
    rig = due_rig("a", "b")
    rig.arrive(2, 4, 60)
    assert rig.pipeline.step(["a", "b"], prefill_ready=True) == Step(
        wait=False, held=frozenset({"a"}), drafts={"b": [60]}
    )
    assert rig.control.waits == []


def test_only_who_may_run_gets_drafts() -> None:
    rig = due_rig("a", "b")
    rig.arrive(1, 4, 60)
    rig.arrive(2, 4, 61)
    assert rig.pipeline.step(["b", "stranger"], prefill_ready=False).drafts == {"b": [61]}


def test_a_proposal_is_offered_until_its_request_has_run() -> None:
    rig = due_rig()
    rig.arrive(1, 4, 60, 61)
    for _ in range(2):
        assert rig.pipeline.step(["a"], prefill_ready=False).drafts == {"a": [60, 61]}
    rig.commit(60, 70, num_drafted=2, num_accepted=1)
    assert rig.pipeline.step(["a"], prefill_ready=True).drafts == {}


def test_an_idle_engine_takes_in_what_happened() -> None:
    rig = due_rig()
    rig.arrive(1, 4, 60)
    assert rig.pipeline.step([], prefill_ready=False) == Step(wait=False, held=NOTHING, drafts={})
    assert rig.pipeline.step(["a"], prefill_ready=False).drafts == {"a": [60]}
