"""Who is here: joining, refusals, heartbeats, and every way to be lost."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.messages import Close, Ping, Pong, Refuse, Reopen, Welcome
from paceline.scheduler.events import DrafterJoined, DrafterLost, ReopenAsked
from paceline.transport import Router, TransportConfig
from paceline.verifier.control import ControlThread
from tests.unit.verifier.conftest import HEARTBEAT, TARGET, TIMEOUT, Control, proposal
from tests.unit.wire import hello, next_message, send_soon, wait_for


def test_a_drafter_is_welcomed_with_what_it_needs_to_know(control: Control) -> None:
    dealer = control.dial()
    send_soon(dealer, hello("x", method="ngram", num_speculative_tokens=9, max_requests=3))
    welcome = next_message(dealer)
    assert isinstance(welcome, Welcome)
    assert (welcome.incarnation, welcome.vocab_size, welcome.num_speculative_tokens) == (9, 1000, 4)
    assert control.event() == DrafterJoined(
        drafter="x", method="ngram", max_requests=3, num_speculative_tokens=4
    )


def test_a_drafter_that_does_not_fit_is_refused_and_not_announced(control: Control) -> None:
    dealer = control.dial()
    send_soon(dealer, hello(vocab_size=5))
    refusal = next_message(dealer)
    assert isinstance(refusal, Refuse) and "vocabulary of 5" in refusal.reason
    assert not control.is_welcome(dealer)
    control.no_event_but([], dealer)


def test_a_ping_is_answered_with_whether_the_drafter_is_known(control: Control) -> None:
    assert control.is_welcome(control.join())
    stranger = control.dial(b"stranger")
    send_soon(stranger, Ping(incarnation=1, num_requests=0))
    assert next_message(stranger) == Pong(incarnation=9, welcomed=False)


def test_two_drafters_are_here_at_a_time(control: Control) -> None:
    one, other = control.join("a", b"a"), control.join("b", b"b")
    control.thread.send("b", Close(handles=[2]))
    control.thread.send("a", Close(handles=[1]))
    control.thread.flush()
    assert next_message(one) == Close(handles=[1])
    assert next_message(other) == Close(handles=[2])


def test_a_new_incarnation_replaces_the_old_one(control: Control) -> None:
    """The old process may not know yet that it is dead; it is told on its next ping."""
    old = control.join("x", b"x/1")
    new = control.join("x", b"x/2", hello("x", incarnation=8))
    control.thread.send("x", Reopen(handles=[5]))
    control.thread.flush()
    assert next_message(new) == Reopen(handles=[5])
    old.send(proposal(1, 1, 2))
    assert not control.is_welcome(old)
    control.no_event_but([], new)


def test_hello_again_from_the_same_drafter_is_a_new_start(control: Control) -> None:
    dealer = control.join()
    dealer.send(hello())
    assert isinstance(next_message(dealer), Welcome)
    assert isinstance(control.event(), DrafterJoined)


def test_a_drafter_that_is_gone_is_lost_at_the_next_message_to_it(control: Control) -> None:
    other = control.join("other", b"other")
    control.join("x", b"x").close()
    events: list[object] = []

    def tell() -> None:
        control.thread.send("x", Reopen(handles=[1]))
        control.thread.flush()
        control.thread.wait(0.005)
        events.extend(control.thread.take_events())

    assert wait_for(lambda: bool(events), tell)
    assert events == [DrafterLost(drafter="x")]
    assert control.is_welcome(other)


def test_it_is_lost_soon_although_nothing_is_sent_to_it(control: Control) -> None:
    """Long before its silence would tell."""
    control.join().close()
    events: list[object] = []
    began = control.now

    def tick() -> None:
        control.now += HEARTBEAT
        control.thread.wait(0.005)
        events.extend(control.thread.take_events())

    assert wait_for(lambda: bool(events) or control.now > began + TIMEOUT / 2, tick)
    assert events == [DrafterLost(drafter="d")]


def test_a_silent_drafter_is_lost_after_the_timeout_and_not_before(control: Control) -> None:
    silent, talking = control.join("silent", b"s"), control.join("talking", b"t")
    control.now += TIMEOUT
    control.no_event_but([], talking)
    control.now += 0.1
    assert control.event() == DrafterLost(drafter="silent")
    control.no_event_but([], talking)
    assert not control.is_welcome(silent)


def test_any_message_is_a_sign_of_life(control: Control) -> None:
    dealer, watch = control.join(), control.join("watch", b"w")
    for _ in range(5):
        control.now += TIMEOUT * 0.9
        dealer.send(Reopen(handles=[3]))
        assert control.event() == ReopenAsked(drafter="d", handle=3)
        control.sync(watch)
    control.no_event_but([], dealer)


def test_a_lost_drafter_may_come_back(control: Control) -> None:
    dealer = control.join()
    control.now += 2 * TIMEOUT
    assert control.event() == DrafterLost(drafter="d")
    dealer.send(hello())
    assert isinstance(next_message(dealer), Welcome)
    assert isinstance(control.event(), DrafterJoined)
    assert control.is_welcome(dealer)


def test_closes_for_one_drafter_go_out_together_and_last(control: Control) -> None:
    dealer = control.join()
    for message in (Close(handles=[1]), Reopen(handles=[7]), Close(handles=[2, 3])):
        control.thread.send("d", message)
    control.thread.flush()
    assert next_message(dealer) == Reopen(handles=[7])
    assert next_message(dealer) == Close(handles=[1, 2, 3])


def test_a_message_for_nobody_is_dropped(control: Control) -> None:
    dealer = control.join()
    control.thread.send("nobody", Close(handles=[1]))
    control.thread.flush()
    control.no_event_but([], dealer)


def test_a_drafter_that_does_not_read_loses_messages_but_no_close(address: str) -> None:
    """Its queue is full of refusals that are too big for the kernel's buffers."""
    big = Refuse(reason="x" * 4000)
    with ExitStack() as stack:
        control = Control(address, stack, high_water_mark=4)
        dealer = control.join()
        for _ in range(5000):
            control.thread.send("d", big)
        control.thread.send("d", Close(handles=[42]))
        control.thread.flush()
        assert wait_for(lambda: control.thread.num_dropped > 0, lambda: control.thread.wait(0.005))
        received = next_message(dealer)
        while received == big:
            received = next_message(dealer)
        assert received == Close(handles=[42])


