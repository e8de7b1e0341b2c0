"""Drafts that fill a block of mask tokens in one forward: what DFlash and DSpark have in common.

The target's rows enter as keys and values only, made of each row by itself: they are kept per
request, append-only. A block is the newest token, the anchor, and mask tokens behind it, at the
positions that are to be drafted; it sees those keys and its own, which are forgotten.

Shape legend: R requests, B slots of a block, K drafts, N rows, H hidden size, V the draft's
vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paceline.drafter.block_layout import BlockLayout
from paceline.drafter.block_stack import BlockStack
from paceline.drafter.block_weights import Weights
from paceline.drafter.checkpoint import MASK_EMBEDDING, Checkpoint
from paceline.drafter.kv_slots import KVSlots
from paceline.drafter.layers import Rotary
from paceline.drafter.model import Draft, DraftModel, DraftRequest, Path
from paceline.drafter.rows import RowBuffer
from paceline.drafter.target_parts import TargetParts
from paceline.errors import ModelError
from paceline.messages import RowNeeds
from paceline.scheduler.branching import Ranking

CHUNK = 256
"""Rows that are taken in at a time, so that a long prompt does not keep other requests waiting."""


@dataclass(slots=True)
class _State:
    """What is kept of one request: its rows from ``begin`` to ``end``, from the slot's cell 0."""

    slot: int
    begin: int = 0
    end: int = 0
    version: int = -1
    """Of the rows; they are counted from 0."""


class _FiniteSlots(KVSlots):
    """Keeps numbers only: what another request has left in a cell is not seen, but NaN times 0 is
    NaN."""

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        return super().update(keys.nan_to_num(), values.nan_to_num(), layer_idx)


