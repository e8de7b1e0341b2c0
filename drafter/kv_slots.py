"""The KV cache of a draft model: one slot a request, any slots in one forward.

A slot is a row of cells. Which token lies in which cell is said by whoever runs the forward
(kv_tree.py), and a mask keeps each token to what it may see; to this file cells are numbers. Taking
something out costs nothing: a cell is overwritten before it is seen again.

Shape legend: S slots, R rows of a forward, Q new tokens per row, H key/value heads, C capacity in
cells, L cells that a forward may see, D head size, M moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_GROWTH = 256
"""Cells by which the capacity grows at least, so that growing stays rare."""


class KVSlots:
    """Behaves as the ``past_key_values`` of a transformers causal LM during ``forward``."""

    def __init__(self) -> None:
        self._keys: list[torch.Tensor] = []  # per layer [S, H, C, D]
        self._values: list[torch.Tensor] = []
        self._num_slots = 0
        self._capacity = 0
        self._free: list[int] = []
        self._slots: Sequence[int] = []  # [R], ascending
        self._rows = torch.empty(0)  # the same on the device
        self._cells = torch.empty(0)  # [R, Q]
        self._moves = torch.empty(3, 0)  # [3, M]
        self._length = 0

    def take(self) -> int:
        """Returns a free slot, the lowest one: rows that are a range need no copy."""
        if not self._free:
            self._free = [self._num_slots]
            self._num_slots += 1
        slot = min(self._free)
        self._free.remove(slot)
        return slot

    def give_back(self, slot: int) -> None:
        """Frees ``slot``."""
        self._free.append(slot)

    @torch.inference_mode()
    def wipe(self, slot: int) -> None:
        """Zeroes ``slot``: a mask hides what is stale, but not a NaN."""
        for held in (*self._keys, *self._values):
            if slot < held.shape[0]:
                held[slot].zero_()

    def reserve(self, length: int) -> int:
        """Makes room for cells below ``length``; returns a spare cell behind them."""
        if length >= self._capacity:
            self._capacity = length + max(_GROWTH, length // 2)
        return self._capacity - 1

    def begin(
        self,
        slots: Sequence[int],
        length: int,
        rows: torch.Tensor,
        cells: torch.Tensor,
        moves: torch.Tensor,
    ) -> None:
        """Says what the next forward does, in this order, in each layer.

        Args:
            slots: [R], ascending: those of the forward's rows.
            length: L: the rows see the cells below it, for which there is room.
            rows: ``slots`` on the device.
            cells: [R, Q] that are written.
            moves: [3, M], slots, cells from and cells to: what is copied first, all at once.
        """
        self._slots, self._length = slots, length
        self._rows, self._cells, self._moves = rows, cells, moves

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores keys and values [R, H, Q, D]; returns all that the rows may see [R, H, L, D]."""
        if layer_idx == len(self._keys):
            self._keys.append(keys.new_zeros(0, keys.shape[1], 0, keys.shape[3]))
            self._values.append(values.new_zeros(0, values.shape[1], 0, values.shape[3]))
        return (
            self._store(self._keys, layer_idx, keys),
            self._store(self._values, layer_idx, values),
        )

    def _store(self, store: list[torch.Tensor], layer: int, new: torch.Tensor) -> torch.Tensor:
        held = store[layer]
        if held.shape[0] < self._num_slots or held.shape[2] < self._capacity:
            grown = new.new_zeros(self._num_slots, new.shape[1], self._capacity, new.shape[3])
            grown[: held.shape[0], :, : held.shape[2]] = held
            held = store[layer] = grown
        # Two index tensors stand around a slice, so their dimensions come first.
        if self._moves.shape[1]:
            slots, before, after = self._moves
            held[slots, :, after] = held[slots, :, before]  # [M, H, D]
        held[self._rows[:, None], :, self._cells] = new.transpose(1, 2)  # [R, Q, H, D]
        first, last = self._slots[0], self._slots[-1]
        if last - first + 1 == len(self._slots):  # a range of slots: a view will do
            return held[first : last + 1, :, : self._length]
        return held[self._rows, :, : self._length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Cells that the present forward may see; transformers asks for it."""
        return self._length
