"""The layers of block drafts, of Qwen3's kind: vllm/model_executor/models/qwen3_dflash.py.

Shape legend: N rows of context, R requests, B slots of a block, L cells that a block may see, H
hidden size, T the target's, A auxiliary layers.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from paceline.drafter.block_layout import BlockLayout, Sight
from paceline.drafter.kv_slots import KVSlots
from paceline.drafter.layers import DecoderLayer, RMSNorm, Rotary, View


class BlockStack(nn.Module):
    """From the target's rows to keys and values, and from a block's tokens to hidden states.

    Its parameters are named as in published checkpoints.
    """

    def __init__(self, layout: BlockLayout) -> None:
        super().__init__()
        size, eps = layout.shape.hidden_size, layout.shape.eps
        self._sights = layout.sights
        self.fc = nn.Linear(len(layout.aux_layers) * layout.target_hidden_size, size, bias=False)
        self.hidden_norm = RMSNorm(size, eps)
        self.layers = nn.ModuleList(
            DecoderLayer(layout.shape, index, window=sight.window)
            for index, sight in enumerate(layout.sights)
        )
        self.norm = RMSNorm(size, eps)

    def remember(
        self, projected: Tensor, positions: Tensor, rotary: Rotary, cache: KVSlots
    ) -> None:
        """Writes the keys and values of context rows to ``cache``, which knows where to.

        Args:
            projected: What ``fc`` has made of the rows.  # [N, H]
            positions: # [N]
        """
        context = self.hidden_norm(projected)[:, None]  # [N, 1, H]
        rotation = rotary(positions[:, None])
        for index, layer in enumerate(self.layers):
            attention = cast(DecoderLayer, layer).self_attn
            cache.update(*attention.keys_values(context, rotation), index)

    def forward(
        self, x: Tensor, positions: Tensor, num_cells: Tensor, rotary: Rotary, cache: KVSlots
    ) -> Tensor:
        """Runs blocks through the layers; returns [R, B, H], normed.

        Args:
            x: The embeddings of the blocks' tokens.  # [R, B, H]
            positions: # [R, B]
            num_cells: Of the context in front of each block, whose own cells follow.  # [R]
        """
        rotation = rotary(positions)
        masks = {
            sight: _mask(sight, num_cells, x.shape[1], cache.get_seq_length())
            for sight in set(self._sights)
        }
        for layer, sight in zip(self.layers, self._sights, strict=True):
            x = layer(x, View(cache, rotation, {sight.window: masks[sight]}))
        out: Tensor = self.norm(x)
        return out


def _mask(sight: Sight, num_cells: Tensor, num_slots: int, length: int) -> Tensor:
    """Returns which cells each slot sees, [R, 1, B, L]; its own is one of them."""
    cells = torch.arange(length, device=num_cells.device)
    first = num_cells[:, None, None]
    own = first + torch.arange(num_slots, device=num_cells.device)[:, None]  # [R, B, 1]
    seen = cells <= own if sight.causal else cells < first + num_slots  # [R, B, L]
    if sight.window is not None:
        seen = seen & ((cells - own).abs() < sight.window)
    return seen[:, None]
