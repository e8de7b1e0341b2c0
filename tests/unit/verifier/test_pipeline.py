"""The life of a request in the pipeline: what the drafters are told of it."""

from __future__ import annotations

from paceline.messages import Close, Commit, Committed, Open
from paceline.scheduler.events import DrafterLost, ReopenAsked
from tests.unit.verifier.scripted import SAMPLING, Rig, due_rig


def opening(handle: int, *output: int) -> Open:
    return Open(
        handle=handle,
        prompt_ids=[1, 2, 3],
        output_ids=list(output),
        block_hashes=[b"hash"],
        num_computed_tokens=2,
        sampling=SAMPLING,
    )


def committed(
    handle: int, base_length: int, *tokens: int, num_drafted: int = 0, num_accepted: int = 0
) -> Committed:
    return Committed(
        handle=handle,
        base_length=base_length,
        num_drafted=num_drafted,
        num_accepted=num_accepted,
        tokens=list(tokens),
    )


def test_start_and_stop_are_the_control_s() -> None:
    rig = Rig()
    rig.pipeline.start()
    assert rig.control.running
    rig.pipeline.stop()
    rig.pipeline.stop()
    assert not rig.control.running


def test_an_admitted_request_is_opened_with_all_that_the_drafter_may_use() -> None:
    rig = Rig()
    rig.join()
    rig.admit()
    rig.pipeline.flush()
    assert rig.sent() == [("d", opening(1))]


def test_a_request_that_is_resumed_is_not_opened_twice() -> None:
    rig = Rig()
    rig.join()
    rig.admit()
    rig.commit(50)
    rig.admit()
    rig.pipeline.flush()
    assert [type(message) for _, message in rig.sent()] == [Open, Commit]
    assert rig.pipeline.length("a") == 4


def test_an_id_that_is_used_again_is_a_request_of_its_own() -> None:
    """Clients choose ids; a late proposal for the first must never reach the second."""
    rig = due_rig()
    rig.pipeline.close("a")
    rig.admit()
    rig.pipeline.flush()
    assert rig.sent() == [("d", Close(handles=[1])), ("d", opening(2))]
    rig.commit(50)
    rig.arrive(1, 4, 99)
    rig.arrive(2, 4, 60)
    assert rig.pipeline.step(["a"], prefill_ready=False).drafts == {"a": [60]}


def test_the_commits_of_a_pass_go_out_in_one_message_a_drafter() -> None:
    rig = Rig()
    for drafter in ("d", "e"):
        rig.join(drafter)
    for request_id in ("a", "b", "c"):
        rig.admit(request_id)
    rig.pipeline.flush()
    rig.sent()
    for request_id in ("a", "b", "c"):
        rig.commit(50, 51, request_id=request_id, num_drafted=2, num_accepted=1)
    assert rig.control.sent == []
    rig.pipeline.flush()
    assert rig.sent() == [
        (
            "d",
            Commit(
                commits=[
                    committed(1, 3, 50, 51, num_drafted=2, num_accepted=1),
                    committed(3, 3, 50, 51, num_drafted=2, num_accepted=1),
                ],
                sent_at=rig.control.now,
            ),
        ),
        (
            "e",
            Commit(
                commits=[committed(2, 3, 50, 51, num_drafted=2, num_accepted=1)],
                sent_at=rig.control.now,
            ),
        ),
    ]
    rig.pipeline.flush()
    assert rig.sent() == [], "a commit goes out once"


def test_a_pass_that_added_nothing_is_not_told() -> None:
    rig = due_rig()
    rig.commit()
    rig.commit(1, request_id="nobody")
    rig.pipeline.flush()
    assert rig.sent() == []
    assert rig.pipeline.length("a") == 4


def test_a_closed_request_is_closed_at_its_drafter_once() -> None:
    rig = due_rig()
    assert rig.pipeline.close("a") is not None
    assert rig.pipeline.close("a") is None
    rig.pipeline.flush()
    assert rig.sent() == [("d", Close(handles=[1]))]
    assert rig.pipeline.length("a") is None and rig.pipeline.report("a") is None


def test_an_undraftable_request_is_counted_and_never_sent() -> None:
    rig = Rig()
    rig.join()
    rig.admit(draftable=False)
    rig.commit(50)
    rig.commit(51)
    rig.pipeline.flush()
    step = rig.pipeline.step(["a"], prefill_ready=False)
    assert not step.wait and step.drafts == {}
    report = rig.pipeline.close("a", num_committed=1)
    rig.pipeline.flush()
    assert rig.sent() == []
    assert report is not None
    assert (report["method"], report["rounds"], report["drafted_rounds"]) == (None, 2, 0)


def test_a_drafter_that_lost_track_gets_all_of_it_with_the_next_step() -> None:
    rig = due_rig()
    rig.control.events.append(ReopenAsked(drafter="d", handle=1))
    rig.pipeline.step([], prefill_ready=True)
    assert rig.sent() == [("d", opening(1, 50))]


def test_a_handover_tells_the_new_drafter_all_of_it() -> None:
    rig = due_rig()
    rig.join("e")
    rig.control.events.append(DrafterLost(drafter="d"))
    rig.pipeline.step(["a"], prefill_ready=False)
    assert rig.sent() == [("e", opening(1, 50))]


def test_length_counts_prompt_and_output() -> None:
    rig = due_rig()
    assert rig.pipeline.length("a") == 4
    rig.commit(51, 52)
    assert rig.pipeline.length("a") == 6
    assert rig.pipeline.length("nobody") is None
