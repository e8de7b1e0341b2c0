"""The pipeline's state: pure, no socket, no clock, no thread. ``handle(event) -> commands``.

The verifier's engine feeds it everything that happens and carries out what it answers; ``plan``
decides each step. The same object serves the tests, which compare command lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from paceline.scheduler.config import SpeculationConfig
from paceline.scheduler.events import (
    Command,
    DrafterJoined,
    DrafterLost,
    Event,
    ProposalArrived,
    ReopenAsked,
    RequestAdmitted,
    RequestClosed,
    SendClose,
    SendCommit,
    SendOpen,
    TokensCommitted,
)
from paceline.scheduler.plan import StepPlan, plan_step
from paceline.scheduler.request import RequestState

MAX_ANSWERS_OWED = 1024


@dataclass(kw_only=True, slots=True)
class DrafterState:
    """One drafter that is here."""

    method: str
    max_requests: int
    handles: set[int] = field(default_factory=set)
    """Requests that it drafts for."""
    num_expired: int = 0
    """How often in a row the patience for it ended without an answer."""
    answers_owed: int = 0
    """Answers that must come in time before it is waited for again; see ``expire``."""

    @property
    def suspect(self) -> bool:
        """Whether nobody waits for it. Its proposals are used all the same, where they fit."""
        return self.answers_owed > 0

    def expire(self) -> None:
        """The patience ended: it is waited for again once it has answered in time, and after each
        further time twice as often. So a dead drafter, or one too slow for this target, costs one
        wait, and one that behaves only while nobody waits for it ever fewer."""
        self.num_expired += 1
        self.answers_owed = min(1 << (self.num_expired - 1), MAX_ANSWERS_OWED)

    def answer(self, in_time: bool, is_current: bool) -> None:
        """An answer came, used or not; ``is_current``: it continues what is committed now."""
        if not in_time:
            self.answers_owed = max(self.answers_owed, 1)
        elif self.answers_owed:
            self.answers_owed -= 1
        elif is_current:
            self.num_expired = 0


class PipelineState:
    """All requests and drafters of one verifier."""

    def __init__(self, config: SpeculationConfig) -> None:
        self._patience = config.patience_ms / 1000
        self.requests: dict[int, RequestState] = {}
        self.drafters: dict[str, DrafterState] = {}

    def handle(self, event: Event) -> list[Command]:
        """Takes in what happened; returns what to do about it, in order."""
        match event:
            case TokensCommitted():
                return self._commit(event)
            case ProposalArrived():
                return self._propose(event)
            case RequestAdmitted():
                request = RequestState(
                    handle=event.handle, prompt_ids=event.prompt_ids, draftable=event.draftable
                )
                self.requests[event.handle] = request
                return self._assign(request)
            case RequestClosed():
                return self._close(event)
            case ReopenAsked():
                return self._reopen(event)
            case DrafterJoined():
                return self._join(event)
            case DrafterLost():
                return self._lose(event.drafter)

    def plan(self, now: float, decodes: Iterable[int], prefill_ready: bool) -> StepPlan:
        """Decides the next step, and notes what follows from it: holds, drafters that failed.

        Args:
            now: Seconds, the clock of the events.
            decodes: Handles that could decode in this step; unknown ones are undrafted requests.
            prefill_ready: Whether some other request could prefill in this step.
        """
        candidates = [self.requests[handle] for handle in decodes if handle in self.requests]
        plan = plan_step(
            now=now,
            decodes=candidates,
            suspects=[name for name, drafter in self.drafters.items() if drafter.suspect],
            prefill_ready=prefill_ready,
            patience=self._patience,
        )
        for handle in plan.held:
            self.requests[handle].holds_in_row += 1
            self.requests[handle].counters.holds += 1
        for name in {self.requests[handle].drafter for handle in plan.patience_ended}:
            if name is not None:
                self.drafters[name].expire()
        return plan

    def validate(self) -> None:
        """Asserts what must hold between the maps; for tests and debugging."""
        for name, drafter in self.drafters.items():
            assert len(drafter.handles) <= drafter.max_requests, f"{name} holds too much"
            for handle in drafter.handles:
                assert self.requests[handle].drafter == name, f"{handle} is not {name}'s"
        for handle, request in self.requests.items():
            assert request.handle == handle, f"{handle} is filed under another handle"
            if request.drafter is None:
                assert request.due_since is None, f"{handle} awaits nobody's proposal"
            else:
                assert handle in self.drafters[request.drafter].handles, f"{handle} is lost"

    def _commit(self, event: TokensCommitted) -> list[Command]:
        request = self.requests.get(event.handle)
        if request is None:
            return []
        base_length = request.length
        if request.output_ids:
            request.counters.count_pass(event.num_drafted, event.num_accepted)
        request.commit(event.tokens, event.now)
        if request.drafter is None:
            return self._assign(request)
        return [
            SendCommit(
                drafter=request.drafter,
                handle=event.handle,
                base_length=base_length,
                num_accepted=event.num_accepted,
                tokens=event.tokens,
            )
        ]

    def _propose(self, event: ProposalArrived) -> list[Command]:
        request = self.requests.get(event.handle)
        if request is None or request.drafter != event.drafter:
            return []  # closed or handed over while the proposal was under way: nobody's fault
        answer_time = request.answer_time(event.base_length, event.now)
        if answer_time is not None:
            self.drafters[event.drafter].answer(
                in_time=answer_time <= self._patience,
                is_current=event.base_length == request.length,
            )
        if not request.take_proposal(event.base_length, event.tokens):
            request.counters.stale += 1
        return []

    def _close(self, event: RequestClosed) -> list[Command]:
        request = self.requests.pop(event.handle, None)
        if request is None:
            return []
        if event.num_committed and request.output_ids:
            request.counters.count_pass(event.num_drafted, event.num_accepted)
        if request.drafter is None:
            return []
        self.drafters[request.drafter].handles.discard(event.handle)
        commands: list[Command] = [SendClose(drafter=request.drafter, handle=event.handle)]
        return commands + self._assign_waiting()

    def _reopen(self, event: ReopenAsked) -> list[Command]:
        request = self.requests.get(event.handle)
        if request is None:
            return [SendClose(drafter=event.drafter, handle=event.handle)]
        return [_open(request)] if request.drafter == event.drafter else []

    def _join(self, event: DrafterJoined) -> list[Command]:
        commands = self._lose(event.drafter)
        self.drafters[event.drafter] = DrafterState(
            method=event.method, max_requests=event.max_requests
        )
        return commands + self._assign_waiting()

    def _lose(self, name: str) -> list[Command]:
        drafter = self.drafters.pop(name, None)
        if drafter is None:
            return []
        for handle in drafter.handles:
            self.requests[handle].drafter = None
            self.requests[handle].due_since = None
            self.requests[handle].asked.clear()
        return self._assign_waiting()

    def _assign_waiting(self) -> list[Command]:
        """Gives a drafter to each request that has none, as far as there is room."""
        if all(len(d.handles) >= d.max_requests for d in self.drafters.values()):
            return []
        waiting = [r for r in self.requests.values() if r.draftable and r.drafter is None]
        return [command for request in waiting for command in self._assign(request)]

    def _assign(self, request: RequestState) -> list[Command]:
        """Gives ``request`` the least loaded drafter that has room, if any."""
        if not request.draftable:
            return []
        free = [
            (len(drafter.handles), name)
            for name, drafter in self.drafters.items()
            if len(drafter.handles) < drafter.max_requests
        ]
        if not free:
            return []
        _, name = min(free)
        drafter = self.drafters[name]
        drafter.handles.add(request.handle)
        request.drafter, request.method = name, drafter.method
        return [_open(request)]


def _open(request: RequestState) -> SendOpen:
    assert request.drafter is not None
    return SendOpen(
        drafter=request.drafter,
        handle=request.handle,
        prompt_ids=request.prompt_ids,
        output_ids=tuple(request.output_ids),
    )
