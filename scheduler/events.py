"""What the pipeline's state is told (events), and what it wants done (commands)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from paceline.messages import MAX_SPECULATIVE_TOKENS

Tokens = tuple[int, ...]
NumDrafts = Annotated[int, msgspec.Meta(ge=0, le=MAX_SPECULATIVE_TOKENS)]


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all events and commands: immutable, and fit to be written down and replayed."""


class DrafterJoined(_Record, frozen=True, kw_only=True):
    """A drafter's Hello was answered with Welcome."""

    drafter: str
    """Name, unique among the drafters that are here."""
    method: str
    max_requests: int
    num_speculative_tokens: int
    """K: of a longer continuation only so many tokens are used."""


class DrafterLost(_Record, frozen=True, kw_only=True):
    """A drafter went silent, was cut off, or was replaced by a new incarnation."""

    drafter: str


class RequestAdmitted(_Record, frozen=True, kw_only=True):
    """The target is about to run a request's first prefill chunk."""

    handle: int
    prompt_ids: Tokens
    draftable: bool = True
    """False: no drafter may serve it, it is only counted."""


class TokensCommitted(_Record, frozen=True, kw_only=True):
    """A pass has added tokens to a request that goes on."""

    handle: int
    num_drafted: NumDrafts
    """Draft tokens that the pass verified for this request; 0 for an undrafted one."""
    num_accepted: NumDrafts
    tokens: Tokens
    """What was committed, in order; never empty."""
    now: float
    """Seconds, any monotonic clock."""


class RequestClosed(_Record, frozen=True, kw_only=True):
    """A request finished or was aborted."""

    handle: int
    num_drafted: NumDrafts = 0
    """Draft tokens of its last pass, those behind the end left out; 0 if no pass ended it."""
    num_accepted: NumDrafts = 0
    num_committed: int = 0
    """Tokens that the last pass added; 0 if it was aborted between passes."""


class ProposalArrived(_Record, frozen=True, kw_only=True):
    """A drafter proposes tokens."""

    drafter: str
    handle: int
    base_length: int
    tokens: Tokens
    """Empty: nothing to propose at this length."""
    now: float
    """Seconds, the clock of ``TokensCommitted``."""
    spent: float = 0.0
    """Seconds that the drafter had the commit before it answered, by its own clock."""


class BranchArrived(_Record, frozen=True, kw_only=True):
    """A drafter has drafted behind an outcome that a pass may have."""

    drafter: str
    handle: int
    base_length: int
    """Tokens (prompt and output) before the pass."""
    num_outcome: int
    """How many of ``tokens`` are the outcome: the accepted drafts and the bonus token."""
    tokens: Tokens
    """The outcome, and at least one draft behind it."""


class ReopenAsked(_Record, frozen=True, kw_only=True):
    """A drafter has lost track of a request."""

    drafter: str
    handle: int


class StepAsked(_Record, frozen=True, kw_only=True):
    """The engine is free and asks what to do; the answer is one ``StepPlan``."""

    now: float
    """Seconds, the clock of the other events."""
    decodes: tuple[int, ...]
    """Handles that could decode in this step; unknown ones are undrafted requests."""
    prefill_ready: bool
    """Whether some other request could prefill in this step."""


class PassStarted(_Record, frozen=True, kw_only=True):
    """The target runs what the last ``StepPlan`` said."""

    now: float


class PassEnded(_Record, frozen=True, kw_only=True):
    """The pass has its outcome; the commits follow."""

    now: float


Event = (
    DrafterJoined
    | DrafterLost
    | RequestAdmitted
    | TokensCommitted
    | RequestClosed
    | ProposalArrived
    | BranchArrived
    | ReopenAsked
    | StepAsked
    | PassStarted
    | PassEnded
)


class SendOpen(_Record, frozen=True, kw_only=True):
    """Tell ``drafter`` to draft for a request."""

    drafter: str
    handle: int
    prompt_ids: Tokens
    output_ids: Tokens


class SendCommit(_Record, frozen=True, kw_only=True):
    """Tell ``drafter`` what a pass added."""

    drafter: str
    handle: int
    base_length: int
    num_drafted: NumDrafts
    num_accepted: NumDrafts
    tokens: Tokens
    num_ready: int = 0
    """Draft tokens that are at hand for the new length, a hit; 0: a proposal is due."""


class SendClose(_Record, frozen=True, kw_only=True):
    """Tell ``drafter`` to forget a request."""

    drafter: str
    handle: int


class StepPlan(_Record, frozen=True, kw_only=True):
    """What the next step does."""

    wait_until: float | None
    """Not None: run nothing yet; ask again on the next event, or at this time at the latest."""
    held: frozenset[int] = frozenset()
    """Handles that sit out the pass."""
    patience_ended: frozenset[int] = frozenset()
    """Handles that take part though their proposal has been due for all of the patience."""


Command = SendOpen | SendCommit | SendClose | StepPlan
