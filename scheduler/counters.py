"""The counts of one request: what was proposed, what was accepted, what became of the rest."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    stale: int = 0
    """Proposals that contradicted, or lay wholly within, what was committed meanwhile."""
    waited_s: float = 0.0
    """Seconds in which the target ran nothing, for the sake of proposals, though this request could
    have decoded."""

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
