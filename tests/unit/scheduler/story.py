"""A pipeline's state with short names for what happens to it, and a clock that a test sets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from paceline.scheduler.config import SpeculationConfig
from paceline.scheduler.events import (
    BranchArrived,
    Command,
    DrafterJoined,
    DrafterLost,
    Event,
    PassEnded,
    PassStarted,
    ProposalArrived,
    ReopenAsked,
    RequestAdmitted,
    RequestClosed,
    SendClose,
    SendCommit,
    SendOpen,
    StepAsked,
    StepPlan,
    TokensCommitted,
)
from paceline.scheduler.request import RequestState
from paceline.scheduler.state import PipelineState

PATIENCE = 0.25
PROMPT = (1, 2, 3)


class Story:
    """Every call checks ``validate`` afterwards."""

    def __init__(
        self, patience: float = PATIENCE, mode: Literal["lockstep", "pipelined"] = "lockstep"
    ) -> None:
        self.state = PipelineState(SpeculationConfig(mode=mode, patience_ms=patience * 1000))
        self.now = 100.0

    def request(self, handle: int = 1) -> RequestState:
        return self.state.requests[handle]

    def join(self, drafter: str = "d", max_requests: int = 8, k: int = 4) -> list[Command]:
        return self._handle(
            DrafterJoined(
                drafter=drafter,
                method=f"method-{drafter}",
                max_requests=max_requests,
                num_speculative_tokens=k,
            )
        )

    def lose(self, drafter: str = "d") -> list[Command]:
        return self._handle(DrafterLost(drafter=drafter))

    def admit(
        self, handle: int = 1, prompt: Iterable[int] = PROMPT, draftable: bool = True
    ) -> list[Command]:
        return self._handle(
            RequestAdmitted(handle=handle, prompt_ids=tuple(prompt), draftable=draftable)
        )

    def commit(
        self, *tokens: int, handle: int = 1, num_drafted: int = 0, num_accepted: int = 0
    ) -> list[Command]:
        return self._handle(
            TokensCommitted(
                handle=handle,
                num_drafted=num_drafted,
                num_accepted=num_accepted,
                tokens=tokens,
                now=self.now,
            )
        )

    def propose(
        self, base_length: int, *tokens: int, handle: int = 1, drafter: str = "d"
    ) -> list[Command]:
        return self._handle(
            ProposalArrived(
                drafter=drafter,
                handle=handle,
                base_length=base_length,
                tokens=tokens,
                now=self.now,
            )
        )

    def branch(
        self, base_length: int, num_outcome: int, *tokens: int, handle: int = 1, drafter: str = "d"
    ) -> list[Command]:
        return self._handle(
            BranchArrived(
                drafter=drafter,
                handle=handle,
                base_length=base_length,
                num_outcome=num_outcome,
                tokens=tokens,
            )
        )

    def run_pass(self, seconds: float = 0.03) -> None:
        """The target runs for so long; the commits follow."""
        assert self._handle(PassStarted(now=self.now)) == []
        self.now += seconds
        assert self._handle(PassEnded(now=self.now)) == []

    def reopen(self, handle: int = 1, drafter: str = "d") -> list[Command]:
        return self._handle(ReopenAsked(drafter=drafter, handle=handle))

    def close(
        self, handle: int = 1, num_drafted: int = 0, num_accepted: int = 0, num_committed: int = 0
    ) -> list[Command]:
        return self._handle(
            RequestClosed(
                handle=handle,
                num_drafted=num_drafted,
                num_accepted=num_accepted,
                num_committed=num_committed,
            )
        )

    def plan(self, *decodes: int, prefill_ready: bool = False) -> StepPlan:
        [plan] = self._handle(StepAsked(now=self.now, decodes=decodes, prefill_ready=prefill_ready))
        assert isinstance(plan, StepPlan)
        return plan

    def _handle(
        self,
        event: Event,
    ) -> list[Command]:
        commands = self.state.handle(event)
        self.state.validate()
        return commands


def opened(
    drafter: str = "d", handle: int = 1, output: Iterable[int] = (), prompt: Iterable[int] = PROMPT
) -> SendOpen:
    return SendOpen(
        drafter=drafter, handle=handle, prompt_ids=tuple(prompt), output_ids=tuple(output)
    )


def committed(
    base_length: int,
    *tokens: int,
    drafter: str = "d",
    handle: int = 1,
    num_drafted: int = 0,
    num_accepted: int = 0,
    num_ready: int = 0,
) -> SendCommit:
    return SendCommit(
        drafter=drafter,
        handle=handle,
        base_length=base_length,
        num_drafted=num_drafted,
        num_accepted=num_accepted,
        tokens=tokens,
        num_ready=num_ready,
    )


def closed(drafter: str = "d", handle: int = 1) -> SendClose:
    return SendClose(drafter=drafter, handle=handle)


RUN = StepPlan(wait_until=None)
"""A pass with everyone, nobody's patience having ended."""


def wait(until: float) -> StepPlan:
    return StepPlan(wait_until=until)


def hold(*handles: int) -> StepPlan:
    return StepPlan(wait_until=None, held=frozenset(handles))


def impatient(*handles: int) -> StepPlan:
    return StepPlan(wait_until=None, patience_ended=frozenset(handles))


def due_story(
    *handles: int,
    drafters: Iterable[str] = ("d",),
    mode: Literal["lockstep", "pipelined"] = "lockstep",
) -> Story:
    """A story in which each request has its first token and a proposal is due at length 4."""
    story = Story(mode=mode)
    for drafter in drafters:
        story.join(drafter)
    for handle in handles or (1,):
        story.admit(handle)
    for handle in handles or (1,):
        story.commit(50, handle=handle)
    return story
