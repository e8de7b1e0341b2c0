"""What the pipeline's state is told (events), and what it wants done (commands)."""

from __future__ import annotations

from dataclasses import dataclass

Tokens = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterJoined:
    """A drafter's Hello was answered with Welcome."""

    drafter: str
    """Name, unique among the drafters that are here."""
    method: str
    max_requests: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterLost:
    """A drafter went silent, was cut off, or was replaced by a new incarnation."""

    drafter: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestAdmitted:
    """The target is about to run a request's first prefill chunk."""

    handle: int
    prompt_ids: Tokens
    draftable: bool = True
    """False: no drafter may serve it, it is only counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokensCommitted:
    """A pass has added tokens to a request that goes on."""

    handle: int
    num_drafted: int
    """Draft tokens that the pass verified for this request; 0 for an undrafted one."""
    num_accepted: int
    tokens: Tokens
    """What was committed, in order; never empty."""
    now: float
    """Seconds, any monotonic clock."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestClosed:
    """A request finished or was aborted."""

    handle: int
    num_drafted: int = 0
    """Draft tokens of its last pass, those behind the end left out; 0 if no pass ended it."""
    num_accepted: int = 0
    num_committed: int = 0
    """Tokens that the last pass added; 0 if it was aborted between passes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProposalArrived:
    """A drafter proposes tokens."""

    drafter: str
    handle: int
    base_length: int
    tokens: Tokens
    """Empty: nothing to propose at this length."""
    now: float
    """Seconds, the clock of ``TokensCommitted``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReopenAsked:
    """A drafter has lost track of a request."""

    drafter: str
    handle: int


Event = (
    DrafterJoined
    | DrafterLost
    | RequestAdmitted
    | TokensCommitted
    | RequestClosed
    | ProposalArrived
    | ReopenAsked
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SendOpen:
    """Tell ``drafter`` to draft for a request."""

    drafter: str
    handle: int
    prompt_ids: Tokens
    output_ids: Tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class SendCommit:
    """Tell ``drafter`` what a pass added."""

    drafter: str
    handle: int
    base_length: int
    num_accepted: int
    tokens: Tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class SendClose:
    """Tell ``drafter`` to forget a request."""

    drafter: str
    handle: int


Command = SendOpen | SendCommit | SendClose
