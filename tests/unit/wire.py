"""Bounded waits on the two ends of a link, and plain messages to send over it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from paceline.errors import ProtocolError
from paceline.messages import PROTOCOL_VERSION, Hello, Message
from paceline.transport import CurveKeys, Dealer, Router

LIMIT = 20.0
"""Seconds after which what was awaited counts as never coming; reached only by a failing test."""


def wait_for(condition: Callable[[], bool], poll: Callable[[], object]) -> bool:
    """Calls ``poll``, which blocks for a moment, until ``condition`` holds; False: it never did."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            return False
        poll()
    return True


def next_message(dealer: Dealer) -> Message:
    """Returns the next message, which must be a valid one."""
    message = dealer.receive()
    if message is None:
        dealer.poll(LIMIT * 1000)
        message = dealer.receive()
    assert message is not None, "nothing came"
    assert not isinstance(message, ProtocolError), message
    return message


def next_from(router: Router) -> tuple[bytes, Message | ProtocolError]:
    """Returns the next peer and message."""
    received = router.receive()
    if received is None:
        router.poll(LIMIT * 1000)
        received = router.receive()
    assert received is not None, "nothing came"
    return received


def send_soon(dealer: Dealer, message: Message) -> None:
    """Sends as soon as the link stands: a dealer queues nothing for a peer that is not there."""
    assert wait_for(lambda: dealer.send(message), lambda: dealer.poll(2))


def free_tcp_address() -> str:
    """Returns a loopback address that nobody has bound at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def hello(
    drafter: str = "d",
    *,
    incarnation: int = 7,
    method: str = "ngram",
    vocab_size: int = 0,
    tokenizer_fingerprint: str = "",
    num_speculative_tokens: int = 4,
    max_requests: int = 64,
    protocol_versions: tuple[int, ...] = (PROTOCOL_VERSION,),
) -> Hello:
    """Returns a drafter's Hello that any target takes."""
    return Hello(
        protocol_versions=list(protocol_versions),
        drafter=drafter,
        incarnation=incarnation,
        method=method,
        vocab_size=vocab_size,
        tokenizer_fingerprint=tokenizer_fingerprint,
        num_speculative_tokens=num_speculative_tokens,
        max_requests=max_requests,
    )


def dial(address: str, identity: bytes = b"d", keys: CurveKeys | None = None) -> Dealer:
    """Returns a drafter's end of the link."""
    return Dealer(address, 64, keys, identity)
