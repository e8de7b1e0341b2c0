"""The rows link's thread: who asks is served, who does not take its rows loses some."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from paceline.messages import Ping, Refuse, RowNeeds, Rows, RowsHello, RowsWelcome
from paceline.transport import MAX_ROWS_BYTES, Dealer, TransportConfig
from paceline.verifier import rows_link
from paceline.verifier.rows_export import Packed, Span
from paceline.verifier.rows_link import MAX_PASSES, Pass, RowsLink
from tests.unit.wire import LIMIT, next_message, send_soon, wait_for

ENGINE = 9
NAME = "d"


class Rig:
    """A link, and drafters that are sockets in the test's own thread."""

    def __init__(self, address: str, stack: ExitStack) -> None:
        self.address = address
        self._stack = stack
        self.link = RowsLink(address, 0, TransportConfig(heartbeat_ms=10), None)
        self.link.start()
        stack.callback(self.link.stop)

    def dial(self, name: str = NAME, high_water_mark: int = 1000) -> Dealer:
        identity = name.encode()
        dealer = Dealer(self.address, high_water_mark, None, identity, max_bytes=MAX_ROWS_BYTES)
        return self._stack.enter_context(dealer)

    def ask(self, dealer: Dealer, verifier: int = ENGINE, name: str = NAME) -> None:
        send_soon(dealer, RowsHello(drafter=name, incarnation=7, verifier=verifier))

    def post(self, position: int, num_values: int = 2, name: str = NAME) -> None:
        self.link.post(Pass(ENGINE, lambda: one_row(position, num_values, name)))


def one_row(position: int, num_values: int, name: str) -> Packed:
    return Packed(
        spans=[Span(1, name, 0, position, 0, 1, 0)],
        drafters={name: RowNeeds(final=True)},
        tensors={
            "final": torch.full((1, num_values), float(position)),
            "input_ids": torch.tensor([5]),
            "num_sampled": torch.tensor([0]),
            "bonus": torch.tensor([0]),
        },
        aux_layers=(),
    )


@pytest.fixture
def rig(socket_folder: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(f"ipc://{socket_folder}/rows", stack)


def positions(dealer: Dealer, count: int) -> list[int]:
    got = []
    for _ in range(count):
        message = next_message(dealer)
        assert isinstance(message, Rows)
        got.append(message.first_position)
    return got


def settled(dealer: Dealer, rig: Rig) -> None:
    """Returns when the link has handled everything that was posted."""
    done = threading.Event()

    def wait() -> Packed:
        done.set()
        return Packed([], {NAME: RowNeeds(final=True)}, one_row(0, 1, NAME).tensors, ())

    rig.link.post(Pass(ENGINE, wait))
    assert done.wait(LIMIT)


def test_rows_that_came_before_the_drafter_asked_are_not_lost(rig: Rig) -> None:
    dealer = rig.dial()
    rig.post(0)
    rig.post(1)
    settled(dealer, rig)
    rig.ask(dealer)
    assert next_message(dealer) == RowsWelcome(verifier=ENGINE, rank=0)
    rig.post(2)
    assert positions(dealer, 3) == [0, 1, 2]


def test_who_asks_before_the_first_pass_is_answered_with_it(rig: Rig) -> None:
    dealer = rig.dial()
    rig.ask(dealer)
    rig.post(4)
    assert next_message(dealer) == RowsWelcome(verifier=ENGINE, rank=0)
    message, tensors = dealer.receive_whole() or (None, [])
    if message is None:
        dealer.poll(LIMIT * 1000)
        received = dealer.receive_whole()
        assert received is not None
        message, tensors = received
    assert isinstance(message, Rows)
    assert message.first_position == 4
    assert torch.frombuffer(bytearray(tensors[0]), dtype=torch.float32).tolist() == [4.0, 4.0]


def test_a_drafter_of_another_engine_is_refused(rig: Rig) -> None:
    dealer = rig.dial()
    rig.ask(dealer, verifier=ENGINE + 1)
    rig.post(0)
    answer = next_message(dealer)
    assert isinstance(answer, Refuse)
    assert "belongs to another engine" in answer.reason


def test_what_waits_for_a_drafter_that_never_asks_is_let_go(rig: Rig) -> None:
    dealer = rig.dial()
    rig.post(0)
    rig.post(0, name="other")
    settled(dealer, rig)  # a pass in which the other one has no request
    rig.ask(dealer)
    assert isinstance(next_message(dealer), RowsWelcome)
    other = rig.dial("other")
    rig.ask(other, name="other")
    assert isinstance(next_message(other), RowsWelcome)
    rig.post(1, name="other")
    assert positions(other, 1) == [1]


def test_a_slow_drafter_loses_rows_and_nobody_waits(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_link, "MAX_BYTES", 10 << 20)
    dealer = rig.dial(high_water_mark=1)
    rig.ask(dealer)
    for position in range(40):
        rig.post(position, num_values=1 << 18)
    settled(dealer, rig)
    assert isinstance(next_message(dealer), RowsWelcome)
    assert rig.link.num_dropped > 0
    sent = rig.link.num_sent
    assert sent + rig.link.num_dropped == 40
    got = positions(dealer, sent)
    assert got == sorted(got)

    # What has gone out makes room.
    def one_more() -> bool:
        rig.post(99)
        settled(dealer, rig)
        return rig.link.num_sent > sent

    assert wait_for(one_more, lambda: dealer.poll(1))
    assert positions(dealer, 1) == [99]


def test_passes_that_cannot_be_sent_do_not_pile_up(rig: Rig) -> None:
    hold, stuck = threading.Event(), threading.Event()

    def wait() -> Packed:
        stuck.set()
        assert hold.wait(LIMIT)
        return one_row(0, 1, NAME)

    rig.link.post(Pass(ENGINE, wait))
    assert stuck.wait(LIMIT)
    for position in range(MAX_PASSES + 3):
        rig.post(position)
    assert rig.link.num_dropped == 3
    hold.set()


def test_a_copy_that_fails_ends_the_link_and_not_the_engine(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Packed:
        raise RuntimeError("the device is gone")

    rig.link.post(Pass(ENGINE, fail))
    pause = threading.Event()
    assert wait_for(lambda: "rows thread has died" in caplog.text, lambda: pause.wait(0.001))
    before = rig.link.num_dropped
    rig.post(1)
    assert rig.link.num_dropped == before + 1


def test_other_messages_are_counted(rig: Rig) -> None:
    dealer = rig.dial()
    send_soon(dealer, Ping(incarnation=7, num_requests=0))
    assert wait_for(lambda: rig.link.num_rejected == 1, lambda: dealer.poll(1))
