"""The real drafter's loop in a thread of the tests, with a draft model that knows the answers."""

from __future__ import annotations

import contextlib
import random
import secrets
import threading
from collections.abc import Iterator, Sequence

from paceline.drafter.model import Draft, DraftModel, DraftRequest, Path
from paceline.drafter.service import DraftService
from paceline.drafter.session import make_hello
from paceline.scheduler.branching import Ranking
from paceline.transport import TransportConfig
from tests.fakes import Oracle


class OracleModel(DraftModel):
    """Its first choice is the target's with probability ``accuracy``, its second one otherwise."""

    def __init__(self, oracle: Oracle, accuracy: float) -> None:
        self._oracle = oracle
        self._accuracy = accuracy

    def open(self, request: DraftRequest) -> None:
        pass

    def close(self, request: DraftRequest) -> None:
        pass

    def is_ready(self, request: DraftRequest) -> bool:
        return True

    def prepare(self, request: DraftRequest) -> None:
        pass

    def draft(
        self, requests: Sequence[DraftRequest], num_tokens: int, vocab_size: int
    ) -> list[Draft]:
        raise AssertionError("pipelined, drafts come from ``extend``")

    def extend(
        self, paths: Sequence[Path], num_tokens: int, num_ranked: int, vocab_size: int
    ) -> list[list[Ranking]]:
        return [[self._rank([*p.request.tokens, *p.tokens], vocab_size)] for p in paths]

    def _rank(self, text: list[int], vocab_size: int) -> Ranking:
        right = (self._oracle(text, 1) or [0])[0]
        generator = random.Random(str(text))
        tokens = [right, (right + 1 + generator.randrange(vocab_size - 1)) % vocab_size]
        if generator.random() >= self._accuracy:
            tokens.reverse()
        return [(tokens[0], 0.7), (tokens[1], 0.3)]


@contextlib.contextmanager
def real_drafter(address: str, model: DraftModel, k: int) -> Iterator[None]:
    """Runs the service until the end of the block; it is welcomed when the block begins."""
    hello = make_hello(
        drafter="real",
        incarnation=secrets.randbits(62) + 1,
        method="oracle",
        model=model,
        num_speculative_tokens=k,
        max_requests=64,
    )
    service = DraftService(
        hello=hello, model=model, addresses=[address], transport=TransportConfig(), keys=None
    )
    thread = threading.Thread(target=service.run, name="real-drafter")
    thread.start()
    try:
        assert service.welcomed.wait(60), "the verifier did not welcome the drafter"
        yield
    finally:
        service.stop()
        thread.join()
