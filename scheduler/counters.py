"""The counts of one request: what was proposed, what was accepted, what became of the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

MissCause = Literal["none", "length", "bonus", "stale", "late"]
"""Why no draft was at hand at the end of a pass:

    none    no outcome of this pass was drafted behind
    length  none with this number of accepted drafts
    bonus   some with it, but with another bonus token
    stale   what was drafted behind contradicts the drafts that the pass held
    late    it came after the pass had ended
"""


@dataclass(kw_only=True, slots=True)
class RequestCounters:
    """Counts from admission to the end.

    ``rounds`` counts decode passes, drafted or not; the pass that ends the prefill is none.
    """

    rounds: int = 0
    drafted_rounds: int = 0
    proposed: int = 0
    """Draft tokens that were verified."""
    accepted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    """How often the first, second, … draft of a pass was accepted; as long as the longest one."""
    holds: int = 0
    """Passes that the request sat out for a proposal."""
    hits: int = 0
    """Passes at whose end drafts for the outcome were at hand already."""
    misses: dict[MissCause, int] = field(default_factory=dict)
    """Passes at whose end none were, by cause; those that ended the request are in neither."""
    stale: int = 0
    """Proposals that contradicted, or lay wholly within, what was committed meanwhile."""
    waited_s: float = 0.0
    """Seconds in which the target ran nothing, for the sake of proposals, though this request could
    have decoded."""
    lookup_s: float = 0.0
    """Seconds between its passes that went into taking in messages, choosing drafts and sending."""
    schedule_s: float = 0.0
    """Seconds between its passes that were vLLM's own: scheduling, outputs, the engine's loop."""
    transport_s: float = 0.0
    """Seconds that its awaited proposals were under way, there and back; part of ``waited_s`` where
    it was waited for."""
    verify_s: float = 0.0
    """Seconds of its passes."""
    hit_exposed_s: float = 0.0
    """Part of ``waited_s`` and ``lookup_s`` before passes whose drafts were a hit."""
    hit_verify_s: float = 0.0
    """Part of ``verify_s`` in such passes."""

    def count_pass(self, num_drafted: int, num_accepted: int) -> None:
        """Counts one decode pass with its outcome."""
        self.rounds += 1
        if num_drafted == 0:
            return
        self.drafted_rounds += 1
        self.proposed += num_drafted
        self.accepted += num_accepted
        missing = num_drafted - len(self.accepted_per_position)
        self.accepted_per_position.extend([0] * missing)
        for position in range(num_accepted):
            self.accepted_per_position[position] += 1

    def count_miss(self, cause: MissCause, number: int = 1) -> None:
        """Counts a pass without a hit; ``number`` -1 takes it back."""
        self.misses[cause] = self.misses.get(cause, 0) + number
        if not self.misses[cause]:
            del self.misses[cause]
