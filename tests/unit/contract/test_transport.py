"""Router and Dealer over a real socket: messages, bounded queues, peers that are gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import zmq

from paceline import transport
from paceline.codec import encode
from paceline.errors import ConfigError, PeerGoneError, ProtocolError
from paceline.messages import Close, Ping, Pong, Refuse
from paceline.transport import Dealer, Router, probe_bind, wait_any, wake_descriptor
from tests.unit.wire import LIMIT, dial, free_tcp_address, next_from, next_message, send_soon
from tests.unit.wire import wait_for as eventually

PING = Ping(incarnation=1, num_requests=0)
PONG = Pong(incarnation=1, welcomed=True)


def test_messages_go_both_ways_and_keep_their_order(address: str) -> None:
    with Router(address, 64, None) as router, dial(address, b"one") as dealer:
        send_soon(dealer, Close(handles=[1]))
        assert dealer.send(Close(handles=[2]))
        assert next_from(router) == (b"one", Close(handles=[1]))
        assert next_from(router) == (b"one", Close(handles=[2]))
        assert router.send(b"one", PONG)
        assert next_message(dealer) == PONG
        assert router.receive() is None and dealer.receive() is None


def test_each_peer_gets_its_own_messages(address: str) -> None:
    with Router(address, 64, None) as router, dial(address, b"a") as a, dial(address, b"b") as b:
        for dealer in (a, b):
            send_soon(dealer, PING)
        assert {next_from(router)[0], next_from(router)[0]} == {b"a", b"b"}
        router.send(b"b", Refuse(reason="for b"))
        router.send(b"a", Refuse(reason="for a"))
        assert next_message(a) == Refuse(reason="for a")
        assert next_message(b) == Refuse(reason="for b")


def test_a_dealer_queues_nothing_for_a_router_that_is_not_there(address: str) -> None:
    with dial(address) as dealer:
        assert dealer.send(PING) is False


def test_a_dealer_may_dial_before_the_router_is_there(address: str) -> None:
    with dial(address) as dealer, Router(address, 64, None) as router:
        send_soon(dealer, PING)
        assert next_from(router) == (b"d", PING)


def test_a_peer_that_does_not_read_costs_messages_and_never_time(address: str) -> None:
    """A big message, so that the kernel's buffers are full after a few."""
    big = Refuse(reason="x" * 4000)
    with Router(address, 4, None) as router, Dealer(address, 4, None, b"slow") as slow:
        send_soon(slow, PING)
        next_from(router)
        results = [router.send(b"slow", big) for _ in range(20_000)]
        assert results[0] is True
        assert results[-1] is False
        assert results.count(True) < 10_000
        # What was taken is not lost, and a peer that reads again is served again.
        assert next_message(slow) == big
        assert eventually(
            lambda: router.send(b"slow", PONG), lambda: (slow.receive(), slow.poll(5))
        )


def test_a_dealer_s_queue_is_bounded_as_well(address: str) -> None:
    big = Refuse(reason="x" * 4000)
    with Router(address, 4, None) as router, Dealer(address, 4, None, b"d") as dealer:
        send_soon(dealer, big)
        next_from(router)
        assert not all(dealer.send(big) for _ in range(20_000))


def test_sending_to_a_stranger_says_that_nobody_is_there(address: str) -> None:
    with Router(address, 64, None) as router, pytest.raises(PeerGoneError):
        router.send(b"nobody", PONG)


def test_sending_to_a_peer_that_has_gone_says_so(address: str) -> None:
    with Router(address, 64, None) as router:
        with dial(address) as dealer:
            send_soon(dealer, PING)
            next_from(router)
            assert router.send(b"d", PONG)

        def gone() -> bool:
            try:
                router.send(b"d", PONG)
            except PeerGoneError:
                return True
            return False

        assert eventually(gone, lambda: router.poll(5))


def test_a_peer_that_dials_again_is_heard_though_its_old_link_still_stands(address: str) -> None:
    """After a partition the verifier's side of the old link can look alive for many minutes."""
    with Router(address, 64, None) as router, dial(address) as old:
        send_soon(old, PING)
        assert next_from(router) == (b"d", PING)
        with dial(address) as new:
            for number in range(1, 40):
                new.send(Ping(incarnation=1, num_requests=number))
                router.poll(10)
                if router.receive() is not None:
                    return
        pytest.fail("nothing came over the new link")


