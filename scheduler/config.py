"""What a user can tune about the decisions."""

from __future__ import annotations

from typing import Literal

from paceline.config import Config


class SpeculationConfig(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How proposals are waited for and used."""

    mode: Literal["lockstep"] = "lockstep"
    """``lockstep``: the drafter drafts once a pass's outcome is known."""
    patience_ms: float = 250.0
    """How long an idle target waits for a proposal that is due. A drafter whose answer takes longer
    is not waited for until it is in time again, so a dead or slow one costs this once."""
    allow_nondeterministic_seed: bool = False
    """Whether a sampled request with a seed is drafted, too. The law of its output stays the
    target's, but which sample a seed gives then depends on how many drafts each pass held."""

    def __post_init__(self) -> None:
        if not 0 <= self.patience_ms <= 60_000:
            raise ValueError(f"patience_ms is {self.patience_ms}, it lies between 0 and 60000")
