"""A running control thread, and drafters that are real sockets in the test's own thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from paceline.messages import Hello, Message, Ping, Pong, Proposal, Proposed, Refuse, Welcome
from paceline.scheduler.events import DrafterJoined, Event
from paceline.transport import Dealer, TransportConfig
from paceline.verifier.control import ControlThread
from paceline.verifier.handshake import TargetIdentity
from tests.unit.wire import LIMIT, dial, hello, next_message, send_soon

TARGET = TargetIdentity(
    model="big",
    vocab_size=1000,
    tokenizer_fingerprint="t",
    num_speculative_tokens=4,
    max_model_len=4096,
    incarnation=9,
)
HEARTBEAT = 0.01
TIMEOUT = 10.0


class Control:
    """The thread, a clock that only the test moves, and the sockets that speak with it."""

    def __init__(self, address: str, stack: ExitStack, high_water_mark: int = 64) -> None:
        self.now = 1000.0
        self.address = address
        self.thread = ControlThread(
            address,
            TransportConfig(
                high_water_mark=high_water_mark,
                heartbeat_ms=int(HEARTBEAT * 1000),
                heartbeat_timeout_ms=int(TIMEOUT * 1000),
            ),
            None,
            TARGET,
            clock=lambda: self.now,
        )
        self.thread.start()
        stack.callback(self.thread.stop)
        self._stack = stack
        self._events: list[Event] = []
        self._num_syncs = 0

    def event(self) -> Event:
        """Returns the next event."""
        if not self._events:
            self.thread.wait(LIMIT)
            self._events = self.thread.take_events()
        assert self._events, "nothing happened"
        return self._events.pop(0)

    def no_event_but(self, expected: list[Event], dealer: Dealer) -> None:
        """Nothing else has happened: all that ``dealer`` sent before is dealt with."""
        self.sync(dealer)
        assert [*self._events, *self.thread.take_events()] == expected
        self._events = []

    def sync(self, dealer: Dealer) -> list[Message]:
        """Waits until all that ``dealer`` has sent is dealt with; returns what it got meanwhile.

        A Hello that is refused changes nothing, and names the one that it answers.
        """
        self._num_syncs += 1
        name = f"sync-{self._num_syncs}"
        send_soon(dealer, hello(name, vocab_size=1))
        received = []
        while not (isinstance(message := next_message(dealer), Refuse) and name in message.reason):
            received.append(message)
        return received

    def is_welcome(self, dealer: Dealer) -> bool:
        """Returns what a Ping of ``dealer`` is answered with."""
        self.sync(dealer)
        assert dealer.send(Ping(incarnation=7, num_requests=0))
        [*_, pong] = self.sync(dealer)
        assert isinstance(pong, Pong) and pong.incarnation == TARGET.incarnation, pong
        return pong.welcomed

    def dial(self, identity: bytes = b"d") -> Dealer:
        return self._stack.enter_context(dial(self.address, identity))

    def join(
        self, name: str = "d", identity: bytes = b"d", greeting: Hello | None = None
    ) -> Dealer:
        """Returns a drafter that was taken in."""
        dealer = self.dial(identity)
        greeting = greeting or hello(name)
        send_soon(dealer, greeting)
        assert isinstance(next_message(dealer), Welcome)
        assert self.event() == DrafterJoined(
            drafter=greeting.drafter,
            method=greeting.method,
            max_requests=greeting.max_requests,
            num_speculative_tokens=greeting.num_speculative_tokens,
        )
        return dealer


@pytest.fixture
def control(address: str) -> Iterator[Control]:
    with ExitStack() as stack:
        yield Control(address, stack)


def proposal(handle: int, base_length: int, *tokens: int) -> Proposal:
    return Proposal(
        proposals=[
            Proposed(handle=handle, base_length=base_length, tokens=list(tokens), confidence=[])
        ]
    )
