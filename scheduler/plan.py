"""The decision of one step: run a pass now, or wait for proposals, and who takes part.

The base rule:

1. A pass that has a prefill to run runs now. Requests whose proposal is due sit it out, at most
   ``MAX_HOLDS_IN_ROW`` times in a row; everyone else takes part.
2. With nothing but decodes to run, wait until every due proposal is here, or until the oldest
   one's patience ends; then everyone takes part, drafted or not.

Why wait for all, and not run whoever is ready: at small batches a pass costs the same whoever is
in it (the weights are read once), so stragglers served by a pass of their own double the cost, and
requests that take turns once take turns for good. docs/architecture.md has the numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from paceline.scheduler.request import RequestState

MAX_HOLDS_IN_ROW = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPlan:
    """What the next step does."""

    wait_until: float | None
    """Not None: run nothing yet; decide again on the next event, or at this time at the latest."""
    held: frozenset[int] = frozenset()
    """Handles that sit out the pass."""
    patience_ended: frozenset[int] = frozenset()
    """Handles that take part though their proposal is still due."""


def plan_step(
    *,
    now: float,
    decodes: Iterable[RequestState],
    suspects: Collection[str],
    prefill_ready: bool,
    patience: float,
) -> StepPlan:
    """Decides the next step; changes nothing.

    Args:
        now: Seconds, the clock of ``RequestState.due_since``.
        decodes: The requests that could decode in this step.
        suspects: Drafters that are not waited for.
        prefill_ready: Whether some other request could prefill in this step.
        patience: Seconds that a due proposal is waited for.
    """
    due = [
        request
        for request in decodes
        if request.due_since is not None
        and not request.proposal
        and request.drafter not in suspects
    ]
    if prefill_ready:
        return StepPlan(
            wait_until=None,
            held=frozenset(r.handle for r in due if r.holds_in_row < MAX_HOLDS_IN_ROW),
        )
    if not due:
        return StepPlan(wait_until=None)
    patience_end = min(r.due_since for r in due if r.due_since is not None) + patience
    if now < patience_end:
        return StepPlan(wait_until=patience_end)
    return StepPlan(wait_until=None, patience_ended=frozenset(r.handle for r in due))
