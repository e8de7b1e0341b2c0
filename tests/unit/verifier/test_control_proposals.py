"""What a drafter may send: right proposals become events, everything else counts as a strike."""

from __future__ import annotations

import pytest

from paceline.codec import encode
from paceline.errors import ProtocolError
from paceline.messages import (
    Close,
    Message,
    Open,
    Pong,
    Proposal,
    Proposed,
    Refuse,
    Reopen,
    Sampling,
    Welcome,
)
from paceline.scheduler.events import DrafterLost, ProposalArrived, ReopenAsked
from paceline.transport import Dealer
from paceline.verifier.control import MAX_STRIKES
from tests.unit.verifier.conftest import TARGET, Control, proposal
from tests.unit.wire import hello, next_message


def arrived(handle: int, base_length: int, *tokens: int, now: float = 1000.0) -> ProposalArrived:
    return ProposalArrived(
        drafter="d", handle=handle, base_length=base_length, tokens=tokens, now=now
    )


def send_junk(dealer: Dealer, times: int = 1) -> None:
    for _ in range(times):
        dealer._socket.send_multipart([b"PL\x01\x07", b"junk"])


def test_a_proposal_becomes_one_event_a_request_with_the_time_it_came(control: Control) -> None:
    dealer = control.join()
    control.now = 1000.5
    both = Proposal(
        proposals=[*proposal(1, 10, 5, 6).proposals, *proposal(2, 20).proposals],
    )
    dealer.send(both)
    assert control.event() == arrived(1, 10, 5, 6, now=1000.5)
    assert control.event() == arrived(2, 20, now=1000.5)


def test_the_longest_and_the_last_token_pass(control: Control) -> None:
    dealer = control.join()
    dealer.send(proposal(1, 10, 0, 1, 2, TARGET.vocab_size - 1))
    assert control.event() == arrived(1, 10, 0, 1, 2, TARGET.vocab_size - 1)
    assert control.thread.num_rejected == 0


@pytest.mark.parametrize(
    "tokens", [(1, 2, 3, 4, 5), (TARGET.vocab_size,), (1, (1 << 31) - 1)], ids=lambda t: f"{t}"
)
def test_a_proposal_that_the_target_could_not_verify_is_rejected_alone(
    control: Control, tokens: tuple[int, ...]
) -> None:
    dealer = control.join()
    dealer.send(
        Proposal(
            proposals=[
                *proposal(1, 10, *tokens).proposals,
                Proposed(handle=2, base_length=20, tokens=[7], confidence=[0.5]),
            ]
        )
    )
    assert control.event() == arrived(2, 20, 7)
    assert control.thread.num_rejected == 1


def test_the_limit_is_the_k_that_was_agreed_on(control: Control) -> None:
    dealer = control.join(greeting=hello(num_speculative_tokens=2))
    dealer.send(proposal(1, 10, 1, 2, 3))
    dealer.send(proposal(1, 10, 1, 2))
    assert control.event() == arrived(1, 10, 1, 2)
    assert control.thread.num_rejected == 1


