"""What a user can tune about the decisions."""

from __future__ import annotations

from typing import Literal

from paceline.config import Config

MAX_FANOUT = 256
"""More outcomes than are worth drafting for: the 257th holds a thousandth of the probability."""


class SpeculationConfig(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How proposals are waited for and used."""

    mode: Literal["lockstep", "pipelined"] = "lockstep"
    """``lockstep``: the drafter drafts once a pass's outcome is known. ``pipelined``: while the
    pass runs it drafts behind the outcomes that the pass may have, the most probable ones first.
    """
    fanout: int = 16
    """``pipelined``: the most outcomes of one pass that are drafted behind at a time, per request.
    Fewer are, where more would take longer than the pass."""
    patience_ms: float = 250.0
    """How long an idle target waits for a proposal that is due, at the most. A drafter whose answer
    takes longer is not waited for until it is in time again, so a dead or slow one costs this once.
    """
    allow_nondeterministic_seed: bool = False
    """Whether a sampled request with a seed is drafted, too. The law of its output stays the
    target's, but which sample a seed gives then depends on how many drafts each pass held."""

    record: str | None = None
    """A file, which is replaced, for all events and decisions of the run, see ``paceline replay``;
    relative to the folder in which the run is started. It holds the token ids of all requests."""

    def __post_init__(self) -> None:
        if not 1 <= self.fanout <= MAX_FANOUT:
            raise ValueError(f"fanout is {self.fanout}, it lies between 1 and {MAX_FANOUT}")
        if not 0 <= self.patience_ms <= 60_000:
            raise ValueError(f"patience_ms is {self.patience_ms}, it lies between 0 and 60000")
