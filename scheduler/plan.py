"""The decision of one step: run a pass now, or wait for proposals, and who takes part.

Lockstep, the base rule:

1. A pass that has a prefill to run runs now. Requests whose proposal is due sit it out, at most
   ``MAX_HOLDS_IN_ROW`` times in a row; everyone else takes part.
2. With nothing but decodes to run, wait until every due proposal is here, or until the oldest
   one's patience ends; then everyone takes part, drafted or not.

Why wait for all, and not run whoever is ready: at small batches a pass costs the same whoever is
in it (the weights are read once), so stragglers served by a pass of their own double the cost, and
requests that take turns once take turns for good. docs/architecture.md has the numbers.

Pipelined, a request whose proposal is due has missed. It may go along undrafted for nearly nothing,
and what is drafted for it meanwhile fits the outcome as a rule. So nobody sits out a pass, and the
target waits only where waiting pays: see ``_worth_waiting``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from paceline.scheduler.events import StepPlan
from paceline.scheduler.request import RequestState

MAX_HOLDS_IN_ROW = 2

OVERDUE = 2
"""Pipelined, an answer that takes so many times as long as usual is not counted on any longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prospect:
    """What waiting for one drafter means. Unmeasured values are None."""

    suspect: bool
    """It is not waited for."""
    answer_s: float | None
    """Seconds from a commit to its proposal."""
    accepted: float | None
    """Draft tokens that its answer adds to a pass's bonus token."""


def plan_step(
    *,
    now: float,
    decodes: Iterable[RequestState],
    prospects: Mapping[str, Prospect],
    prefill_ready: bool,
    patience: float,
    pipelined: bool,
    tokens_per_s: float | None,
) -> StepPlan:
    """Decides the next step; changes nothing.

    Args:
        now: Seconds, the clock of ``RequestState.due_since``.
        decodes: The requests that could decode in this step.
        prospects: By drafter, all that are here.
        prefill_ready: Whether some other request could prefill in this step.
        patience: Seconds that a due proposal is waited for, at the most.
        pipelined: Whether drafts are made while the pass runs.
        tokens_per_s: What the target commits, all requests together; None: not measured.
    """
    due = [
        _Due(request, request.due_since, prospects[request.drafter])
        for request in decodes
        if request.drafter is not None
        and request.due_since is not None
        and not request.continuations
        and not prospects[request.drafter].suspect
    ]
    if prefill_ready:
        waits = [] if pipelined else [d for d in due if d.request.holds_in_row < MAX_HOLDS_IN_ROW]
        return StepPlan(wait_until=None, held=frozenset(d.request.handle for d in waits))
    if pipelined:
        # Patience runs over several passes: a dead drafter costs it once here, too.
        ends = {d.request.handle: d.request.unanswered_since(d.since) + patience for d in due}
        given_up = {d.request.handle: min(ends[d.request.handle], d.overdue_at()) for d in due}
        waits = [d for d in due if now < given_up[d.request.handle]]
        worth = _worth_waiting(now, waits, tokens_per_s)
        wait_end = min(given_up[d.request.handle] for d in waits) if worth else now
    else:
        ends = {d.request.handle: d.since + patience for d in due}
        wait_end = min(ends.values(), default=now)
    if now < wait_end:
        return StepPlan(wait_until=wait_end)
    ended = frozenset(handle for handle, end in ends.items() if now >= end)
    return StepPlan(wait_until=None, patience_ended=ended)


@dataclass(frozen=True, slots=True)
class _Due:
    """A request whose proposal is due."""

    request: RequestState
    since: float
    prospect: Prospect

    def overdue_at(self) -> float:
        """Returns when its answer is no longer counted on."""
        answer_s = self.prospect.answer_s
        return float("inf") if answer_s is None else self.since + OVERDUE * answer_s


def _worth_waiting(now: float, due: Iterable[_Due], tokens_per_s: float | None) -> bool:
    """Decides whether to wait for some or all that is due.

    While the target waits it commits nothing, which costs ``tokens_per_s`` a second. What it gets
    is the accepted drafts of those who are waited for. So waiting pays as long as the seconds that
    it takes are fewer than the accepted drafts over ``tokens_per_s``.
    """
    gain = 0.0
    for d in sorted(due, key=lambda d: d.since + (d.prospect.answer_s or 0.0)):
        answer_s, accepted = d.prospect.answer_s, d.prospect.accepted
        if tokens_per_s is None or answer_s is None or accepted is None:
            return True  # only waiting tells what waiting gives
        gain += accepted
        if max(0.0, d.since + answer_s - now) < gain / tokens_per_s:
            return True
    return False