@pytest.mark.parametrize("frames", [[b""], [b"junk"], [b"PL\x01\x09", b"\xc1"], [b"x"] * 5])
def test_what_does_not_decode_comes_as_its_error(address: str, frames: list[bytes]) -> None:
    with Router(address, 64, None) as router, dial(address) as dealer:
        send_soon(dealer, PING)
        next_from(router)
        dealer._socket.send_multipart(frames)
        identity, error = next_from(router)
        assert identity == b"d" and isinstance(error, ProtocolError)
        router._socket.send_multipart([b"d", *frames])
        dealer.poll(LIMIT * 1000)
        assert isinstance(dealer.receive(), ProtocolError)
        assert dealer.send(PING) and next_from(router) == (b"d", PING), "the link is broken"


def test_a_message_that_is_too_long_is_not_read(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is closed; another peer's is not."""
    monkeypatch.setattr(transport, "MAX_DRAFTER_MESSAGE_BYTES", 1 << 16)
    with Router(address, 64, None) as router, dial(address, b"good") as good:
        send_soon(good, PING)
        next_from(router)
        with dial(address, b"bad") as bad:
            send_soon(bad, PING)
            assert next_from(router) == (b"bad", PING)
            bad._socket.send_multipart([*encode(PING)[:1], bytes((1 << 16) + 1)])

            def is_closed() -> bool:
                assert router.receive() in (None, (b"bad", PING))
                try:
                    router.send(b"bad", PONG)
                except PeerGoneError:
                    return True
                return False

            assert eventually(is_closed, lambda: router.poll(5))
        assert good.send(PING) and next_from(router) == (b"good", PING)


@pytest.mark.parametrize("kind", ["tcp", "folder"])
def test_an_address_that_cannot_be_bound_is_one_sentence(socket_folder: Path, kind: str) -> None:
    if kind == "tcp":
        address, reason = free_tcp_address(), "address already in use"
    else:
        address, reason = f"ipc://{socket_folder}/missing/x", "no such file or directory"
    with Router(address if kind == "tcp" else f"ipc://{socket_folder}/y", 64, None):
        with pytest.raises(ConfigError) as caught:
            Router(address, 64, None)
    assert f"transport.control is {address}, which cannot be bound ({reason})" in str(caught.value)


def test_an_address_is_free_again_after_close() -> None:
    address = free_tcp_address()
    with Router(address, 64, None) as router:
        with pytest.raises(ConfigError):
            probe_bind(address)
        router.close()
        router.close()
    probe_bind(address)
    probe_bind(address)


def test_a_watched_descriptor_ends_a_poll(address: str) -> None:
    with Router(address, 64, None) as router, wake_descriptor() as wake:
        router.watch(wake)
        assert router.poll(0) is False
        os.eventfd_write(wake, 1)
        assert router.poll(LIMIT * 1000) is False, "no message is there"


def test_wait_any_returns_for_a_message_and_for_the_descriptor(address: str) -> None:
    """Each wait would otherwise last longer than this test may."""
    with (
        Router(address, 64, None) as router,
        dial(address) as dealer,
        wake_descriptor() as wake,
    ):
        send_soon(dealer, PING)
        wait_any([router, dealer], wake, 1000)
        assert router.receive() == (b"d", PING)
        os.eventfd_write(wake, 1)
        wait_any([router, dealer], wake, 1000)
        assert os.eventfd_read(wake) == 1


def test_no_socket_waits_for_its_queue_at_the_end(address: str) -> None:
    with Router(address, 64, None) as router, dial(address) as dealer:
        send_soon(dealer, PING)
        assert router._socket.getsockopt(zmq.LINGER) == dealer._socket.getsockopt(zmq.LINGER) == 0


def test_zeromq_s_own_heartbeat_is_off(address: str) -> None:
    """Its timer aborts the process (libzmq 4.3.5) if the peer went while its queue here was full.

    To see it: turn it on, let a dealer fill the queue of a router that does not read, and kill the
    dealer's process.
    """
    with Router(address, 4, None) as router, dial(address) as dealer:
        for end in (router, dealer):
            assert end._socket.getsockopt(zmq.HEARTBEAT_IVL) == 0
            assert end._socket.getsockopt(zmq.TCP_KEEPALIVE) == 1
