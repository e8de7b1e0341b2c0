"""The pipeline's state: pure, no socket, no clock, no thread. ``handle(event) -> commands``.

The verifier's engine feeds it everything that happens, also that it asks for its next step, and
carries out what it answers. Time comes with the events, so the same events give the same commands:
a run can be written down and replayed (recording.py), and the tests compare command lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.scheduler.averages import Average
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
from paceline.scheduler.pace import Pace
from paceline.scheduler.plan import Prospect, plan_step
from paceline.scheduler.request import RequestState

MAX_ANSWERS_OWED = 1024


@dataclass(kw_only=True, slots=True)
class DrafterState:
    """One drafter that is here."""

    method: str
    max_requests: int
    num_speculative_tokens: int
    handles: set[int] = field(default_factory=set)
    """Requests that it drafts for."""
    num_expired: int = 0
    """How often in a row the patience for it ended without an answer."""
    answers_owed: int = 0
    """Answers that must come in time before it is waited for again; see ``expire``."""
    answer_s: Average = field(default_factory=Average)
    """Seconds from a commit to its proposal."""
    accepted: Average = field(default_factory=Average)
    """Accepted drafts of a drafted pass; an answer without drafts counts as 0."""

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

    def prospect(self) -> Prospect:
        """Returns what waiting for it means."""
        return Prospect(
            suspect=self.suspect, answer_s=self.answer_s.value, accepted=self.accepted.value
        )


class PipelineState:
    """All requests and drafters of one verifier."""

    def __init__(self, config: SpeculationConfig) -> None:
        self._patience = config.patience_ms / 1000
        self._pipelined = config.mode == "pipelined"
        self._pace = Pace()
        self.requests: dict[int, RequestState] = {}
        self.drafters: dict[str, DrafterState] = {}

    @property
    def verify_s(self) -> float | None:
        """Seconds that a pass of decodes takes, on average; None: not measured yet."""
        return self._pace.verify_s.value

    def handle(self, event: Event) -> list[Command]:
        """Takes in what happened; returns what to do about it, in order."""
        match event:
            case StepAsked():
                return [self._plan(event)]
            case PassStarted():
                self._pace.start(event.now)
                return []
            case PassEnded():
                self._pace.end(event.now)
                return []
            case TokensCommitted():
                return self._commit(event)
            case ProposalArrived():
                return self._propose(event)
            case BranchArrived():
                request = self.requests.get(event.handle)
                if request is not None and request.drafter == event.drafter:
                    request.take_branch(event.base_length, event.num_outcome, event.tokens)
                return []
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

    def _plan(self, event: StepAsked) -> StepPlan:
        """Decides the next step, and notes what follows from it: holds, drafters that failed."""
        candidates = [self.requests[handle] for handle in event.decodes if handle in self.requests]
        plan = plan_step(
            now=event.now,
            decodes=candidates,
            prospects={name: drafter.prospect() for name, drafter in self.drafters.items()},
            prefill_ready=event.prefill_ready,
            patience=self._patience,
            pipelined=self._pipelined,
            tokens_per_s=self._pace.tokens_per_s,
        )
        if plan.wait_until is None:
            self._pace.plan(pure=not event.prefill_ready)
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
            assert request.continuations or not request.proposal, f"{handle} proposes nothing's end"
            if request.drafter is None:
                assert request.due_since is None, f"{handle} awaits nobody's proposal"
            else:
                assert handle in self.drafters[request.drafter].handles, f"{handle} is lost"

    def _commit(self, event: TokensCommitted) -> list[Command]:
        request = self.requests.get(event.handle)
        if request is None:
            return []
        base_length = request.length
        self._count(request, event.num_drafted, event.num_accepted, len(event.tokens))
        request.commit(
            event.tokens,
            event.now,
            was_drafted=event.num_drafted > 0,
            pipelined=self._pipelined,
        )
        if request.drafter is None:
            return self._assign(request)
        return [
            SendCommit(
                drafter=request.drafter,
                handle=event.handle,
                base_length=base_length,
                num_drafted=event.num_drafted,
                num_accepted=event.num_accepted,
                tokens=event.tokens,
                num_ready=len(request.proposal) if request.was_hit else 0,
            )
        ]

    def _count(
        self, request: RequestState, num_drafted: int, num_accepted: int, num_committed: int
    ) -> None:
        """Counts one pass of ``request``; the one that ends its prefill is none."""
        self._pace.commit(num_committed)
        if not request.output_ids:
            return
        request.counters.count_pass(num_drafted, num_accepted)
        if num_drafted and request.drafter is not None:
            self.drafters[request.drafter].accepted.add(num_accepted)

    def _propose(self, event: ProposalArrived) -> list[Command]:
        request = self.requests.get(event.handle)
        if request is None or request.drafter != event.drafter:
            return []  # closed or handed over while the proposal was under way: nobody's fault
        answer_time = request.answer_time(event.base_length, event.now)
        if answer_time is not None:
            self.drafters[event.drafter].answer_s.add(answer_time)
            if event.spent:
                request.counters.transport_s += max(0.0, answer_time - event.spent)
            self.drafters[event.drafter].answer(
                in_time=answer_time <= self._patience,
                is_current=event.base_length == request.length,
            )
            if not event.tokens:
                self.drafters[event.drafter].accepted.add(0)
        if not request.take_proposal(event.base_length, event.tokens):
            request.counters.stale += 1
        return []

    def _close(self, event: RequestClosed) -> list[Command]:
        request = self.requests.pop(event.handle, None)
        if request is None:
            return []
        if event.num_committed:
            self._count(request, event.num_drafted, event.num_accepted, event.num_committed)
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
            method=event.method,
            max_requests=event.max_requests,
            num_speculative_tokens=event.num_speculative_tokens,
        )
        return commands + self._assign_waiting()

    def _lose(self, name: str) -> list[Command]:
        drafter = self.drafters.pop(name, None)
        if drafter is None:
            return []
        for handle in drafter.handles:
            self.requests[handle].drafter = None
            self.requests[handle].due_since = None
            self.requests[handle].last_miss = None
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
        request.num_speculative_tokens = drafter.num_speculative_tokens
        return [_open(request)]


def _open(request: RequestState) -> SendOpen:
    assert request.drafter is not None
    return SendOpen(
        drafter=request.drafter,
        handle=request.handle,
        prompt_ids=request.prompt_ids,
        output_ids=tuple(request.output_ids),
    )
