"""Whose rows a pass sends, and to whom: what the scheduler tells the workers with each step."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.messages import RowNeeds

PLAN_ATTRIBUTE = "paceline_rows"
"""Attribute of vLLM's ``SchedulerOutput`` that carries the plan to the worker processes."""


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """Of one pass. A request that is not in it (a warm-up's, an undrafted one) sends no rows."""

    verifier: int
    """The engine's incarnation: scheduler and workers may be different processes."""
    requests: dict[str, tuple[int, str]]
    """By request id: its handle, and the drafter that has it."""
    drafters: dict[str, RowNeeds]
    """What each of these drafters needs."""
