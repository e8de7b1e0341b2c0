"""The KV cache of a draft model: one slot a request, any slots in one forward.

Rows of a forward have their own lengths, so each row writes at its own positions and a mask keeps
it to its own past. Taking a request back to a shorter length costs nothing: what lies behind the
length is overwritten before it is read.

Shape legend: S slots, R rows of a forward, Q new tokens per row, H key/value heads, C capacity in
tokens, D head size.
"""

from __future__ import annotations

from typing import Any

import torch

_GROWTH = 256
"""Tokens by which the capacity grows at least, so that growing stays rare."""


class KVSlots:
    """Behaves as the ``past_key_values`` of a transformers causal LM during ``forward``."""

    def __init__(self) -> None:
        self._keys: list[torch.Tensor] = []  # per layer [S, H, C, D]
        self._values: list[torch.Tensor] = []
        self._num_slots = 0
        self._capacity = 0
        self._free: list[int] = []
        self._slots: list[int] = []  # [R], ascending
        self._rows = torch.empty(0)  # the same on the device
        self._positions = torch.empty(0)  # [R, Q]
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

    def begin(self, slots: list[int], positions: torch.Tensor, device: torch.device) -> None:
        """Names the slots [R], ascending, and positions [R, Q] that the next forward writes."""
        self._slots = slots
        self._rows = torch.tensor(slots, device=device)
        self._positions = positions.to(device)
        self._length = int(positions.max()) + 1
        if self._length > self._capacity:
            self._capacity = self._length + max(_GROWTH, self._length // 2)

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
        # The two index tensors stand around a slice, so their dimensions come first: [R, Q, H, D].
        held[self._rows[:, None], :, self._positions] = new.transpose(1, 2)
        first, last = self._slots[0], self._slots[-1]
        if last - first + 1 == len(self._slots):  # a range of slots: a view will do
            return held[first : last + 1, :, : self._length]
        return held[self._rows, :, : self._length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens that the present forward may see; transformers asks for it."""
        return self._length
