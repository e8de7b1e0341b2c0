"""The target's states that a drafter has of one request, by position.

Row p is what the target computed at the token of position p. A drafter needs the rows of all tokens
but the newest one, which the target has not read yet. Rows come in any order, more than once and
with gaps; what lies behind a gap does not count until the gap is closed.

Shape legend: N rows; the rest of a tensor's shape is that of ``messages.RowTensor``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

_GROWTH = 256
"""Rows by which the room grows at least."""

MAX_AHEAD = 16
"""Pieces behind a gap that are kept; with more of them the gap is not going to be closed."""


class RowBuffer:
    """Rows of one request on the drafter's device. Written by the session, read by the methods."""

    def __init__(self, begin: int = 0, device: torch.device | str = "cpu") -> None:
        """Args:
        begin: Position of the first row that is wanted: what the target found in its prefix cache
            and did not compute has no rows.
        """
        self._device = torch.device(device)
        self._held: dict[str, torch.Tensor] = {}  # each [room, ...]
        self._begin = self._end = begin
        self._ahead: dict[int, Mapping[str, torch.Tensor]] = {}
        self._version = 0

    @property
    def begin(self) -> int:
        """Position of the first row."""
        return self._begin

    @property
    def end(self) -> int:
        """One behind the last row; ``begin`` while there is none."""
        return self._end

    @property
    def version(self) -> int:
        """Another number than before means: the rows begin anew, state made from them is void."""
        return self._version

    @property
    def names(self) -> list[str]:
        """Of the tensors; empty while there is no row."""
        return list(self._held)

    @property
    def has_gap(self) -> bool:
        """Whether rows are missing before others that are here."""
        return bool(self._ahead)

    def get(self, name: str, first: int, last: int) -> torch.Tensor:
        """Returns rows ``first`` to ``last`` (not included), [N, ...], as a view.

        Args:
            name: A tensor's name as in ``messages.RowTensor``.
            first: At least ``begin``.
            last: At most ``end``.
        """
        assert self._begin <= first <= last <= self._end, "the rows are not here"
        return self._held[name][first - self._begin : last - self._begin]

    def insert(self, first: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes in the rows from position ``first`` on; those that are here already stay.

        Args:
            tensors: By name, each [N, ...]; always the same names and shapes behind N.
        """
        self._take(first, tensors)
        while self._ahead and (earliest := min(self._ahead)) <= self._end:
            self._take(earliest, self._ahead.pop(earliest))

    def skip_gap(self) -> None:
        """Gives up what is missing: the rows begin anew behind the gap."""
        first = min(self._ahead)
        self._begin = self._end = first
        self._version += 1
        self.insert(first, self._ahead.pop(first))

    def _take(self, first: int, tensors: Mapping[str, torch.Tensor]) -> None:
        num_rows = _num_rows(tensors)
        if first > self._end:
            before = self._ahead.get(first)
            if before is None or _num_rows(before) < num_rows:
                self._ahead[first] = tensors
            if len(self._ahead) > MAX_AHEAD:
                self._ahead.pop(min(self._ahead))
            return
        known = self._end - first
        if known >= num_rows:
            return
        begin, end = self._end - self._begin, first + num_rows - self._begin
        for name, tensor in tensors.items():
            self._room(name, tensor, end)[begin:end] = tensor[known:].to(self._device)
        self._end = first + num_rows

    def _room(self, name: str, like: torch.Tensor, size: int) -> torch.Tensor:
        held = self._held.get(name)
        if held is None or len(held) < size:
            room = size + max(_GROWTH, size // 2)
            grown = torch.empty(room, *like.shape[1:], dtype=like.dtype, device=self._device)
            if held is not None:
                grown[: len(held)] = held
            held = self._held[name] = grown
        return held


def _num_rows(tensors: Mapping[str, torch.Tensor]) -> int:
    return len(next(iter(tensors.values())))
