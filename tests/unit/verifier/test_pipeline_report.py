"""The final word on a request: every count of it."""

from __future__ import annotations

import pytest

from tests.unit.verifier.scripted import Rig, due_rig

NO_TIME = dict.fromkeys(
    (
        *("waited_s", "lookup_s", "schedule_s", "transport_s", "verify_s"),
        *("hit_exposed_s", "hit_verify_s"),
    ),
    0.0,
)


def test_a_report_holds_all_counts() -> None:
    rig = due_rig()
    assert rig.pipeline.step(["a"], prefill_ready=True).held == {"a"}
    rig.arrive(1, 4, 60, 61, 62)
    rig.arrive(1, 2, 9)
    rig.pipeline.step(["a"], prefill_ready=True)
    rig.commit(60, 61, 70, num_drafted=3, num_accepted=2)
    rig.commit(71)
    assert rig.pipeline.close("a", num_drafted=2, num_accepted=1, num_committed=2) == {
        "method": "ngram",
        "rounds": 3,
        "drafted_rounds": 2,
        "proposed": 5,
        "accepted": 3,
        "accepted_per_position": [2, 1, 0],
        "holds": 1,
        "stale": 1,
        "hits": None,
        "misses": None,
        **NO_TIME,
    }


def test_before_the_end_it_holds_the_counts_so_far() -> None:
    rig = due_rig()
    rig.commit(60, 70, num_drafted=1, num_accepted=1)
    before = rig.pipeline.report("a")
    assert before is not None and before["accepted"] == 1
    rig.commit(71, 72, num_drafted=1, num_accepted=1)
    assert before["accepted_per_position"] == [1], "what was reported changes"
    after = rig.pipeline.report("a")
    assert after is not None and after["accepted_per_position"] == [2]


def test_without_a_drafter_there_is_no_method_and_nothing_was_drafted() -> None:
    rig = Rig()
    rig.admit()
    rig.commit(50)
    assert rig.pipeline.close("a", num_committed=1) == {
        "method": None,
        "rounds": 1,
        "drafted_rounds": 0,
        "proposed": 0,
        "accepted": 0,
        "accepted_per_position": [],
        "holds": 0,
        "stale": 0,
        "hits": None,
        "misses": None,
        **NO_TIME,
    }


def test_the_wait_for_a_proposal_is_counted_for_those_who_could_have_run() -> None:
    rig = due_rig("a", "b")
    began = rig.control.now
    assert rig.pipeline.step(["a"], prefill_ready=False).wait
    rig.control.now += 0.02  # what the engine does between two steps
    rig.control.on_wait = lambda: rig.arrive(1, 4, 60)
    step = rig.pipeline.step(["a"], prefill_ready=False)
    assert step.drafts == {"a": [60]}
    waited = rig.control.now - began
    reports = [rig.pipeline.report(name) for name in ("a", "b")]
    assert [report and report["waited_s"] for report in reports] == [pytest.approx(waited), 0.0]
    rig.commit(60, 70, num_drafted=1, num_accepted=1)
    rig.arrive(1, 6, 61)
    rig.control.now += 1
    assert not rig.pipeline.step(["a"], prefill_ready=False).wait
    report = rig.pipeline.report("a")
    assert report is not None and report["waited_s"] == pytest.approx(waited), "a pass is no wait"


def test_an_abort_between_passes_adds_no_round() -> None:
    rig = due_rig()
    report = rig.pipeline.close("a")
    assert report is not None and report["rounds"] == 0


def test_an_unknown_request_has_no_report() -> None:
    assert Rig().pipeline.close("nobody") is None
    assert Rig().pipeline.report("nobody") is None
