"""Between vLLM's scheduler and the decisions: names to handles, commands to messages.

Knows nothing of vLLM, so that the tests can drive it without an engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.messages import MAX_SECONDS, Close, Commit, Committed, Flush, Open, Sampling
from paceline.scheduler.config import SpeculationConfig
from paceline.scheduler.events import (
    Command,
    Event,
    PassEnded,
    PassStarted,
    RequestAdmitted,
    RequestClosed,
    SendClose,
    SendCommit,
    SendOpen,
    StepAsked,
    StepPlan,
    TokensCommitted,
)
from paceline.scheduler.recording import Recorder
from paceline.scheduler.request import RequestState
from paceline.scheduler.state import PipelineState
from paceline.trace import DISABLED, Tracer
from paceline.verifier.control import ControlThread
from paceline.verifier.record_file import RecordFile
from paceline.verifier.rounds import Rounds
from paceline.verifier.rows_plan import RowsPlan

MAX_WAIT_IN_STEP = 0.001
"""Seconds. Longer than this a new request or an abort is not kept waiting for a proposal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """A request that the target is about to run for the first time."""

    request_id: str
    prompt_ids: Sequence[int]
    block_hashes: list[bytes]
    num_computed_tokens: int
    sampling: Sampling
    draftable: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What the engine does in this step."""

    wait: bool
    """Run nothing: a proposal is awaited."""
    held: frozenset[str]
    """Request ids that sit out the pass."""
    drafts: dict[str, list[int]]
    """Draft tokens by request id."""


class Pipeline:
    """The decisions and the wire of one engine. Belongs to the engine's thread."""

    def __init__(
        self,
        config: SpeculationConfig,
        control: ControlThread,
        clock: Callable[[], float] = time.monotonic,
        tracer: Tracer = DISABLED,
        record: RecordFile | None = None,
    ) -> None:
        self._config = config
        self._state = PipelineState(config)
        self._record = record
        self._recorder: Recorder | None = None
        self._pipelined = config.mode == "pipelined"
        self._rounds = Rounds()
        self._control = control
        self._clock = clock
        self._tracer = tracer
        self._handles: dict[str, int] = {}
        self._admissions: dict[int, Admission] = {}
        self._new_hashes: dict[int, list[bytes]] = {}
        """By handle, of blocks that no message has told of yet."""
        self._num_handles = 0
        self._commits: dict[str, list[Committed]] = {}
        self._waiting_since: float | None = None

    def start(self) -> None:
        """Opens the endpoint for drafters.

        Raises:
            ConfigError: it cannot be bound, or the recording cannot be written.
        """
        if self._record is not None:
            self._record.start()
            self._recorder = Recorder(self._record.write, self._config)
        self._control.start()

    def stop(self) -> None:
        """Closes it; may be called twice."""
        self._control.stop()
        if self._record is not None:
            self._record.stop()

    def admit(self, admission: Admission) -> None:
        """Takes in a request; a known id (resumed after preemption) changes nothing."""
        if admission.request_id in self._handles:
            return
        self._num_handles += 1
        handle = self._handles[admission.request_id] = self._num_handles
        self._admissions[handle] = admission
        self._feed(
            RequestAdmitted(
                handle=handle,
                prompt_ids=tuple(admission.prompt_ids),
                draftable=admission.draftable,
            )
        )

    def step(self, decodes: Iterable[str], prefill_ready: bool) -> Step:
        """Decides the next step, waiting up to ``MAX_WAIT_IN_STEP`` for what is due.

        Args:
            decodes: Ids of the requests that could decode in this step.
            prefill_ready: Whether some other request could prefill in this step.
        """
        name_of = {self._handles[name]: name for name in decodes if name in self._handles}
        began = self._clock()
        wait_end = began + MAX_WAIT_IN_STEP
        while True:
            self._take_events()
            now = self._clock()
            plan = self._plan(now, tuple(name_of), prefill_ready)
            if plan.wait_until is None:
                break
            if self._waiting_since is None:
                self._waiting_since = now
            remaining = min(wait_end, plan.wait_until) - now
            self._control.flush()
            if remaining <= 0:
                return Step(wait=True, held=frozenset(name_of.values()), drafts={})
            self._control.wait(remaining)
        self._control.flush()
        running = {
            handle: self._state.requests[handle] for handle in name_of if handle not in plan.held
        }
        waited = 0.0
        if self._waiting_since is not None:
            self._tracer.span("target", "wait", self._waiting_since, now)
            waited = now - self._waiting_since
            began = max(began, now)
            self._waiting_since = None
        drafts = {
            name_of[handle]: list(proposal)
            for handle, request in running.items()
            if (proposal := request.proposal)
        }
        held = frozenset(name_of[handle] for handle in plan.held)
        self._rounds.decide(running.values(), waited)
        self._rounds.look_up(self._clock() - began)
        return Step(wait=False, held=held, drafts=drafts)

    def _plan(self, now: float, decodes: tuple[int, ...], prefill_ready: bool) -> StepPlan:
        [plan] = self._handle(StepAsked(now=now, decodes=decodes, prefill_ready=prefill_ready))
        assert isinstance(plan, StepPlan)
        return plan

    def pass_started(self) -> None:
        """The engine has scheduled what ``step`` said, and runs it now."""
        now = self._clock()
        self._rounds.start(now)
        self._feed(PassStarted(now=now))

    def pass_ended(self) -> None:
        """The pass has its outcome; ``commit`` and ``close`` follow, then ``flush``."""
        now = self._clock()
        self._rounds.end(now)
        # Whatever arrived during the pass belongs to the time before its outcome.
        self._take_events()
        self._feed(PassEnded(now=now))
        self._rounds.look_up(self._clock() - now)

    def _take_events(self) -> None:
        for event in self._control.take_events():
            self._feed(event)

    def commit(
        self,
        request_id: str,
        num_drafted: int,
        num_accepted: int,
        tokens: Sequence[int],
        block_hashes: Sequence[bytes] = (),
    ) -> None:
        """Takes in what a pass added to a request that goes on.

        Args:
            block_hashes: Of all full blocks of its text.
        """
        handle = self._handles.get(request_id)
        if handle is None or not tokens:
            return
        known = self._admissions[handle].block_hashes
        new_hashes = block_hashes[len(known) :]
        if new_hashes:
            known.extend(bytes(block) for block in new_hashes)
            self._new_hashes[handle] = known[-len(new_hashes) :]
        now = self._clock()
        self._feed(
            TokensCommitted(
                handle=handle,
                num_drafted=num_drafted,
                num_accepted=num_accepted,
                tokens=tuple(tokens),
                now=now,
            )
        )
        self._rounds.look_up(self._clock() - now)

    def close(
        self, request_id: str, num_drafted: int = 0, num_accepted: int = 0, num_committed: int = 0
    ) -> dict[str, Any] | None:
        """Ends a request, with its last pass if that ended it; returns its final ``report``."""
        handle = self._handles.pop(request_id, None)
        if handle is None:
            return None
        request = self._state.requests[handle]
        self._feed(
            RequestClosed(
                handle=handle,
                num_drafted=num_drafted,
                num_accepted=num_accepted,
                num_committed=num_committed,
            )
        )
        del self._admissions[handle]
        self._new_hashes.pop(handle, None)
        if not self._handles:
            self._waiting_since = None  # nobody is left to wait for
        return self._report(request)

    def rows_plan(self, request_ids: Iterable[str]) -> RowsPlan:
        """Returns which of a pass's requests are to send rows, and to whom."""
        requests, drafters = {}, {}
        for request_id in request_ids:
            handle = self._handles.get(request_id)
            drafter = None if handle is None else self._state.requests[handle].drafter
            needs = None if drafter is None else self._control.row_needs(drafter)
            if handle is not None and drafter is not None and needs is not None:
                requests[request_id] = (handle, drafter)
                drafters[drafter] = needs
        return RowsPlan(self._control.incarnation, requests, drafters)

    def length(self, request_id: str) -> int | None:
        """Returns how many tokens of the request are committed here, None if it is unknown."""
        handle = self._handles.get(request_id)
        return None if handle is None else self._state.requests[handle].length

    def report(self, request_id: str) -> dict[str, Any] | None:
        """Returns the request's counts so far, None if it is unknown."""
        handle = self._handles.get(request_id)
        return None if handle is None else self._report(self._state.requests[handle])

    def forget_rows(self) -> None:
        """Has the drafters forget the rows of ended requests: they are no longer the target's."""
        for drafter in self._state.drafters:
            if self._control.row_needs(drafter) is not None:
                self._control.send(drafter, Flush(incarnation=self._control.incarnation))
        self._control.flush()

    def flush(self) -> None:
        """Sends what has gathered: one commit message per drafter."""
        verify_s = min(self._state.verify_s or 0.0, MAX_SECONDS)
        for drafter, commits in self._commits.items():
            self._control.send(
                drafter, Commit(commits=commits, verify_s=verify_s, sent_at=self._clock())
            )
        self._commits.clear()
        self._control.flush()

    def _feed(self, event: Event) -> None:
        self._send(self._handle(event))

    def _handle(self, event: Event) -> list[Command]:
        commands = self._state.handle(event)
        if self._recorder is not None:
            self._recorder.record(event, commands)
        return commands

    def _send(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case SendOpen():
                    admission = self._admissions[command.handle]
                    self._new_hashes.pop(command.handle, None)
                    message = Open(
                        handle=command.handle,
                        prompt_ids=list(command.prompt_ids),
                        output_ids=list(command.output_ids),
                        block_hashes=list(admission.block_hashes),
                        num_computed_tokens=admission.num_computed_tokens,
                        sampling=admission.sampling,
                    )
                    self._control.send(command.drafter, message)
                case SendCommit():
                    committed = Committed(
                        handle=command.handle,
                        base_length=command.base_length,
                        num_drafted=command.num_drafted,
                        num_ready=command.num_ready,
                        num_accepted=command.num_accepted,
                        tokens=list(command.tokens),
                        block_hashes=self._new_hashes.pop(command.handle, []),
                    )
                    self._commits.setdefault(command.drafter, []).append(committed)
                case SendClose():
                    self._control.send(command.drafter, Close(handles=[command.handle]))
                case StepPlan():
                    raise AssertionError("a plan answers StepAsked only")

    def _report(self, request: RequestState) -> dict[str, Any]:
        counters = request.counters
        return {
            "method": request.method,
            "rounds": counters.rounds,
            "drafted_rounds": counters.drafted_rounds,
            "proposed": counters.proposed,
            "accepted": counters.accepted,
            "accepted_per_position": list(counters.accepted_per_position),
            "holds": counters.holds,
            "stale": counters.stale,
            # In lockstep nothing can be at hand when a pass ends.
            "hits": counters.hits if self._pipelined else None,
            "misses": dict(counters.misses) if self._pipelined else None,
            "waited_s": counters.waited_s,
            "lookup_s": counters.lookup_s,
            "schedule_s": counters.schedule_s,
            "transport_s": counters.transport_s,
            "verify_s": counters.verify_s,
            "hit_exposed_s": counters.hit_exposed_s,
            "hit_verify_s": counters.hit_verify_s,
        }
