"""Where the rows of one verifier come in: each to its request, and to the store of blocks.

Rows and the messages of the control link overtake each other. Rows of a request that is not open
yet are kept for a while; those of one that was closed look the same from here, and go when their
place is needed.
"""

from __future__ import annotations

import logging
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from paceline.drafter.model import DraftRequest
from paceline.drafter.row_store import Block, RowStore
from paceline.drafter.rows import RowBuffer
from paceline.messages import Rows, RowTensor

logger = logging.getLogger("paceline.drafter")

MAX_EARLY = 64
"""Requests of which rows are kept that nobody has opened yet."""
MAX_EARLY_PIECES = 64
"""Messages of rows of each of them."""
MAX_PARTS = 1024
"""Rows that wait for the heads of another rank."""


@dataclass(eq=False, slots=True)
class Piece:
    """The rows of one message."""

    first: int
    input_ids: list[int]
    tensors: Block


@dataclass(eq=False, slots=True)
class _Place:
    """One open request."""

    request: DraftRequest
    rows: RowBuffer
    hashes: list[bytes] = field(default_factory=list)
    num_stored: int = 0
    """Blocks from the front that the store has had."""


class RowInbox:
    """Keeps ``DraftRequest.rows`` of one verifier's requests up to date."""

    def __init__(self, device: torch.device | str, max_store_bytes: int) -> None:
        self._device = device
        self._places: dict[int, _Place] = {}
        self._early: OrderedDict[int, list[Piece]] = OrderedDict()
        self._parts: OrderedDict[tuple[int, int], dict[int, Piece]] = OrderedDict()
        self.store = RowStore(max_store_bytes)
        self.block_size = 0
        """Tokens of a block of the store; 0: nothing is stored."""
        self.num_ranks = 1
        """Ranks whose parts make the rows whole: keys and values of some heads each."""
        self.num_dropped = 0
        """Messages that contradicted their request's text."""
        self.num_skipped = 0
        """Gaps that were given up."""

    def open(
        self, handle: int, request: DraftRequest, num_computed: int, hashes: Sequence[bytes]
    ) -> None:
        """Begins to collect rows for ``request``.

        Args:
            num_computed: Tokens at the front of which no rows will come: the target has them in
                its prefix cache, or computed them before this drafter was told.
            hashes: The target's keys of the text's full blocks, first block first.
        """
        blocks = self._stored(hashes, num_computed)
        size = self.block_size
        rows = RowBuffer(num_computed - len(blocks) * size, self._device)
        for number, block in enumerate(blocks):
            rows.insert(rows.begin + number * size, block)
        self._enter(handle, _Place(request, rows, list(hashes)))

    def reopen(
        self, handle: int, request: DraftRequest, rows: RowBuffer, hashes: Sequence[bytes]
    ) -> None:
        """Goes on with the rows of a request that is opened again with the same text."""
        self._enter(handle, _Place(request, rows, list(hashes)))

    def close(self, handle: int) -> None:
        """Stops collecting; the blocks in the store stay."""
        self._places.pop(handle, None)

    def forget(self) -> None:
        """Drops everything: the verifier has gone, or another one has taken its place."""
        self._places.clear()
        self._early.clear()
        self._parts.clear()
        self.store.clear()

    def flush(self) -> None:
        """What is stored will not be asked for again, or is no longer what the target computes."""
        self.store.clear()
        for place in self._places.values():
            place.num_stored = len(place.hashes)

    def add_hashes(self, handle: int, hashes: Sequence[bytes]) -> None:
        """The text has grown by full blocks."""
        if (place := self._places.get(handle)) is not None:
            place.hashes.extend(hashes)
            self._store(place)

    def take(self, message: Rows, frames: Sequence[bytes]) -> None:
        """Takes in rows whose tensors are ``frames``."""
        piece = Piece(
            message.first_position, message.input_ids, tensors_of(message.tensors, frames)
        )
        if self.num_ranks > 1:
            whole = self._join(message, piece)
            if whole is None:
                return
            piece = whole
        if (place := self._places.get(message.handle)) is not None:
            self._insert(place, piece)
            return
        early = self._early.setdefault(message.handle, [])
        if len(early) < MAX_EARLY_PIECES:
            early.append(piece)
        if len(self._early) > MAX_EARLY:
            self._early.popitem(last=False)

    def is_complete(self, handle: int) -> bool:
        """Whether there is a row for every token but the newest one."""
        place = self._places[handle]
        return place.rows.end >= len(place.request.tokens) - 1

    def give_up(self, handle: int) -> None:
        """What is missing will not come: goes on behind the gap, if there is something behind."""
        rows = self._places[handle].rows
        if rows.has_gap:
            rows.skip_gap()
            self.num_skipped += 1

    def _enter(self, handle: int, place: _Place) -> None:
        place.request.rows = place.rows
        self._places[handle] = place
        for piece in self._early.pop(handle, ()):
            self._insert(place, piece)

    def _insert(self, place: _Place, piece: Piece) -> None:
        end = piece.first + len(piece.input_ids)
        known = place.request.tokens[piece.first : end]
        if known != piece.input_ids[: len(known)]:
            self.num_dropped += 1
            logger.warning(
                "dropped rows %d to %d of a request: they are another text's", piece.first, end - 1
            )
            return
        place.rows.insert(piece.first, piece.tensors)
        self._store(place)

    def _join(self, message: Rows, piece: Piece) -> Piece | None:
        """Puts the parts of all ranks together; None until the last one is here."""
        key = message.handle, message.first_position
        parts = self._parts.setdefault(key, {})
        parts[message.first_head] = piece
        if len(self._parts) > MAX_PARTS:
            self._parts.popitem(last=False)
        if len(parts) < self.num_ranks:
            return None
        self._parts.pop(key, None)
        ordered = [parts[head] for head in sorted(parts)]
        names = dict.fromkeys(name for part in ordered for name in part.tensors)
        tensors = {
            name: torch.cat([part.tensors[name] for part in ordered if name in part.tensors], 1)
            for name in names
        }
        return Piece(piece.first, piece.input_ids, tensors)

    def _stored(self, hashes: Sequence[bytes], num_computed: int) -> list[Block]:
        """Returns the blocks right before ``num_computed`` tokens, as many as are in the store."""
        blocks: list[Block] = []
        if self.block_size and num_computed % self.block_size == 0:
            for block_hash in reversed(hashes[: num_computed // self.block_size]):
                block = self.store.get(block_hash)
                if block is None:
                    break
                blocks.append(block)
        return blocks[::-1]

    def _store(self, place: _Place) -> None:
        """Stores the blocks whose rows are all here."""
        rows, size = place.rows, self.block_size
        if not size:
            return
        place.num_stored = max(place.num_stored, -(-rows.begin // size))
        while place.num_stored < len(place.hashes):
            first = place.num_stored * size
            if first + size > rows.end:
                return
            block = {name: rows.get(name, first, first + size) for name in rows.names}
            self.store.put(place.hashes[place.num_stored], block)
            place.num_stored += 1


_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def tensors_of(described: Sequence[RowTensor], frames: Sequence[bytes]) -> dict[str, torch.Tensor]:
    """Returns the tensors that ``frames`` hold, as views; the codec has compared the sizes."""
    tensors = {}
    for tensor, frame in zip(described, frames, strict=True):
        dtype = _DTYPES[tensor.dtype]
        if tensor.num_bytes == 0:
            tensors[tensor.name] = torch.empty(tensor.shape, dtype=dtype)
            continue
        with warnings.catch_warnings():
            # They are read only, and nobody writes to them.
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            tensors[tensor.name] = torch.frombuffer(frame, dtype=dtype).view(tensor.shape)
    return tensors
