"""What heads have in common that draft one token after the other: EAGLE-3 and native MTP.

vLLM has it in vllm/v1/spec_decode/llm_base_proposer.py. Such a head keeps keys and values of one
entry per position. Entry p is made of the target's row p and the token at p + 1, and its output
drafts the token at p + 2. Behind the last row a head goes on with its own hidden states: these
entries stand in, until the true rows come and overwrite them.

Shape legend: R requests, Q entries of the widest one, N entries of all, L cells that the forward
may see, H hidden size, V rows of the draft's head, K steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.drafter.kv_slots import KVSlots
from paceline.drafter.layers import Rotary, View
from paceline.drafter.model import Draft, DraftModel, DraftRequest, Path
from paceline.drafter.rows import RowBuffer
from paceline.scheduler.branching import Ranking

PIECE = 256
"""Entries per forward of ``prepare``, so that a long prompt does not keep others waiting."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one request that become entries."""

    rows: RowBuffer
    first: int
    last: int
    """Not included."""

    def get(self, name: str) -> Tensor:
        """Returns the tensor of these rows, [N, ...]."""
        return self.rows.get(name, self.first, self.last)


@dataclass(slots=True)
class _State:
    """Of one request. Position p has cell p - ``begin``."""

    slot: int
    version: int = 0
    begin: int = 0
    end: int = 0
    """Entries before this position were made of true rows."""
    is_broken: bool = False
    """Its rows, or what was made of them, are not finite."""


