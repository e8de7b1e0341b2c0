"""What a drafter expects of one verifier's running pass: its outcome, and when it ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from paceline.messages import Commit
from paceline.scheduler.averages import Acceptance, Average

UNDRAFTED_PRIOR = 0.5
MAX_DRIFT = 1e-6
"""Seconds from one commit to the next: more than two clocks drift apart in that time."""


@dataclass(kw_only=True, slots=True)
class Outlook:
    """Learned from the commits, of all requests of the verifier together."""

    acceptance: Acceptance = field(default_factory=Acceptance)
    committed_at: float = 0.0
    """When the last commit was sent. It may have been read late, behind a long forward."""
    proposed_at: float = 0.0
    """When the last proposal went out: the pass that holds it cannot have begun before."""
    verify_s: float = 0.0
    """How long a pass takes; 0: not known."""
    _clock_lead: float = math.inf
    """How far this clock is ahead of the verifier's, the shortest way of a message included."""
    _undrafted: Average = field(default_factory=Average)
    """Of the passes behind a miss: 1 for an undrafted one, 0 for one that waited for drafts."""
    _missed: set[int] = field(default_factory=set)
    """Handles whose last commit was a miss."""

    @property
    def ends_at(self) -> float:
        """When the running pass is expected to end; infinite where that cannot be told.

        It has begun with the last commit, or, if somebody missed and it rather waits, with the
        proposals. Too early a guess only sends some branches twice; too late a one makes them late.
        """
        if not self.verify_s:
            return math.inf
        if not self._missed or self.undrafted >= 0.5:
            return self.committed_at + self.verify_s
        has_begun = self.proposed_at >= self.committed_at
        return self.proposed_at + self.verify_s if has_begun else math.inf

    @property
    def undrafted(self) -> float:
        """Probability that the pass behind a miss verifies no drafts."""
        return UNDRAFTED_PRIOR if self._undrafted.value is None else self._undrafted.value

    def commit(self, now: float, message: Commit) -> None:
        """Takes in the outcome of a pass."""
        self.committed_at = now
        if message.sent_at:
            # A little more with each commit, so that clocks which drift apart are followed.
            self._clock_lead = min(self._clock_lead + MAX_DRIFT, now - message.sent_at)
            self.committed_at = message.sent_at + self._clock_lead
        self.verify_s = message.verify_s
        for committed in message.commits:
            if committed.num_drafted:
                self.acceptance.add(committed.num_drafted, committed.num_accepted)
            if committed.handle in self._missed:
                self._undrafted.add(committed.num_drafted == 0)
                self._missed.discard(committed.handle)
            if not committed.num_ready:
                self._missed.add(committed.handle)

    def forget(self, handle: int) -> None:
        """The request has ended."""
        self._missed.discard(handle)
