"""One request as the decisions see it.

States of a request, all derived from its fields:

    unassigned  drafter is None: nobody drafts for it, it runs undrafted
    opened      the drafter was told, no commit has gone out yet: prefill, or just handed over
    due         a commit went out, its proposal has not come: ``due_since`` is set
    ready       a continuation of exactly what is committed is at hand: ``proposal`` is not empty
    declined    the drafter had nothing to propose at this length: neither due nor ready
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from paceline.scheduler.continuations import Continuation, Continuations
from paceline.scheduler.counters import MissCause, RequestCounters
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
    num_speculative_tokens: int = 0
    """K of that drafter."""
    continuations: Continuations = field(default_factory=Continuations)
    was_hit: bool = False
    """Whether a continuation was at hand at the last commit."""
    due_since: float | None = None
    """When the commit whose proposal is awaited went out."""
    asked: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=64))
    """Length and time of the last commits that are not answered, oldest first; those before a hit
    are left out, since a drafter need not answer them any more."""
    holds_in_row: int = 0
    """Passes that it sat out since it last took part in one."""
    last_miss: MissCause | None = None
    """The cause that was counted at the last commit, which a late branch may still correct."""
    counters: RequestCounters = field(default_factory=RequestCounters)

    @property
    def length(self) -> int:
        """Tokens committed: prompt and output."""
        return len(self.prompt_ids) + len(self.output_ids)

    def unanswered_since(self, due_since: float) -> float:
        """Returns since when the drafter has not answered, where ``due_since`` is set."""
        return self.asked[0][1] if self.asked else due_since

    @property
    def proposal(self) -> Tokens:
        """The best continuation, cut to K: what is verified next."""
        return self.continuations.best(self.num_speculative_tokens)

    def take_proposal(self, base_length: int, tokens: Tokens) -> bool:
        """Takes a proposal that continues position ``base_length``; returns False if it is stale.

        A proposal for the present length settles what is due, even an empty one. An earlier one
        that still fits came after an undrafted pass, and was late.
        """
        if base_length == self.length:
            self.due_since = None
            return not tokens or self._take(base_length, Continuation(tokens, 0))
        if self.due_since is None:
            return False  # the drafter has already answered for the present length
        fits = self._take(base_length, Continuation(tokens, 0))
        if fits:
            self._was_late()
        return fits

    def take_branch(self, base_length: int, num_outcome: int, tokens: Tokens) -> bool:
        """Takes drafts behind a possible outcome; returns False if nothing of it fits.

        One that fits the pass that has ended meanwhile settles what is due, and was late.
        """
        num_left = self.length - base_length
        fits = self._take(base_length, Continuation(tokens, num_outcome))
        if fits and num_left >= num_outcome:
            self.due_since = None
            self._was_late()
        return fits

    def _was_late(self) -> None:
        """Corrects the last miss: something fits, and would have been a hit in time."""
        if self.last_miss is not None:
            self.counters.count_miss(self.last_miss, -1)
            self.counters.count_miss("late")
            self.last_miss = None

    def _take(self, base_length: int, continuation: Continuation) -> bool:
        num_committed = self.length - base_length
        if num_committed < 0 or base_length < len(self.prompt_ids):
            return False
        rest = continuation.behind(self.output_ids[-num_committed:] if num_committed else ())
        if rest is None:
            return False
        self.continuations.add(rest)
        return True

    def answer_time(self, base_length: int, now: float) -> float | None:
        """Returns the seconds that a proposal at ``base_length`` took, None if nobody asked."""
        asked_at = None
        while self.asked and self.asked[0][0] <= base_length:
            length, time = self.asked.popleft()
            asked_at = time if length == base_length else None
        return None if asked_at is None else now - asked_at

    def commit(self, tokens: Tokens, now: float, *, was_drafted: bool, pipelined: bool) -> None:
        """Appends what a pass committed.

        Pipelined, a proposal is due unless a continuation is at hand already, a hit. In lockstep it
        always is: what is left of an earlier one only helps out.
        """
        cause = self.continuations.why_missed(tokens, was_drafted=was_drafted)
        is_round = bool(self.output_ids)
        self.output_ids.extend(tokens)
        self.continuations.commit(tokens)
        self.holds_in_row = 0
        self.due_since = self.last_miss = None
        self.was_hit = pipelined and bool(self.continuations)
        if self.drafter is None:
            return
        if self.was_hit:
            self.asked.clear()
            self.counters.hits += is_round
            return
        if is_round and pipelined:
            self.counters.count_miss(cause)
            self.last_miss = cause
        self.due_since = now
        self.asked.append((self.length, now))