class SequentialDrafter(DraftModel):
    """Drafts with the head that a subclass describes. Not for methods with other state.

    A subclass calls ``__init__`` and sets ``needs``, ``hidden_size`` and ``vocab_size``.
    """

    def __init__(
        self,
        rotary: Rotary,
        *,
        device: torch.device,
        max_length: int,
        windows: Collection[int | None] = (None,),
        token_ids: Tensor | None = None,
    ) -> None:
        """Args:
        rotary: Of the head's layers.
        max_length: Tokens that a text may have, drafts included.
        windows: Those of the layers' attention.
        token_ids: The target's token of each row of the head, [V]; None: the same.
        """
        self.device = str(device)
        self._torch_device = device
        self._rotary = rotary
        self._max_length = max_length
        self._windows = tuple(windows)
        self._token_ids = token_ids
        self._cache = KVSlots()
        self._states: dict[DraftRequest, _State] = {}

    @abstractmethod
    def first_hidden(self, pieces: Sequence[Piece]) -> Tensor:
        """Returns what the first step gets of the rows of ``pieces``, one after the other [N, H].

        In the head's dtype and on its device; not finite where the rows are not.
        """

    @abstractmethod
    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Returns the embeddings of ``tokens`` [R, Q] for entries at ``positions``: [R, Q, H]."""

    @abstractmethod
    def run_layers(self, hidden: Tensor, embeds: Tensor, view: View) -> Tensor:
        """Returns the residual stream [R, Q, H] behind the last layer.

        Args:
            hidden: From ``first_hidden``, or what ``finish`` fed back; 0 where there is padding.
            embeds: [R, Q, H].
        """

    @abstractmethod
    def finish(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what the next step gets, and what the head is applied to, for ``x`` [R, H]."""

    @abstractmethod
    def logits(self, x: Tensor) -> Tensor:
        """Applies the head to ``x`` [R, H]: [R, V]."""

    @abstractmethod
    def blank_rows(self, num_rows: int) -> Mapping[str, Tensor]:
        """Returns the rows of a text that nobody has, for ``warm_up``."""

    def warm_up(self) -> None:
        """Drafts once: the first forward takes many times as long as the others."""
        rows = RowBuffer(device=self._torch_device)
        rows.insert(0, self.blank_rows(7))
        request = DraftRequest(tokens=[0] * 8, rows=rows)
        self.open(request)
        self.draft([request], 2, self.vocab_size)
        self.close(request)

    def open(self, request: DraftRequest) -> None:
        assert request.rows is not None, "the session gives rows to a method that needs them"
        begin = request.rows.begin
        self._states[request] = _State(self._cache.take(), request.rows.version, begin, begin)

    def close(self, request: DraftRequest) -> None:
        state = self._states.pop(request, None)
        if state is not None:
            self._cache.wipe(state.slot)
            self._cache.give_back(state.slot)

    def is_ready(self, request: DraftRequest) -> bool:
        rows, _ = self._sync(request)
        return rows.end >= len(request.tokens) - 1 and not self.has_work(request)

    def has_work(self, request: DraftRequest) -> bool:
        rows, state = self._sync(request)
        if state.is_broken or self._is_too_long(request, 1):
            return False
        return min(rows.end, len(request.tokens) - 1) - state.end > PIECE

    @torch.inference_mode()
    def prepare(self, request: DraftRequest) -> None:
        if self.has_work(request):
            rows, state = self._sync(request)
            piece = Piece(rows, state.end, state.end + PIECE)
            _Pass(self, [request], [state], [piece], 0).first()
            state.end = piece.last

    @torch.inference_mode()
    def draft(
        self, requests: Sequence[DraftRequest], num_tokens: int, vocab_size: int
    ) -> list[Draft]:
        drafts = {request: Draft([]) for request in requests}
        fitting = [request for request in requests if self._can_draft(request, num_tokens)]
        if fitting:
            # By slot, so that rows which are a range of slots need no copy of their cache.
            fitting.sort(key=lambda request: self._states[request].slot)
            made = self._draft(fitting, num_tokens, vocab_size)
            drafts.update(zip(fitting, made, strict=True))
        return [drafts[request] for request in requests]

    def extend(
        self, paths: Sequence[Path], num_tokens: int, num_ranked: int, vocab_size: int
    ) -> list[list[Ranking]]:
        """Ranks nothing: without the target's rows there is nothing to draft from."""
        return [[] for _ in paths]

    def _draft(
        self, requests: Sequence[DraftRequest], num_tokens: int, vocab_size: int
    ) -> list[Draft]:
        states, pieces = [], []
        for request in requests:
            rows, state = self._sync(request)
            last = len(request.tokens) - 1
            # The last row's output is wanted, though its entry may be there already.
            pieces.append(Piece(rows, min(state.end, last - 1), last))
            states.append(state)
        forward = _Pass(self, requests, states, pieces, num_tokens - 1)
        hidden, x = self.finish(forward.first())
        chosen = []
        for step in range(num_tokens):
            tokens, result = self._choose(self.logits(x), vocab_size)
            chosen.append(result)
            if step < num_tokens - 1:
                hidden, x = self.finish(forward.next(hidden, tokens))
        for state, piece in zip(states, pieces, strict=True):
            state.end = piece.last
        drafts = []
        # All results come to the host in one transfer.
        for state, steps in zip(states, torch.stack(chosen, dim=1).tolist(), strict=True):
            state.is_broken = not all(is_finite for _, _, is_finite in steps)
            drafts.append(
                Draft([])
                if state.is_broken
                else Draft([int(token) for token, _, _ in steps], [value for _, value, _ in steps])
            )
        return drafts

    def _choose(self, logits: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
        """Returns the most probable tokens below ``vocab_size`` [R], and with each its
        probability and whether all logits are finite: [R, 3], in doubles, which hold tokens."""
        logits = logits.float()
        is_finite = logits.isfinite().all(dim=-1)
        if self._token_ids is None:
            logits = logits[:, :vocab_size]
        else:
            logits = logits.masked_fill(self._token_ids >= vocab_size, -torch.inf)
        rows = logits.argmax(dim=-1, keepdim=True)  # [R, 1]
        values = logits.softmax(dim=-1).gather(1, rows)[:, 0]
        tokens = rows[:, 0] if self._token_ids is None else self._token_ids[rows[:, 0]]
        return tokens, torch.stack([tokens.double(), values.double(), is_finite.double()], dim=-1)

    def _can_draft(self, request: DraftRequest, num_tokens: int) -> bool:
        rows, state = self._sync(request)
        has_rows = rows.begin < len(request.tokens) - 1 <= rows.end
        return has_rows and not state.is_broken and not self._is_too_long(request, num_tokens)

    def _is_too_long(self, request: DraftRequest, num_tokens: int) -> bool:
        return len(request.tokens) + num_tokens > self._max_length

    def _sync(self, request: DraftRequest) -> tuple[RowBuffer, _State]:
        """Returns the request's rows and state; what was made of void rows is dropped."""
        rows, state = request.rows, self._states[request]
        assert rows is not None, "checked in open"
        if rows.version != state.version:
            self._cache.wipe(state.slot)
            state = _State(state.slot, rows.version, rows.begin, rows.begin)
            self._states[request] = state
        return rows, state


class _Pass:
    """The forwards over some requests: one over their rows, and one for each further step.

    Padding stands on the right. It writes to the spare cell, which nobody sees, and sees the first
    one: what sees nothing would be NaN.
    """

    def __init__(
        self,
        drafter: SequentialDrafter,
        requests: Sequence[DraftRequest],
        states: Sequence[_State],
        pieces: Sequence[Piece],
        num_more: int,
    ) -> None:
        """Args:
        states: Ascending by slot.
        pieces: Of each request.
        num_more: Steps behind the first.
        """
        self._drafter, self._pieces = drafter, pieces
        self._slots = [state.slot for state in states]
        sizes = [piece.last - piece.first for piece in pieces]
        width = max(sizes)
        ends = [piece.last - state.begin for piece, state in zip(pieces, states, strict=True)]
        self._length = max(ends) + num_more  # L
        spare = drafter._cache.reserve(self._length)
        places: list[int] = []
        tokens, positions, cells = [], [], []
        for row, (request, state, piece) in enumerate(zip(requests, states, pieces, strict=True)):
            pad = width - sizes[row]
            first, last = piece.first, piece.last
            tokens += request.tokens[first + 1 : last + 1] + [0] * pad
            positions += [*range(first, last), *[0] * pad]
            cells += [*range(first - state.begin, last - state.begin), *[spare] * pad]
            places += range(row * width, row * width + sizes[row])
        end_places = [row * width + size - 1 for row, size in enumerate(sizes)]
        parts = [tokens, positions, cells, self._slots, end_places, places]
        device = drafter._torch_device
        # All of it goes over in one copy: the host never waits for the device here.
        packed = torch.tensor(
            [number for part in parts for number in part], pin_memory=device.type == "cuda"
        )
        there = torch.split(packed.to(device, non_blocking=True), [len(part) for part in parts])
        self._tokens, self._positions, self._cells = (
            part.view(len(pieces), width) for part in there[:3]
        )
        self._rows, self._ends, self._places = there[3:]
        self._seen = torch.where(self._cells == spare, 0, self._cells)
        self._keys = torch.arange(self._length, device=device)
        self._moves = self._rows.new_empty(3, 0)

    def first(self) -> Tensor:
        """Makes the rows' entries; returns the stream at each request's last one, [R, H]."""
        rows = self._drafter.first_hidden(self._pieces)  # [N, H]
        shape = self._tokens.shape
        hidden = rows.new_zeros(shape.numel(), rows.shape[-1])
        hidden = hidden.index_copy(0, self._places, rows).view(*shape, -1)
        out = self._forward(hidden, self._tokens).flatten(0, 1).index_select(0, self._ends)
        # The next step follows on each request's last entry.
        self._positions, self._cells = (
            part.flatten().index_select(0, self._ends)[:, None]
            for part in (self._positions, self._cells)
        )
        return out

    def next(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Makes the next entries, of ``hidden`` [R, H] and ``tokens`` [R]; returns [R, H]."""
        self._positions, self._cells = self._positions + 1, self._cells + 1
        self._seen = self._cells
        return self._forward(hidden[:, None], tokens[:, None])[:, 0]

    def _forward(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        drafter = self._drafter
        drafter._cache.begin(self._slots, self._length, self._rows, self._cells, self._moves)
        seen = self._seen[..., None]  # [R, Q, 1]
        masks = {}
        for window in drafter._windows:
            mask = self._keys <= seen  # [R, Q, L]
            if window is not None:
                mask &= self._keys > seen - window
            masks[window] = mask[:, None]
        view = View(drafter._cache, drafter._rotary(self._positions), masks)
        return drafter.run_layers(hidden, drafter.embed(tokens, self._positions), view)
