"""CURVE over TCP: the right keys get through, nothing else does."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import msgspec
import pytest

from paceline.messages import Ping, Pong
from paceline.transport import CurveKeys, Router
from tests.unit.wire import dial, free_tcp_address, next_from, next_message, send_soon

KEYS = CurveKeys.generate()
OTHER = CurveKeys.generate()


@pytest.fixture(scope="module")
def router() -> Iterator[Router]:
    with Router(free_tcp_address(), 64, KEYS) as router:
        yield router


def test_the_right_keys_speak_both_ways(router: Router) -> None:
    with dial(router.address, b"right", KEYS) as dealer:
        send_soon(dealer, Ping(incarnation=1, num_requests=0))
        assert next_from(router) == (b"right", Ping(incarnation=1, num_requests=0))
        router.send(b"right", Pong(incarnation=2, welcomed=True))
        assert next_message(dealer) == Pong(incarnation=2, welcomed=True)


@pytest.mark.parametrize(
    "keys",
    [
        None,
        OTHER,
        msgspec.structs.replace(
            KEYS, client_public=OTHER.client_public, client_secret=OTHER.client_secret
        ),
        msgspec.structs.replace(KEYS, server_public=OTHER.server_public),
    ],
    ids=["no keys", "another run's", "another drafter's", "another verifier's"],
)
def test_wrong_keys_get_nothing_through(router: Router, keys: CurveKeys | None) -> None:
    """The wrong peer tries all the time while a right one speaks twenty times."""
    wrong_ping = Ping(incarnation=666, num_requests=0)
    name = secrets.token_bytes(8)
    with dial(router.address, b"wrong", keys) as wrong, dial(router.address, name, KEYS) as right:
        for number in range(1, 21):
            wrong.send(wrong_ping)
            send_soon(right, Ping(incarnation=number, num_requests=0))
            wrong.poll(5)
            assert next_from(router) == (name, Ping(incarnation=number, num_requests=0))
        assert router.receive() is None
        assert wrong.receive() is None


def test_a_router_without_keys_takes_no_encrypted_peer() -> None:
    """Else a verifier without keys would look as if it was safe."""
    with (
        Router(free_tcp_address(), 64, None) as plain,
        dial(plain.address, b"ok") as right,
        dial(plain.address, b"curve", KEYS) as curve,
    ):
        for number in range(1, 6):
            assert curve.send(Ping(incarnation=666, num_requests=0)) is False
            send_soon(right, Ping(incarnation=number, num_requests=0))
            assert next_from(plain) == (b"ok", Ping(incarnation=number, num_requests=0))


def test_the_address_is_free_again_although_a_thread_checked_keys() -> None:
    address = free_tcp_address()
    for _ in range(2):
        with Router(address, 64, KEYS) as router, dial(address, b"d", KEYS) as dealer:
            send_soon(dealer, Ping(incarnation=1, num_requests=0))
            assert next_from(router)[0] == b"d"