def test_an_event_wakes_who_waits_for_one(control: Control) -> None:
    """``wait`` would last longer than this test may."""
    woken = threading.Event()

    def wait() -> None:
        control.thread.wait(1000)
        woken.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    send_soon(control.dial(), hello())
    assert woken.wait(20)
    waiter.join()
    assert isinstance(control.event(), DrafterJoined)


def test_the_address_is_free_after_stop(address: str) -> None:
    thread = ControlThread(address, TransportConfig(), None, TARGET)
    thread.start()
    thread.stop()
    thread.stop()
    with Router(address, 1, None):
        pass


def test_stop_without_start_is_allowed(address: str) -> None:
    ControlThread(address, TransportConfig(), None, TARGET).stop()


def test_an_address_that_cannot_be_bound_is_said_by_start(socket_folder: Path) -> None:
    thread = ControlThread(f"ipc://{socket_folder}/no/folder", TransportConfig(), None, TARGET)
    with pytest.raises(ConfigError, match="cannot be bound"):
        thread.start()
    thread.stop()


def test_a_message_after_stop_is_dropped(address: str) -> None:
    """Requests are freed when an engine shuts down, in whichever order."""
    thread = ControlThread(address, TransportConfig(), None, TARGET)
    thread.start()
    thread.stop()
    thread.send("d", Close(handles=[1]))
    thread.flush()
