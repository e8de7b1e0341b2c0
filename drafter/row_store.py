"""Rows of prompts that came before, by the target's own keys of their blocks.

What the target finds in its prefix cache it does not compute again, so no rows come of it. A
drafter that has had them still needs them: it keeps them by the hashes by which the target knows
its blocks, the least recently used are dropped first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import torch

Block = Mapping[str, torch.Tensor]
"""The tensors of a block's rows, each [block size, ...]."""


class RowStore:
    """A bounded number of bytes of blocks."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()
        self.num_bytes = 0
        """Of all that is kept."""

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._blocks

    def get(self, block_hash: bytes) -> Block | None:
        """Returns the block's rows, None if they are not here."""
        block = self._blocks.get(block_hash)
        if block is not None:
            self._blocks.move_to_end(block_hash)
        return block

    def put(self, block_hash: bytes, block: Block) -> None:
        """Keeps a copy of the block's rows."""
        if block_hash in self._blocks:
            self._blocks.move_to_end(block_hash)
            return
        size = _num_bytes(block)
        if size > self._max_bytes:
            return
        self._blocks[block_hash] = {name: tensor.clone() for name, tensor in block.items()}
        self.num_bytes += size
        while self.num_bytes > self._max_bytes:
            _, dropped = self._blocks.popitem(last=False)
            self.num_bytes -= _num_bytes(dropped)

    def clear(self) -> None:
        """Drops everything: the target computes something else from now on."""
        self._blocks.clear()
        self.num_bytes = 0


def _num_bytes(block: Block) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in block.values())
