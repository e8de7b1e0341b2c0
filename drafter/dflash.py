"""DFlash: block diffusion as a draft.

arXiv 2602.06036; vllm/model_executor/models/qwen3_dflash.py and vllm/v1/spec_decode/dflash.py.

Each mask token of a block drafts the token of its own position, all at once and each for itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.drafter.block import BlockDrafter, best
from paceline.drafter.checkpoint import Checkpoint
from paceline.drafter.dflash_layout import dflash_layout
from paceline.drafter.target_parts import TargetParts


class DFlashDrafter(BlockDrafter):
    """A DFlash draft in z-lab's or speculators' layout."""

    def __init__(
        self, draft: Checkpoint, target: TargetParts, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Loads the draft; arguments and errors are those of ``BlockDrafter``."""
        super().__init__(dflash_layout(draft.config), draft, target, device, dtype)
        self._use_mask_embedding()

    def _choose(
        self, hidden: Tensor, anchors: Tensor, allowed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        index, confidence, finite = best(self._logits(hidden), allowed)
        return self._token_ids[index], confidence, finite
