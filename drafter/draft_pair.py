"""A draft and a target as they are configured together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.drafter.checkpoint import Checkpoint, text_config
from paceline.drafter.draft_kind import DraftKind, draft_config


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """What a check or a reckoning looks at."""

    kind: DraftKind
    draft: Checkpoint
    target: Checkpoint
    num_tokens: int
    """K."""
    dtype: str
    """In which the draft computes."""
    target_dtype: str
    """Of the target's states."""
    max_model_len: int | None
    """Tokens that a request may hold; None: as many as the target was trained for."""
    max_requests: int
    device: str

    @property
    def config(self) -> dict[str, Any]:
        return draft_config(self.draft)

    @property
    def target_config(self) -> dict[str, Any]:
        return text_config(self.target.config)

    @property
    def is_one_folder(self) -> bool:
        """Whether the draft stands in the target's own checkpoint."""
        return self.draft.folder == self.target.folder
