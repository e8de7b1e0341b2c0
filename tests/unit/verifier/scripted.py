"""A pipeline whose control is a script: what it sends is kept, what arrives is queued by hand.

The real one is a thread with a socket (see test_control_link.py); here only its four methods count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import cast

from paceline.messages import Message, Sampling
from paceline.scheduler.config import SpeculationConfig
from paceline.scheduler.events import DrafterJoined, Event, ProposalArrived
from paceline.verifier.control import ControlThread
from paceline.verifier.pipeline import Admission, Pipeline
from paceline.verifier.record_file import RecordFile

PATIENCE = 0.25
SAMPLING = Sampling(temperature=0.5, top_k=3, top_p=0.9)


class ScriptedControl:
    """Keeps what is sent, and lets time pass only in ``wait``."""

    def __init__(self) -> None:
        self.now = 10.0
        self.running = False
        self.sent: list[tuple[str, Message]] = []
        self.unflushed = 0
        self.events: deque[Event] = deque()
        self.waits: list[float] = []
        self.on_wait: Callable[[], None] = lambda: None
        """What happens while the pipeline waits."""

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False

    def send(self, drafter: str, message: Message) -> None:
        self.sent.append((drafter, message))
        self.unflushed += 1

    def flush(self) -> None:
        self.unflushed = 0

    def take_events(self) -> list[Event]:
        events = list(self.events)
        self.events.clear()
        return events

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        assert not self.unflushed, "a drafter waits for what this one still holds"
        self.on_wait()
        if not self.events:
            self.now += seconds


class Rig:
    """A pipeline on a script."""

    def __init__(self, patience: float = PATIENCE, record: RecordFile | None = None) -> None:
        self.control = ScriptedControl()
        self.pipeline = Pipeline(
            SpeculationConfig(patience_ms=patience * 1000),
            cast(ControlThread, self.control),
            clock=lambda: self.control.now,
            record=record,
        )

    def join(self, drafter: str = "d", max_requests: int = 8) -> None:
        self.control.events.append(
            DrafterJoined(
                drafter=drafter,
                method="ngram",
                max_requests=max_requests,
                num_speculative_tokens=4,
            )
        )
        self.pipeline.step([], prefill_ready=True)

    def admit(self, request_id: str = "a", draftable: bool = True) -> None:
        self.pipeline.admit(
            Admission(
                request_id=request_id,
                prompt_ids=[1, 2, 3],
                block_hashes=[b"hash"],
                num_computed_tokens=2,
                sampling=SAMPLING,
                draftable=draftable,
            )
        )

    def commit(
        self, *tokens: int, request_id: str = "a", num_drafted: int = 0, num_accepted: int = 0
    ) -> None:
        self.pipeline.commit(request_id, num_drafted, num_accepted, tokens)

    def arrive(self, handle: int, base_length: int, *tokens: int, drafter: str = "d") -> None:
        self.control.events.append(
            ProposalArrived(
                drafter=drafter,
                handle=handle,
                base_length=base_length,
                tokens=tokens,
                now=self.control.now,
            )
        )

    def sent(self) -> list[tuple[str, Message]]:
        """Returns what was sent since the last call; all of it must be on its way."""
        assert not self.control.unflushed, "it was not flushed"
        sent, self.control.sent = self.control.sent, []
        return sent


def due_rig(*request_ids: str) -> Rig:
    """Each request has its first token, and its drafter was told so."""
    rig = Rig()
    rig.join()
    for request_id in request_ids or ("a",):
        rig.admit(request_id)
        rig.commit(50, request_id=request_id)
    rig.pipeline.flush()
    rig.sent()
    return rig