@pytest.mark.parametrize(
    "message",
    [
        Close(handles=[1]),
        Pong(incarnation=1, welcomed=True),
        Welcome(
            protocol_version=1,
            incarnation=1,
            vocab_size=1,
            num_speculative_tokens=1,
            max_model_len=1,
            data_parallel_rank=0,
        ),
        Open(
            handle=1,
            prompt_ids=[1],
            output_ids=[],
            block_hashes=[],
            num_computed_tokens=0,
            sampling=Sampling(temperature=0.0, top_k=0, top_p=1.0),
        ),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_that_is_the_verifier_s_to_send_is_rejected(
    control: Control, message: Message
) -> None:
    dealer = control.join()
    dealer.send(message)
    control.no_event_but([], dealer)
    assert control.thread.num_rejected == 1


def test_a_few_bad_messages_are_forgiven(control: Control) -> None:
    dealer = control.join()
    send_junk(dealer, MAX_STRIKES - 1)
    dealer.send(proposal(1, 10, 5))
    assert control.event() == arrived(1, 10, 5)
    assert control.thread.num_rejected == MAX_STRIKES - 1


def test_the_tenth_cuts_it_off_and_nobody_else(control: Control) -> None:
    good, bad = control.join("d", b"good"), control.join("bad", b"bad")
    send_junk(bad, MAX_STRIKES)
    assert control.event() == DrafterLost(drafter="bad")
    bad.send(proposal(1, 10, 5))
    bad.send(hello("bad"))
    good.send(proposal(2, 20, 6))
    assert control.event() == arrived(2, 20, 6)
    control.no_event_but([], good)
    refusal = next_message(bad)
    assert isinstance(refusal, Refuse) and "bad was cut off" in refusal.reason
    assert control.thread.num_rejected == MAX_STRIKES


def test_all_kinds_of_bad_messages_count_together(control: Control) -> None:
    dealer = control.join()
    send_junk(dealer, MAX_STRIKES - 3)
    dealer.send(proposal(1, 10, TARGET.vocab_size))
    dealer.send(proposal(1, 10, 1, 2, 3, 4, 5))
    dealer.send(Close(handles=[1]))
    assert control.event() == DrafterLost(drafter="d")


def test_a_cut_off_name_may_come_back_as_a_new_process(control: Control) -> None:
    bad = control.join("d", b"d/1")
    send_junk(bad, MAX_STRIKES)
    assert control.event() == DrafterLost(drafter="d")
    control.join("d", b"d/2")


def test_a_stranger_s_junk_cuts_off_the_stranger_only(control: Control) -> None:
    dealer, stranger = control.join(), control.dial(b"stranger")
    # Two connections have no common order: what was sent may arrive behind the next sync.
    for _ in range(1000):
        stranger._socket.send_multipart([b"junk"])
        control.sync(dealer)
        if control.thread.num_rejected == MAX_STRIKES:
            break
    for _ in range(MAX_STRIKES):
        stranger._socket.send_multipart([b"junk"])
        control.sync(dealer)
    control.no_event_but([], dealer)
    assert control.thread.num_rejected == MAX_STRIKES


def test_a_stranger_s_proposal_is_dropped_without_a_strike(control: Control) -> None:
    """Its drafter may have been lost a moment ago."""
    dealer, stranger = control.join(), control.dial(b"stranger")
    while not stranger.send(proposal(1, 10, 5)):
        control.sync(dealer)
    stranger.send(proposal(1, 10, 5))
    assert not control.is_welcome(stranger)
    control.no_event_but([], dealer)
    assert control.thread.num_rejected == 0


def test_each_handle_to_reopen_is_an_event(control: Control) -> None:
    dealer = control.join()
    dealer.send(Reopen(handles=[3, 1]))
    assert control.event() == ReopenAsked(drafter="d", handle=3)
    assert control.event() == ReopenAsked(drafter="d", handle=1)


def test_a_message_full_of_bad_proposals_is_dropped_at_the_cut(control: Control) -> None:
    watch, dealer = control.join("watch", b"w"), control.join()
    one = proposal(1, 10, TARGET.vocab_size).proposals[0]
    dealer.send(Proposal(proposals=[one] * (5 * MAX_STRIKES)))
    assert control.event() == DrafterLost(drafter="d")
    control.sync(watch)
    assert control.thread.num_rejected == MAX_STRIKES


def test_a_drafter_of_another_version_is_told_so(control: Control) -> None:
    dealer, watch = control.dial(b"new"), control.join()
    head, body = encode(hello("new", protocol_versions=(2,)))
    while not control.thread.num_rejected and not dealer.poll(0):
        dealer._socket.send_multipart([head[:2] + b"\x02" + head[3:], body])
        control.sync(watch)
    assert dealer.poll(0), "it gets no answer at all"
    assert "protocol version 2" in str(next_message(dealer))


def test_who_floods_keeps_nobody_else_waiting(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is queued for a drafter goes out before the next message of another one is read."""
    control.join("flood", b"f")
    control.join()
    turns: list[str] = []
    router = control.thread._router

    def receive() -> tuple[bytes, Message | ProtocolError] | None:
        if turns.count("read") == 3:
            return None
        turns.append("read")
        control.thread.send("d", Close(handles=[turns.count("read")]))
        return b"f", Proposal(proposals=[])

    def send(peer: bytes, message: Message) -> bool:
        if isinstance(message, Close):
            turns.append("sent")
        return True

    control.thread.stop()  # the test is the thread from here on
    monkeypatch.setattr(router, "receive", receive)
    monkeypatch.setattr(router, "send", send)
    for _ in range(3):
        control.thread._receive_all()
        control.thread._send_all()
    assert turns == ["read", "sent"] * 3


def test_an_idle_engine_s_events_are_bounded(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.verifier.control._MAX_WAITING_EVENTS", 10)
    dealer = control.join()
    for _ in range(5):
        assert dealer.send(Reopen(handles=list(range(1, 9))))
        assert dealer.send(proposal(1, 10, 5))
    control.sync(dealer)
    assert 10 <= len(control.thread.take_events()) < 20
