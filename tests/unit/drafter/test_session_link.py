"""Whether the verifier is there: welcomed, refused, silent, restarted."""

from __future__ import annotations

import pytest

from paceline.drafter.ngram import NgramDrafter
from paceline.drafter.session import make_hello
from paceline.errors import RefusedError
from paceline.messages import Message, Ping, Pong, Refuse
from tests.unit.drafter.talk import Talk, commit, opening, started, welcome
from tests.unit.wire import hello


@pytest.fixture
def talk() -> Talk:
    return started()


def test_before_the_welcome_nothing_is_opened() -> None:
    talk = Talk(welcomed=False)
    assert talk.take(opening(1, [1])) is None
    assert talk.take(commit(1, 1, 2)) is None
    assert talk.session.requests == {}


def test_a_refusal_ends_the_drafter_with_the_verifier_s_words() -> None:
    with pytest.raises(RefusedError, match=r"^no such tokenizer$"):
        Talk(welcomed=False).take(Refuse(reason="no such tokenizer"))


@pytest.mark.parametrize("message", [hello(), Ping(incarnation=1, num_requests=0)])
def test_a_message_out_of_turn_is_ignored(talk: Talk, message: Message) -> None:
    assert talk.take(message) is None
    assert talk.text() == [1, 2, 3, 50]


def test_it_says_hello_until_welcomed_and_ping_with_its_load_then() -> None:
    talk = Talk(welcomed=False)
    assert talk.session.greeting() == hello()
    talk.take(welcome())
    talk.take(opening(1, [1]))
    assert talk.session.greeting() == Ping(incarnation=7, num_requests=1)


def test_a_pong_of_the_same_verifier_changes_nothing(talk: Talk) -> None:
    assert talk.take(Pong(incarnation=9, welcomed=True)) is None
    assert talk.text() == [1, 2, 3, 50]


@pytest.mark.parametrize(
    "pong", [Pong(incarnation=10, welcomed=True), Pong(incarnation=9, welcomed=False)]
)
def test_a_verifier_that_does_not_know_it_is_greeted_anew(talk: Talk, pong: Pong) -> None:
    """Restarted, or it had taken this drafter for dead: its handles mean nothing any more."""
    request = talk.session.requests[1]
    assert talk.take(pong) == hello()
    assert talk.session.requests == {} and talk.session.welcome is None
    with pytest.raises(KeyError):
        talk.model.draft([request], 1, 1000)
    assert talk.take(Pong(incarnation=10, welcomed=True)) == hello(), "the first may be lost"


def test_a_second_welcome_begins_anew(talk: Talk) -> None:
    talk.take(welcome(10))
    assert talk.session.requests == {}
    assert talk.session.welcome == welcome(10)


def test_a_verifier_that_is_silent_for_too_long_is_greeted_anew(talk: Talk) -> None:
    talk.now += 10.0
    assert isinstance(talk.session.greeting(), Ping)
    talk.take(Pong(incarnation=9, welcomed=True))
    talk.now += 10.0
    assert isinstance(talk.session.greeting(), Ping), "a word of it counts from when it came"
    talk.now += 0.1
    assert talk.session.greeting() == hello()
    assert talk.session.requests == {}


def test_hello_says_what_the_model_is() -> None:
    model = NgramDrafter(2, 4)
    model.vocab_size, model.tokenizer_fingerprint = 123, "f"
    made = make_hello(
        drafter="x",
        incarnation=5,
        method="m",
        model=model,
        num_speculative_tokens=3,
        max_requests=2,
    )
    assert made == hello(
        "x",
        incarnation=5,
        method="m",
        vocab_size=123,
        tokenizer_fingerprint="f",
        num_speculative_tokens=3,
        max_requests=2,
    )
