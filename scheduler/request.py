"""One request as the decisions see it.

States of a request, all derived from its fields:

    unassigned  drafter is None: nobody drafts for it, it runs undrafted
    opened      the drafter was told, no commit has gone out yet: prefill, or just handed over
    due         a commit went out, its proposal has not come: ``due_since`` is set
    ready       a proposal that continues exactly what is committed: ``proposal`` is not empty
    declined    the drafter had nothing to propose at this length: neither due nor ready
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from paceline.scheduler.counters import RequestCounters
from paceline.scheduler.events import Tokens


@dataclass(kw_only=True, slots=True)
class RequestState:
    """The state of one request, from admission to its end."""

    handle: int
    prompt_ids: Tokens
    draftable: bool = True
    """Whether a drafter may serve it."""
    output_ids: list[int] = field(default_factory=list)
    drafter: str | None = None
    method: str | None = None
    """Method of the last drafter that it had."""
    proposal: Tokens = ()
    due_since: float | None = None
    """When the commit whose proposal is awaited went out."""
    asked: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=64))
    """Length and time of the last commits that are not answered, oldest first."""
    holds_in_row: int = 0
    """Passes that it sat out since it last took part in one."""
    counters: RequestCounters = field(default_factory=RequestCounters)

    @property
    def length(self) -> int:
        """Tokens committed: prompt and output."""
        return len(self.prompt_ids) + len(self.output_ids)

    def take_proposal(self, base_length: int, tokens: Tokens) -> bool:
        """Takes a proposal that continues position ``base_length``; returns False if it is stale.

        What was committed since ``base_length`` is trimmed off where it agrees. A proposal for the
        present length settles what is due, even an empty one.
        """
        num_committed = self.length - base_length
        if num_committed < 0 or base_length < len(self.prompt_ids):
            return False
        if num_committed == 0:
            self.due_since = None
            # An older proposal may still fit where the drafter now has none.
            self.proposal = tokens or self.proposal
            return True
        if self.due_since is None:
            # The drafter has already answered for the present length.
            return False
        rest = tokens[num_committed:]
        if not rest or list(tokens[:num_committed]) != self.output_ids[-num_committed:]:
            return False
        self.proposal = rest
        return True

    def answer_time(self, base_length: int, now: float) -> float | None:
        """Returns the seconds that a proposal at ``base_length`` took, None if nobody asked."""
        asked_at = None
        while self.asked and self.asked[0][0] <= base_length:
            length, time = self.asked.popleft()
            asked_at = time if length == base_length else None
        return None if asked_at is None else now - asked_at

    def commit(self, tokens: Tokens, now: float) -> None:
        """Appends what a pass committed; the proposal, if any, continued the old text."""
        self.output_ids.extend(tokens)
        self.proposal = ()
        self.holds_in_row = 0
        self.due_since = None
        if self.drafter is not None:
            self.due_since = now
            self.asked.append((self.length, now))
