"""The drafter's loop over a real socket, with the verifier played by the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec
import pytest

from paceline.drafter.model import DraftRequest
from paceline.drafter.ngram import NgramDrafter
from paceline.drafter.service import DraftService
from paceline.errors import RefusedError
from paceline.messages import (
    Close,
    Hello,
    Message,
    Ping,
    Pong,
    Proposal,
    Proposed,
    Refuse,
    Reopen,
    Welcome,
)
from paceline.transport import Router, TransportConfig
from tests.unit.drafter.talk import commit, opening, welcome
from tests.unit.wire import LIMIT, hello, next_from

IDENTITY = b"d/7"
TRANSPORT = TransportConfig(heartbeat_ms=20, heartbeat_timeout_ms=60_000)


class SlowReader(NgramDrafter):
    """Needs three pieces of work for each request before it is ready."""

    def __init__(self) -> None:
        super().__init__(2, 4)
        self.missing: dict[DraftRequest, int] = {}

    def open(self, request: DraftRequest) -> None:
        super().open(request)
        self.missing[request] = 3

    def is_ready(self, request: DraftRequest) -> bool:
        return self.missing[request] == 0

    def prepare(self, request: DraftRequest) -> None:
        if self.missing.get(request):
            self.missing[request] -= 1
        super().prepare(request)


class Running:
    """A service in a thread, and the verifier's end of its link."""

    def __init__(self, router: Router, model: NgramDrafter) -> None:
        self.router = router
        self.error: BaseException | None = None
        self.service = DraftService(
            hello=hello(),
            model=model,
            addresses=[router.address],
            transport=TRANSPORT,
            keys=None,
        )
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.service.run()
        except RefusedError as error:
            self.error = error

    def send(self, message: Message) -> None:
        assert self.router.send(IDENTITY, message)

    def next(self, kind: type[Message]) -> Message:
        """Returns the next message of ``kind``; heartbeats may come in between."""
        while True:
            identity, message = next_from(self.router)
            assert identity == IDENTITY
            if isinstance(message, Proposal):
                message = msgspec.structs.replace(message, spent_s=0.0)  # by a real clock
            if isinstance(message, kind):
                return message
            assert isinstance(message, Ping | Hello), message

    def greet(self) -> None:
        assert self.next(Hello) == hello()
        self.send(welcome())
        assert self.service.welcomed.wait(LIMIT)


@pytest.fixture
def router(address: str) -> Iterator[Router]:
    with Router(address, 64, None) as router:
        yield router


@pytest.fixture(params=[NgramDrafter])
def running(router: Router, request: pytest.FixtureRequest) -> Iterator[Running]:
    model = NgramDrafter(2, 4) if request.param is NgramDrafter else SlowReader()
    running = Running(router, model)
    running.thread.start()
    yield running
    running.service.stop()
    running.thread.join(LIMIT)
    assert not running.thread.is_alive(), "it does not stop"


def proposed(base_length: int, *tokens: int, handle: int = 1) -> Proposal:
    return Proposal(
        proposals=[
            Proposed(handle=handle, base_length=base_length, tokens=list(tokens), confidence=[])
        ]
    )


def test_it_greets_and_then_says_that_it_is_alive(running: Running) -> None:
    running.greet()
    assert running.next(Ping) == Ping(incarnation=7, num_requests=0)


def test_each_commit_is_answered_with_a_proposal(running: Running) -> None:
    running.greet()
    running.send(opening(1, [1, 2, 3, 4, 1, 2]))
    running.send(commit(1, 6, 3))
    assert running.next(Proposal) == proposed(7, 4, 1, 2, 3)
    running.send(commit(1, 7, 4, 99))
    assert running.next(Proposal) == proposed(9), "nothing to propose is an answer, too"
    running.send(Close(handles=[1]))
    running.send(commit(1, 9, 1))
    assert running.next(Reopen) == Reopen(handles=[1])


def test_no_more_than_the_verifier_s_k_is_drafted(running: Running) -> None:
    running.next(Hello)
    running.send(
        Welcome(
            protocol_version=1,
            incarnation=9,
            vocab_size=1000,
            num_speculative_tokens=2,
            max_model_len=512,
            data_parallel_rank=0,
        )
    )
    running.send(opening(1, [1, 2, 3, 4, 1], [2]))
    assert running.next(Proposal) == proposed(6, 3, 4)


def test_a_verifier_that_was_restarted_is_greeted_again(running: Running) -> None:
    running.greet()
    running.send(opening(1, [1, 2], [3]))
    running.next(Proposal)
    running.send(Pong(incarnation=10, welcomed=False))
    running.next(Hello)
    running.send(welcome(10))
    running.send(commit(1, 3, 4))
    assert running.next(Reopen) == Reopen(handles=[1])


def test_a_refusal_ends_it(running: Running) -> None:
    running.next(Hello)
    running.send(Refuse(reason="not you"))
    running.thread.join(LIMIT)
    assert isinstance(running.error, RefusedError) and str(running.error) == "not you"
    assert not running.service.welcomed.is_set()


def test_garbage_from_the_verifier_is_survived(running: Running) -> None:
    running.greet()
    running.router._socket.send_multipart([IDENTITY, b"junk"])
    running.send(opening(1, [1, 2, 3, 1], [2]))
    assert running.next(Proposal) == proposed(5, 3, 1, 2, 3)


@pytest.mark.parametrize("running", [SlowReader], indirect=True)
def test_who_is_not_ready_says_so_at_once_and_drafts_from_the_next_commit_on(
    running: Running,
) -> None:
    running.greet()
    running.send(opening(1, [1, 2, 3, 1], [2]))
    assert running.next(Proposal) == proposed(5)
    # Heartbeats are sent between the pieces: two of them, and the work is done.
    for _ in range(8):
        running.next(Ping)
    running.send(commit(1, 5, 3))
    assert running.next(Proposal) == proposed(6, 1, 2, 3, 1)


def test_stop_before_run_ends_it_at_once(address: str) -> None:
    service = DraftService(
        hello=hello(),
        model=NgramDrafter(2, 4),
        addresses=[address],
        transport=TRANSPORT,
        keys=None,
    )
    service.stop()
    service.run()
