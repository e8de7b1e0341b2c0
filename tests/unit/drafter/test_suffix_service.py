"""Suffix decoding in the drafter's loop, over a real socket; the verifier is played by the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from paceline.drafter.config import DrafterConfig
from paceline.drafter.service import DraftService
from paceline.drafter.suffix import CHUNK, SuffixDrafter
from paceline.messages import Close, Hello, Message, Ping, Proposal, Proposed
from paceline.transport import Router, TransportConfig
from tests.unit.drafter.talk import commit, opening, welcome
from tests.unit.wire import LIMIT, hello, next_from

IDENTITY = b"d/7"


class Verifier:
    """Greets the drafter at the other end, then speaks with it."""

    def __init__(self, router: Router) -> None:
        self._router = router
        assert self.next(Hello) == hello(method="suffix")
        self.send(welcome())

    def send(self, message: Message) -> None:
        assert self._router.send(IDENTITY, message)

    def next(self, kind: type[Message]) -> Message:
        while True:
            identity, message = next_from(self._router)
            assert identity == IDENTITY
            if isinstance(message, kind):
                return message
            assert isinstance(message, Ping | Hello), message

    def proposed(self) -> Proposed:
        message = self.next(Proposal)
        assert isinstance(message, Proposal)
        [proposed] = message.proposals
        return proposed


@pytest.fixture
def verifier(address: str) -> Iterator[Verifier]:
    config = DrafterConfig(name="d", method="suffix", suffix_share_across_requests=True)
    with Router(address, 64, None) as router:
        service = DraftService(
            hello=hello(method="suffix"),
            model=SuffixDrafter(config),
            addresses=[address],
            transport=TransportConfig(heartbeat_ms=20, heartbeat_timeout_ms=60_000),
            keys=None,
        )
        thread = threading.Thread(target=service.run)
        thread.start()
        try:
            yield Verifier(router)
        finally:
            service.stop()
            thread.join(LIMIT)
        assert not thread.is_alive(), "it does not stop"


def test_each_commit_is_answered_with_tokens_and_how_sure_they_are(verifier: Verifier) -> None:
    verifier.send(opening(1, [1, 2, 3, 4, 5, 6, 1, 2]))
    verifier.send(commit(1, 8, 3))
    assert verifier.proposed() == Proposed(
        handle=1, base_length=9, tokens=[4, 5, 6], confidence=[0.5, 1.0, 1.0]
    )
    verifier.send(commit(1, 9, 4, 99))
    assert verifier.proposed() == Proposed(handle=1, base_length=11, tokens=[], confidence=[])


def test_a_long_prompt_is_answered_at_once_and_drafted_from_when_it_is_taken_in(
    verifier: Verifier,
) -> None:
    prompt = [token % 997 for token in range(3 * CHUNK)]
    verifier.send(opening(1, prompt, [prompt[0]]))
    length = len(prompt) + 1
    while not (proposed := verifier.proposed()).tokens:
        assert proposed.base_length == length
        verifier.send(commit(1, length, (prompt[-1] + length - len(prompt) + 1) % 997))
        length += 1
        assert length < len(prompt) + 50, "it never becomes ready"


def test_the_next_request_drafts_from_one_that_has_ended(verifier: Verifier) -> None:
    verifier.send(opening(1, [1, 2, 3, 4, 5], [6]))
    assert verifier.proposed().tokens == []
    verifier.send(Close(handles=[1]))
    verifier.send(opening(2, [90, 1, 2, 3], [4]))
    assert verifier.proposed() == Proposed(
        handle=2, base_length=5, tokens=[5, 6], confidence=[0.5, 1.0]
    )
