"""Rows over real sockets, with the verifier and a rank of it played by the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import msgspec
import pytest
import torch

from paceline.drafter.model import Draft, DraftModel, DraftRequest, Path
from paceline.drafter.service import DraftService
from paceline.messages import (
    Hello,
    Message,
    Ping,
    Proposal,
    RowNeeds,
    Rows,
    RowsEndpoint,
    RowsHello,
    RowTensor,
    Welcome,
)
from paceline.scheduler.branching import Ranking
from paceline.transport import Router, TransportConfig
from tests.unit.drafter.talk import commit, opening, welcome
from tests.unit.wire import LIMIT, hello, next_from

IDENTITY = b"d/7"
NEEDS = RowNeeds(aux_layers=[1])


class Adding(DraftModel):
    """Drafts the sum of the rows that it has, as one token."""

    needs = NEEDS
    hidden_size = 2

    def open(self, request: DraftRequest) -> None:
        pass

    def close(self, request: DraftRequest) -> None:
        pass

    def is_ready(self, request: DraftRequest) -> bool:
        assert request.rows is not None
        return request.rows.end >= len(request.tokens) - 1

    def has_work(self, request: DraftRequest) -> bool:
        return False

    def prepare(self, request: DraftRequest) -> None:
        raise AssertionError("there is never anything to prepare")

    def draft(
        self, requests: Sequence[DraftRequest], num_tokens: int, vocab_size: int
    ) -> list[Draft]:
        return [Draft([self._sum(request)]) for request in requests]

    def _sum(self, request: DraftRequest) -> int:
        assert request.rows is not None
        return int(request.rows.get("aux", request.rows.begin, request.rows.end).sum())

    def extend(
        self, paths: Sequence[Path], num_tokens: int, num_ranked: int, vocab_size: int
    ) -> list[list[Ranking]]:
        raise AssertionError("no branches are wanted")


class Verifier:
    """Both ends of a verifier."""

    def __init__(self, control: Router, rank: Router) -> None:
        self.control, self.rank = control, rank

    def next(self, kind: type[Message]) -> Message:
        while True:
            _, message = next_from(self.control)
            if isinstance(message, kind):
                return message
            assert isinstance(message, Ping | Hello), message

    def next_tokens(self) -> list[int]:
        proposal = self.next(Proposal)
        assert isinstance(proposal, Proposal)
        return proposal.proposals[0].tokens

    def greet(self, incarnation: int = 9) -> None:
        greeting = self.next(Hello)
        assert isinstance(greeting, Hello) and greeting.needs == NEEDS
        answer = welcome(incarnation)
        assert isinstance(answer, Welcome)
        endpoint = RowsEndpoint(address=self.rank.address, rank=0)
        self.send(msgspec.structs.replace(answer, rows=[endpoint]))
        while True:
            _, asked = next_from(self.rank)
            assert isinstance(asked, RowsHello)
            if asked.verifier == incarnation:
                assert (asked.drafter, asked.incarnation) == ("d", 7)
                return

    def send(self, message: Message) -> None:
        assert self.control.send(IDENTITY, message)

    def send_rows(self, first: int, tokens: list[int], values: list[float]) -> None:
        tensor = torch.tensor(values, dtype=torch.float32).view(len(tokens), -1)
        message = Rows(
            handle=1,
            first_position=first,
            input_ids=tokens,
            sampled_ids=[],
            tensors=[RowTensor(name="aux", dtype="float32", shape=list(tensor.shape))],
        )
        assert self.rank.send(IDENTITY, message, [tensor.numpy().tobytes()])


@pytest.fixture
def verifier(address: str) -> Iterator[Verifier]:
    with ExitStack() as stack:
        control = stack.enter_context(Router(address, 64, None))
        rank = stack.enter_context(Router(f"{address}.rows0", 64, None))
        model = Adding()
        service = DraftService(
            hello=msgspec.structs.replace(hello(), needs=NEEDS),
            model=model,
            addresses=[address],
            transport=TransportConfig(heartbeat_ms=20, heartbeat_timeout_ms=60_000),
            keys=None,
        )
        thread = threading.Thread(target=service.run)
        thread.start()
        yield Verifier(control, rank)
        service.stop()
        thread.join(LIMIT)
        assert not thread.is_alive(), "it does not stop"


def test_a_proposal_waits_for_the_rows_of_its_text(verifier: Verifier) -> None:
    verifier.greet()
    verifier.send(opening(1, [5, 6, 7]))
    verifier.send_rows(0, [5, 6, 7], [1, 2, 3])
    verifier.send(commit(1, 3, 8))
    assert verifier.next_tokens() == [6]
    verifier.send(commit(1, 4, 9, 10))
    verifier.send_rows(3, [8, 9], [10, 20])
    assert verifier.next_tokens() == [36]


def test_rows_that_do_not_come_cost_one_proposal(verifier: Verifier) -> None:
    verifier.greet()
    verifier.send(opening(1, [5, 6, 7]))
    verifier.send(commit(1, 3, 8))
    assert verifier.next_tokens() == []
    # The prompt's rows were lost: it goes on with what has come behind them.
    verifier.send_rows(3, [8], [10])
    verifier.send(commit(1, 4, 9))
    assert verifier.next_tokens() == [10]
    verifier.send_rows(4, [9], [20])
    verifier.send(commit(1, 5, 10))
    assert verifier.next_tokens() == [30]


def test_a_new_incarnation_is_asked_for_rows_anew(verifier: Verifier) -> None:
    verifier.greet()
    verifier.send(opening(1, [5, 6, 7]))
    verifier.send_rows(0, [5, 6, 7], [1, 2, 3])
    verifier.send(commit(1, 3, 8))
    assert verifier.next_tokens() == [6]
    answer = welcome(11)
    endpoint = RowsEndpoint(address=verifier.rank.address, rank=0)
    verifier.send(msgspec.structs.replace(answer, rows=[endpoint]))
    while True:
        _, asked = next_from(verifier.rank)
        assert isinstance(asked, RowsHello)
        if asked.verifier == 11:
            break
    verifier.send(opening(1, [5, 6, 7]))
    verifier.send_rows(0, [5, 6, 7], [4, 5, 6])
    verifier.send(commit(1, 3, 8))
    assert verifier.next_tokens() == [15]
