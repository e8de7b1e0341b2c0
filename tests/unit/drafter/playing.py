"""Scripted draft models, and a drafter with a clock that only their forwards move.

A script gives the ranking behind a text. A forward with so many rows costs what the test says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.drafter.model import Draft, DraftModel, DraftRequest, Path
from paceline.drafter.pipelining import Pipelining
from paceline.drafter.session import Session
from paceline.messages import (
    PROTOCOL_VERSION,
    Branch,
    Branches,
    Close,
    Commit,
    Committed,
    Message,
    Proposal,
    Proposed,
    Welcome,
)
from paceline.scheduler.branching import Ranking
from paceline.trace import DISABLED
from tests.unit.drafter.talk import opening
from tests.unit.wire import hello

K = 3
FANOUT = 4

Script = Callable[[list[int]], Ranking]
"""From a text to what may follow it, the likeliest first."""


def counting(text: list[int]) -> Ranking:
    """Each token is one more than the last; then come 100, 200 and 300 more."""
    chances = (0.6, 0.2, 0.1, 0.05)
    return [(text[-1] + 1 + 100 * place, chance) for place, chance in enumerate(chances)]


class Played(DraftModel):
    """Ranks by a script, a token a forward."""

    vocab_size = 0

    def __init__(self, script: Script = counting) -> None:
        self.script = script
        self.requests: set[DraftRequest] = set()
        self.unready: set[DraftRequest] = set()
        self.forwards: list[list[tuple[int, ...]]] = []
        """The texts behind which each forward ranked."""
        self.cost: Callable[[int], float] = lambda num_rows: 0.01 * num_rows
        self.spend: Callable[[float], None] = lambda seconds: None

    def open(self, request: DraftRequest) -> None:
        self.requests.add(request)

    def close(self, request: DraftRequest) -> None:
        self.requests.discard(request)
        self.unready.discard(request)

    def is_ready(self, request: DraftRequest) -> bool:
        return request not in self.unready

    def prepare(self, request: DraftRequest) -> None:
        self.unready.discard(request)

    def draft(
        self, requests: Sequence[DraftRequest], num_tokens: int, vocab_size: int
    ) -> list[Draft]:
        raise AssertionError("pipelined, everything is extended")

    def extend(
        self, paths: Sequence[Path], num_tokens: int, num_ranked: int, vocab_size: int
    ) -> list[list[Ranking]]:
        assert all(path.request in self.requests - self.unready for path in paths)
        texts = [(*path.request.tokens, *path.tokens) for path in paths]
        places = {(id(path.request), path.tokens) for path in paths}
        assert len(places) == len(paths), "a path twice in one forward"
        self.forwards.append(texts)
        self.spend(self.cost(len(paths)))
        return [self.rankings(list(text), num_tokens, num_ranked, vocab_size) for text in texts]

    def rankings(
        self, text: list[int], num_tokens: int, num_ranked: int, vocab_size: int
    ) -> list[Ranking]:
        ranking = [(token, p) for token, p in self.script(text)[:num_ranked] if token < vocab_size]
        return [ranking] if ranking else []


class PlayedLookup(Played):
    """Ranks by a script, all tokens at once."""

    is_stepwise = False

    def rankings(
        self, text: list[int], num_tokens: int, num_ranked: int, vocab_size: int
    ) -> list[Ranking]:
        found: list[Ranking] = []
        while len(found) < num_tokens:
            next_ones = super().rankings(text, 1, num_ranked, vocab_size)
            if not next_ones:
                break
            found += next_ones
            text = [*text, next_ones[0][0][0]]
        return found


class Kept:
    """A link that keeps what is sent, with the time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.sent: list[tuple[float, Message]] = []

    def send(self, message: Message) -> bool:
        self.sent.append((self._clock(), message))
        return True


def welcome(max_branches: int = FANOUT, k: int = K, incarnation: int = 9) -> Welcome:
    return Welcome(
        protocol_version=PROTOCOL_VERSION,
        incarnation=incarnation,
        vocab_size=1000,
        num_speculative_tokens=k,
        max_model_len=512,
        data_parallel_rank=0,
        max_branches=max_branches,
    )


class Stage:
    """A drafter of one verifier, or of more."""

    def __init__(self, model: Played | None = None, fanouts: Sequence[int] = (FANOUT,)) -> None:
        self.now = 50.0
        self.model = model or Played()
        self.model.spend = self._spend
        self.pipelining = Pipelining(self.model, DISABLED, clock=lambda: self.now)
        self.links: list[tuple[Kept, Session]] = []
        for fanout in fanouts:
            session = Session(
                hello=hello(), model=self.model, clock=lambda: self.now, silence_limit=1e9
            )
            session.take(welcome(fanout))
            self.links.append((Kept(lambda: self.now), session))

    def _spend(self, seconds: float) -> None:
        self.now += seconds

    def session(self, verifier: int = 0) -> Session:
        return self.links[verifier][1]

    def open(self, handle: int, *tokens: int, due: bool = True, verifier: int = 0) -> None:
        """The last token is output, if the request is due."""
        split = len(tokens) - due
        self.session(verifier).take(opening(handle, list(tokens[:split]), list(tokens[split:])))

    def commit(
        self,
        handle: int,
        *tokens: int,
        num_drafted: int = 0,
        num_ready: int = 0,
        verify_s: float = 0.0,
        verifier: int = 0,
    ) -> None:
        """The outcome of a pass, behind what is known of the request."""
        committed = Committed(
            handle=handle,
            base_length=len(self.session(verifier).requests[handle].tokens),
            num_drafted=num_drafted,
            num_accepted=len(tokens) - 1 if num_drafted else 0,
            num_ready=num_ready,
            tokens=list(tokens),
        )
        answer = self.session(verifier).take(Commit(commits=[committed], verify_s=verify_s))
        assert answer is None

    def close(self, handle: int, verifier: int = 0) -> None:
        self.session(verifier).take(Close(handles=[handle]))

    def step(self, num_steps: int = 1) -> None:
        for _ in range(num_steps):
            assert self.pipelining.step(self.links), "there was nothing to extend"
            self.validate()

    def rest(self, limit: int = 1000) -> None:
        """Steps until there is nothing left to extend."""
        for _ in range(limit):
            if not self.pipelining.step(self.links):
                return
            self.validate()
        raise AssertionError("it never comes to rest")

    def validate(self) -> None:
        for _, session in self.links:
            assert session.branchings.keys() <= session.requests.keys()
            for branching in session.branchings.values():
                branching.validate()

    def sent(self, verifier: int = 0) -> list[Proposed | Branch]:
        """Returns what was sent since the last call, one by one."""
        link, _ = self.links[verifier]
        flat: list[Proposed | Branch] = []
        for _, message in link.sent:
            match message:
                case Proposal():
                    flat += message.proposals
                case Branches():
                    flat += message.branches
                case _:
                    raise AssertionError(message)
        link.sent.clear()
        return flat

    def proposed(self, verifier: int = 0) -> list[tuple[int, int, list[int]]]:
        """Handle, length and drafts of the proposals sent since the last call of ``sent``."""
        found = [p for p in self.sent(verifier) if isinstance(p, Proposed)]
        return [(p.handle, p.base_length, p.tokens) for p in found]