class BlockDrafter(DraftModel):
    """A block draft with weights; subclasses choose the tokens."""

    is_stepwise = False

    def __init__(
        self,
        layout: BlockLayout,
        draft: Checkpoint,
        target: TargetParts,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Loads the draft.

        Args:
            target: On ``device``, in ``dtype``.

        Raises:
            ModelError: a tensor is missing or has another shape, or the target is another one.
        """
        self.device = str(device)
        self._torch_device, self._dtype = device, dtype
        self._layout = layout
        self._weights = Weights(draft, device, dtype)
        self._check_target(target)
        hidden_size, num_ids = layout.shape.hidden_size, layout.draft_vocab_size
        with torch.device("meta"):
            self._stack = BlockStack(layout)
        self._weights.load(self._stack)
        if layout.value_scale != 1.0:
            for name, parameter in self._stack.named_parameters():
                if ".v_proj." in name:
                    parameter.mul_(layout.value_scale)
        self._rotary = Rotary(layout.rope, layout.shape.head_dim, device)
        self._embedding = target.embedding
        if "embed_tokens.weight" in self._weights:
            self._embedding = self._weights.take(
                "embed_tokens.weight", layout.vocab_size, hidden_size
            )
        self._mask_embedding: Tensor | None = None
        self._head = target.lm_head
        if "lm_head.weight" in self._weights:
            self._head = self._weights.take("lm_head.weight", num_ids, hidden_size)
        self._token_ids = torch.arange(len(self._head), device=device)
        """The target's token of each row of the head.  # [V]"""
        # As in vLLM: a head with a row for each of the target's tokens needs no map.
        if "d2t" in self._weights and len(self._head) != target.vocab_size:
            self._token_ids = self._token_ids + self._weights.take("d2t", len(self._head))
        self._num_ids = int(self._token_ids.max()) + 1
        self._states: dict[DraftRequest, _State] = {}
        self._cache = _FiniteSlots()
        self._sound = torch.ones(0, dtype=torch.bool, device=device)
        """Of each slot, whether all of its rows were finite."""
        self.needs = RowNeeds(aux_layers=list(layout.aux_layers))
        self.hidden_size = layout.target_hidden_size
        self.vocab_size = target.vocab_size

    def _check_target(self, target: TargetParts) -> None:
        layout, size = self._layout, self._layout.shape.hidden_size
        own = [f"{name}.weight" in self._weights for name in ("embed_tokens", "lm_head")]
        num_rows = layout.vocab_size if own[0] else target.vocab_size
        problem = ""
        if layout.target_hidden_size != target.hidden_size:
            problem = f"states of size {layout.target_hidden_size} and not {target.hidden_size}"
        elif not all(own) and size != target.hidden_size:
            problem = f"an embedding and a head of size {size} and not {target.hidden_size}"
        elif max(layout.aux_layers) > target.num_layers:
            problem = f"{max(layout.aux_layers)} layers or more and not {target.num_layers}"
        elif layout.vocab_size < target.vocab_size or layout.mask_token >= num_rows:
            problem = f"{layout.vocab_size} tokens and not {target.vocab_size}"
        if problem:
            raise ModelError(
                f"this {layout.method} draft was made for a target with {problem}: take the draft "
                "of this target"
            )
        if layout.draft_vocab_size < target.vocab_size:
            for name in ("lm_head.weight", "d2t"):
                if name not in self._weights:
                    raise ModelError(
                        f"this {layout.method} draft has {layout.draft_vocab_size} of the target's "
                        f"{target.vocab_size} tokens, but no {name} that says which: fetch it again"
                    )

    def _use_mask_embedding(self) -> None:
        """Takes the embedding of mask tokens from the draft, where it has its own."""
        if MASK_EMBEDDING in self._weights:
            size = self._layout.shape.hidden_size
            self._mask_embedding = self._weights.take(MASK_EMBEDDING, size)

    def warm_up(self) -> None:
        """Drafts once: the first forward takes many times as long as the others."""
        rows = RowBuffer(device=self._torch_device)
        width = self.hidden_size * len(self._layout.aux_layers)
        rows.insert(0, {"aux": torch.zeros(7, width)})
        request = DraftRequest(tokens=[0] * 8, rows=rows)
        self.open(request)
        self.draft([request], 2, self.vocab_size)
        self.close(request)

    def open(self, request: DraftRequest) -> None:
        state = _State(slot=self._cache.take())
        self._states[request] = state
        if state.slot == len(self._sound):
            self._sound = torch.cat([self._sound, self._sound.new_ones(1)])

    def close(self, request: DraftRequest) -> None:
        state = self._states.pop(request, None)
        if state is not None:
            self._cache.wipe(state.slot)
            self._cache.give_back(state.slot)

    def is_ready(self, request: DraftRequest) -> bool:
        rows = request.rows
        is_here = rows is not None and rows.end >= len(request.tokens) - 1
        return is_here and not self.has_work(request)

    def has_work(self, request: DraftRequest) -> bool:
        rows = request.rows
        if rows is None or self._is_too_long(request, 1):
            return False
        return min(rows.end, len(request.tokens) - 1) - self._known(request) > CHUNK

    @torch.inference_mode()
    def prepare(self, request: DraftRequest) -> None:
        if request.rows is not None and not self._is_too_long(request, 0):
            self._take_in([request])

    @torch.inference_mode()
    def draft(
        self, requests: Sequence[DraftRequest], num_tokens: int, vocab_size: int
    ) -> list[Draft]:
        drafts = {request: Draft([]) for request in requests}
        num_tokens = min(num_tokens, self._layout.max_tokens)
        fitting = [request for request in requests if self._may_draft(request, num_tokens)]
        if fitting:
            # By slot, so that rows which are a range of slots need no copy of their cache.
            fitting.sort(key=lambda request: self._states[request].slot)
            self._take_in(fitting)
            for request, found in zip(
                fitting, self._draft(fitting, num_tokens, vocab_size), strict=True
            ):
                drafts[request] = found
        return [drafts[request] for request in requests]

    def extend(
        self, paths: Sequence[Path], num_tokens: int, num_ranked: int, vocab_size: int
    ) -> list[list[Ranking]]:
        """Ranks nothing: the rows of tokens that are not committed are not here."""
        return [[] for _ in paths]

    @abstractmethod
    def _choose(
        self, hidden: Tensor, anchors: Tensor, allowed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Chooses the drafts of blocks.

        Args:
            hidden: What the slots that draft have come to.  # [R, K, H]
            anchors: The token before the first draft.  # [R]
            allowed: Which rows of the head may be drafted; None: all.  # [V]

        Returns: The target's tokens, their confidence, and whether their logits were finite,
            [R, K] each.
        """

    def _logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self._head) * self._layout.logit_scale

    def _is_too_long(self, request: DraftRequest, num_tokens: int) -> bool:
        return len(request.tokens) + num_tokens > self._layout.max_positions

    def _may_draft(self, request: DraftRequest, num_tokens: int) -> bool:
        rows, wanted = request.rows, len(request.tokens) - 1
        return (
            rows is not None
            and rows.begin <= wanted <= rows.end
            and wanted - self._known(request) <= CHUNK
            and not self._is_too_long(request, num_tokens)
        )

    def _known(self, request: DraftRequest) -> int:
        """One behind the last row that is taken in, of the rows as they are now."""
        state, rows = self._states[request], request.rows
        assert rows is not None
        return state.end if state.version == rows.version else rows.begin

    def _take_in(self, requests: Sequence[DraftRequest]) -> None:
        """Makes keys and values of at most ``CHUNK`` rows more of each request."""
        fed: list[tuple[_State, int, Tensor]] = []
        for request in requests:
            state, rows = self._states[request], request.rows
            assert rows is not None
            if state.version != rows.version:
                state.version, state.begin, state.end = rows.version, rows.begin, rows.begin
                self._sound[state.slot] = True
            first = state.end
            last = min(rows.end, len(request.tokens) - 1, first + CHUNK)
            if last > first:
                fed.append((state, first, self._projected(rows, first, last)))
                state.end = last
        if not fed:
            return
        projected = torch.cat([part for *_, part in fed])  # [N, H]
        counts = [len(part) for *_, part in fed]
        slots = [state.slot for state, *_ in fed]
        numbers = torch.tensor(
            [
                [state.slot, position - state.begin, position]
                for (state, first, _), count in zip(fed, counts, strict=True)
                for position in range(first, first + count)
            ]
        )
        row_slots, cells, positions = numbers.to(self._torch_device).T
        finite = projected.isfinite().all(-1)
        self._sound[row_slots[~finite]] = False
        projected = torch.where(finite[:, None], projected, 0)
        self._cache.reserve(max(state.end - state.begin for state, *_ in fed))
        # Length 0: nothing is read back.
        self._cache.begin(slots, 0, row_slots, cells[:, None], numbers.new_empty(3, 0))
        self._stack.remember(projected, positions, self._rotary, self._cache)

    def _projected(self, rows: RowBuffer, first: int, last: int) -> Tensor:
        """Returns rows behind ``fc``, [N, H]: the verifier may have applied it."""
        if "projected" in rows.names:
            return rows.get("projected", first, last).to(self._dtype)
        projected: Tensor = self._stack.fc(rows.get("aux", first, last).to(self._dtype))
        return projected

    def _draft(
        self, requests: Sequence[DraftRequest], num_tokens: int, vocab_size: int
    ) -> list[Draft]:
        """Runs one forward; the requests ascend by slot, and their rows are taken in."""
        num_slots = self._layout.first_slot + num_tokens
        states = [self._states[request] for request in requests]
        slots = [state.slot for state in states]
        length = max(state.end - state.begin for state in states) + num_slots
        self._cache.reserve(length)
        numbers = torch.tensor(
            [
                (state.slot, state.end - state.begin, state.end, request.tokens[-1])
                for state, request in zip(states, requests, strict=True)
            ]
        )
        row_slots, num_cells, first, anchors = numbers.to(self._torch_device).T
        steps = torch.arange(num_slots, device=self._torch_device)
        tokens = first.new_full((len(requests), num_slots), self._layout.mask_token)
        tokens[:, 0] = anchors
        cells = num_cells[:, None] + steps
        self._cache.begin(slots, length, row_slots, cells, numbers.new_empty(3, 0))
        hidden = self._stack(
            self._embed(tokens), first[:, None] + steps, num_cells, self._rotary, self._cache
        )
        allowed = self._token_ids < vocab_size if vocab_size < self._num_ids else None
        chosen, confidence, finite = self._choose(
            hidden[:, self._layout.first_slot :], anchors, allowed
        )
        is_sound = finite.all(-1) & self._sound[row_slots]
        # All results come to the host in one transfer.
        found = torch.stack([chosen.double(), confidence.double()], -1)  # [R, K, 2]
        found = torch.where(is_sound[:, None, None], found, -1.0)
        return [
            Draft([int(token) for token, _ in block], [value for _, value in block])
            if block[0][0] >= 0
            else Draft([])
            for block in found.tolist()
        ]

    def _embed(self, tokens: Tensor) -> Tensor:  # [R, B] to [R, B, H]
        embedded = functional.embedding(tokens, self._embedding)
        if self._mask_embedding is None:
            return embedded
        is_mask = tokens == self._layout.mask_token
        return torch.where(is_mask[..., None], self._mask_embedding, embedded)


def best(logits: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the first of the most probable rows of the head, its probability, and whether the
    logits are finite.

    Args:
        logits: # [..., V]
        allowed: # [V]
    """
    finite = logits.isfinite().all(-1)
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    highest, index = logits.float().max(-1)
    probability = (highest - logits.float().logsumexp(-1)).exp().clamp(0, 1)
    return index, probability, finite
