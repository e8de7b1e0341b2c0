"""A drafter's session with a clock that the test sets, and the messages that a verifier sends."""

from __future__ import annotations

from paceline.drafter.model import Draft
from paceline.drafter.ngram import NgramDrafter
from paceline.drafter.session import Session
from paceline.messages import PROTOCOL_VERSION, Commit, Committed, Message, Open, Sampling, Welcome
from tests.unit.wire import hello


def welcome(incarnation: int = 9) -> Welcome:
    return Welcome(
        protocol_version=PROTOCOL_VERSION,
        incarnation=incarnation,
        vocab_size=1000,
        num_speculative_tokens=4,
        max_model_len=512,
        data_parallel_rank=0,
    )


def opening(handle: int, prompt: list[int], output: list[int] | None = None) -> Open:
    return Open(
        handle=handle,
        prompt_ids=prompt,
        output_ids=output or [],
        block_hashes=[],
        num_computed_tokens=0,
        sampling=Sampling(temperature=0.0, top_k=0, top_p=1.0),
    )


def commit(handle: int, base_length: int, *tokens: int) -> Commit:
    return Commit(
        commits=[
            Committed(handle=handle, base_length=base_length, num_accepted=0, tokens=list(tokens))
        ]
    )


class Talk:
    """A session with a clock that the test sets."""

    def __init__(self, welcomed: bool = True) -> None:
        self.now = 50.0
        self.model = NgramDrafter(2, 4)
        self.session = Session(
            hello=hello(), model=self.model, clock=lambda: self.now, silence_limit=10.0
        )
        if welcomed:
            assert self.take(welcome()) is None

    def take(self, message: Message) -> Message | None:
        return self.session.take(message)

    def text(self, handle: int = 1) -> list[int]:
        return self.session.requests[handle].tokens

    def due(self) -> list[int]:
        return [handle for handle, _ in self.session.due()]

    def answer(self) -> None:
        """Proposes nothing for all that is due."""
        self.session.proposal([(handle, r, Draft([])) for handle, r in self.session.due()])


def started() -> Talk:
    """Request 1 has a prompt of three tokens and its first output token."""
    talk = Talk()
    assert talk.take(opening(1, [1, 2, 3])) is None
    assert talk.take(commit(1, 3, 50)) is None
    return talk
