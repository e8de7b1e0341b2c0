"""DFlash: block diffusion as a draft.

arXiv 2602.06036; vllm/model_executor/models/qwen3_dflash.py and vllm/v1/spec_decode/dflash.py.

Each mask token of a block drafts the token of its own position, all at once and each for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from paceline.drafter.block import BlockDrafter, best
from paceline.drafter.dflash_layout import dflash_layout
from paceline.drafter.target_parts import TargetParts


class DFlashDrafter(BlockDrafter):
    """A DFlash draft in z-lab's or speculators' layout."""

    def __init__(
        self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], target: TargetParts
    ) -> None:
        """Args are those of ``BlockDrafter``; ``config`` is the draft's ``config.json``.

        Raises:
            ModelError: the draft cannot be used, or not with this target.
        """
        super().__init__(dflash_layout(config), tensors, target)
        self._use_mask_embedding()

    def _choose(
        self, hidden: Tensor, anchors: Tensor, allowed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        index, confidence, finite = best(self._logits(hidden), allowed)
        return self._token_ids[index], confidence, finite
