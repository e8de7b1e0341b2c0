"""Drafts that fill a block of mask tokens in one forward: what DFlash and DSpark have in common.

The target's rows enter as keys and values only, made of each row by itself: they are kept per
request, append-only. A block is the newest token, the anchor, and mask tokens behind it, at the
positions that are to be drafted; it sees those keys and its own, which are forgotten.

Shape legend: R requests, B slots of a block, K drafts, N rows, H hidden size, V the draft's
vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from paceline.drafter.block_layout import BlockLayout
from paceline.drafter.block_stack import BlockStack, Weights
from paceline.drafter.checkpoint import MASK_EMBEDDING
from paceline.drafter.kv_slots import KVSlots
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


class BlockDrafter(DraftModel):
    """A block draft with weights; subclasses choose the tokens."""

    is_stepwise = False

    def __init__(
        self, layout: BlockLayout, tensors: Mapping[str, Tensor], target: TargetParts
    ) -> None:
        """Args:
            tensors: The draft's, all on one device and floating-point ones of one dtype.
            target: On the same device, in the same dtype.

        Raises:
            ModelError: a tensor is missing or has another shape, or the target is another one.
        """
        self._layout = layout
        self._weights = Weights(tensors, layout.method)
        self._check_target(target)
        self._stack = BlockStack(layout, self._weights)
        self._embedding = (
            self._weights.take("embed_tokens.weight", layout.vocab_size, layout.hidden_size)
            if self._weights.has("embed_tokens.weight")
            else target.embedding
        )
        self._mask_embedding: Tensor | None = None
        self._head = (
            self._weights.take("lm_head.weight", layout.draft_vocab_size, layout.hidden_size)
            if self._weights.has("lm_head.weight")
            else target.lm_head
        )
        self._device = self._head.device
        self._token_ids = torch.arange(len(self._head), device=self._device)
        """The target's token of each row of the head.  # [V]"""
        if self._weights.has("d2t"):
            self._token_ids = self._token_ids + self._weights.take("d2t", len(self._head))
        self._num_ids = int(self._token_ids.max()) + 1
        self._states: dict[DraftRequest, _State] = {}
        self._cache = KVSlots()
        self._sound = torch.ones(0, dtype=torch.bool, device=self._device)
        """Of each slot, whether all of its rows were finite."""
        self.needs = RowNeeds(aux_layers=list(layout.aux_layers))
        self.hidden_size = layout.target_hidden_size
        self.vocab_size = target.vocab_size

    def _check_target(self, target: TargetParts) -> None:
        layout = self._layout
        own = [self._weights.has(f"{name}.weight") for name in ("embed_tokens", "lm_head")]
        rows = layout.vocab_size if own[0] else target.vocab_size
        problem = ""
        if layout.target_hidden_size != target.hidden_size:
            problem = (
                f"states of size {layout.target_hidden_size}, and this one has {target.hidden_size}"
            )
        elif not all(own) and layout.hidden_size != target.hidden_size:
            problem = (
                f"an embedding and a head of size {layout.hidden_size}, which this one lacks with "
                f"{target.hidden_size}"
            )
        elif max(layout.aux_layers) > target.num_layers:
            problem = (
                f"at least {max(layout.aux_layers)} layers, and this one has {target.num_layers}"
            )
        elif layout.vocab_size < target.vocab_size or layout.mask_token >= rows:
            problem = f"{layout.vocab_size} tokens, and this one has {target.vocab_size}"
        elif layout.draft_vocab_size < target.vocab_size:
            missing = [name for name in ("lm_head.weight", "d2t") if not self._weights.has(name)]
            if missing:
                raise ModelError(
                    f"this {layout.method} draft has {layout.draft_vocab_size} of the target's "
                    f"{target.vocab_size} tokens, but no {' and no '.join(missing)}, which would "
                    "say which: fetch it again"
                )
        if problem:
            raise ModelError(
                f"this {layout.method} draft was made for a target with {problem}: take the draft "
                "of this target"
            )

    def _use_mask_embedding(self) -> None:
        """Takes the embedding of mask tokens from the draft, where it has its own."""
        if self._weights.has(MASK_EMBEDDING):
            self._mask_embedding = self._weights.take(MASK_EMBEDDING, self._layout.hidden_size)

    def open(self, request: DraftRequest) -> None:
        state = _State(slot=self._cache.take())
        self._states[request] = state
        if state.slot == len(self._sound):
            self._sound = torch.cat([self._sound, self._sound.new_ones(1)])

    def close(self, request: DraftRequest) -> None:
        state = self._states.pop(request, None)
        if state is not None:
            self._cache.give_back(state.slot)

    def is_ready(self, request: DraftRequest) -> bool:
        if self._is_too_long(request, 1):
            return True
        rows, wanted = request.rows, len(request.tokens) - 1
        return rows is not None and rows.end >= wanted and wanted - self._known(request) <= CHUNK

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
        row_slots, cells, positions = numbers.to(self._device).T
        finite = projected.isfinite().all(-1)
        self._sound[row_slots[~finite]] = False
        projected = torch.where(finite[:, None], projected, 0)
        self._cache.reserve(max(state.end - state.begin for state, *_ in fed))
        # Length 0: nothing is read back.
        self._cache.begin(slots, 0, row_slots, cells[:, None], numbers.new_empty(3, 0))
        self._stack.remember(projected, positions, self._store)

    def _projected(self, rows: RowBuffer, first: int, last: int) -> Tensor:
        """Returns rows behind ``fc``, [N, H]: the verifier may have applied it."""
        if rows.has("projected"):
            return rows.get("projected", first, last)
        return self._stack.project(rows.get("aux", first, last))

    def _store(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        # What another request has left in a cell is not seen, but NaN times 0 is NaN.
        return self._cache.update(keys.nan_to_num(), values.nan_to_num(), layer)

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
        row_slots, num_cells, first, anchors = numbers.to(self._device).T
        steps = torch.arange(num_slots, device=self._device)
        tokens = first.new_full((len(requests), num_slots), self._layout.mask_token)
        tokens[:, 0] = anchors
        cells = num_cells[:, None] + steps
        self._cache.begin(slots, length, row_slots, cells, numbers.new_empty(3, 0))
        hidden = self._stack.fill(
            self._embed(tokens), first[:, None] + steps, num_cells, self._store
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
