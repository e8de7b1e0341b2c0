"""A small causal language model as the draft.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2022); Chen et al.,
"Accelerating Large Language Model Decoding with Speculative Sampling" (2023). vLLM has it in
vllm/v1/spec_decode/draft_model.py.

Drafts are the draft's most probable tokens at every temperature: without the draft's distribution
the target accepts a draft token with its own probability of it, which is highest there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from paceline import models
from paceline.drafter.config import DrafterConfig
from paceline.drafter.kv_slots import KVSlots
from paceline.drafter.model import Draft, DraftModel, DraftRequest
from paceline.errors import EnvironmentError_, ModelError

PREFILL_CHUNK = 256
"""Tokens per prefill forward, so that a long prompt does not keep other requests waiting."""


@dataclass(slots=True)
class _State:
    """What is known of one request: the cache holds the keys and values of ``tokens``."""

    slot: int
    tokens: list[int] = field(default_factory=list)
    num_checked: int = 0
    """``tokens`` up to here are committed, hence right for good."""

    def sync(self, committed: Sequence[int]) -> int:
        """Drops drafts that were not committed; returns how many committed tokens are in."""
        limit = min(len(self.tokens), len(committed))
        while self.num_checked < limit and (
            self.tokens[self.num_checked] == committed[self.num_checked]
        ):
            self.num_checked += 1
        del self.tokens[self.num_checked :]
        return self.num_checked

    def pending(self, committed: Sequence[int]) -> list[int]:
        """Returns the committed tokens to feed, never none: the last one yields the first draft."""
        if self.sync(committed) == len(committed):
            self.tokens.pop()
            self.num_checked -= 1
        return list(committed[self.num_checked :])


class CausalLMDrafter(DraftModel):
    """Any Hugging Face causal LM that keeps keys and values and has the target's vocabulary."""

    def __init__(self, config: DrafterConfig, dtype: str) -> None:
        assert config.model is not None, "checked by DrafterConfig"
        self._name = config.model
        self._dtype = getattr(torch, dtype)
        self._device = torch.device(config.device)
        self._resolved = models.resolve(config.model, dtype)
        self._states: dict[DraftRequest, _State] = {}
        self._cache = KVSlots()
        self._model: Any = None
        self._max_length = 0
        self._windows: dict[str, int | None] = {}
        """Per kind of layer, how many tokens back it looks; None: all."""

    def load(self) -> None:
        """Loads the weights; before it no request may be opened.

        Raises:
            ModelError: the model cannot be loaded, or keeps another state than keys and values.
            EnvironmentError_: the device is not there.
        """
        from transformers import AutoModelForCausalLM

        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise EnvironmentError_(
                f"drafter device is {self._device}, but torch sees no GPU; set device to cpu"
            )
        try:
            model = AutoModelForCausalLM.from_pretrained(
                self._resolved,
                dtype=self._dtype,
                # Takes the boolean masks that `_forward` makes; where a model has no such kernel,
                # transformers says so.
                attn_implementation="sdpa",
            )
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(
                f"the draft model {self._name} cannot be loaded: {' '.join(str(error).split())}"
            ) from error
        config = model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ()) - {
            "full_attention",
            "sliding_attention",
        }
        if kinds or getattr(config, "is_encoder_decoder", False):
            raise ModelError(
                f"the draft model {self._name} has layers of kind "
                f"{', '.join(sorted(kinds)) or 'encoder'}; only attention with keys and values "
                "can follow the target, choose another draft"
            )
        self._model = model.to(self._device).eval().requires_grad_(False)
        window = getattr(config, "sliding_window", None)
        default = "sliding_attention" if window else "full_attention"
        layer_types = getattr(config, "layer_types", None) or [default]
        self._windows = {
            kind: int(window) if window and kind == "sliding_attention" else None
            for kind in layer_types
        }
        self._max_length = int(getattr(config, "max_position_embeddings", 0) or 1 << 20)
        self.vocab_size = int(self._model.get_output_embeddings().weight.shape[0])
        self.tokenizer_fingerprint = models.tokenizer_fingerprint(self._resolved)

    def open(self, request: DraftRequest) -> None:
        self._states[request] = _State(slot=self._cache.take())

    def close(self, request: DraftRequest) -> None:
        state = self._states.pop(request, None)
        if state is not None:
            self._cache.give_back(state.slot)

    def is_ready(self, request: DraftRequest) -> bool:
        known = self._states[request].sync(request.tokens)
        return len(request.tokens) - known <= PREFILL_CHUNK or self._is_too_long(request, 1)

    def prepare(self, request: DraftRequest) -> None:
        known = self._states[request].sync(request.tokens)
        # The last token is left to `draft`, whose forward yields the first draft.
        piece = request.tokens[known : min(known + PREFILL_CHUNK, len(request.tokens) - 1)]
        if piece and not self._is_too_long(request, 0):
            self._forward([request], [piece], want_logits=False)

    def draft(
        self, requests: Sequence[DraftRequest], num_tokens: int, vocab_size: int
    ) -> list[Draft]:
        drafts = {request: Draft([]) for request in requests}
        # By slot, so that rows which are a range of slots need no copy of their cache.
        rows = sorted(
            (request for request in requests if not self._is_too_long(request, num_tokens)),
            key=lambda request: self._states[request].slot,
        )
        pieces = [self._states[request].pending(request.tokens) for request in rows]
        for _ in range(num_tokens if rows else 0):
            logits = self._forward(rows, pieces, want_logits=True)[:, :vocab_size]  # [R, V]
            best = logits.max(dim=-1)
            confidence = (best.values - logits.logsumexp(dim=-1)).exp().clamp(0, 1)  # [R]
            pieces = [[token] for token in best.indices.tolist()]
            for request, piece, value in zip(rows, pieces, confidence.tolist(), strict=True):
                drafts[request].tokens.extend(piece)
                drafts[request].confidence.append(value)
        return [drafts[request] for request in requests]

    def _is_too_long(self, request: DraftRequest, num_tokens: int) -> bool:
        return len(request.tokens) + num_tokens > self._max_length

    @torch.inference_mode()
    def _forward(
        self, requests: Sequence[DraftRequest], pieces: list[list[int]], want_logits: bool
    ) -> torch.Tensor:
        """Runs one forward over a piece [Q] of each request; returns logits [R, V] of its ends."""
        states = [self._states[request] for request in requests]
        sizes = torch.tensor([len(piece) for piece in pieces])  # [R]
        width = int(sizes.max())  # Q
        starts = torch.tensor([len(state.tokens) for state in states])  # [R]
        # Rows are padded on the right: padding writes behind the row's end, where nothing is read.
        input_ids = torch.tensor([p + [0] * (width - len(p)) for p in pieces])  # [R, Q]
        positions = starts[:, None] + torch.arange(width)  # [R, Q]
        self._cache.begin([state.slot for state in states], positions, self._device)
        decoder = getattr(self._model, self._model.base_model_prefix)
        hidden = decoder(
            input_ids=input_ids.to(self._device),
            # Padding may reach behind the last position that the model has; nobody reads it.
            position_ids=positions.clamp(max=self._max_length - 1).to(self._device),
            attention_mask=self._masks(positions),
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state  # [R, Q, hidden]
        for state, piece in zip(states, pieces, strict=True):
            state.tokens.extend(piece)
        if not want_logits:
            return torch.empty(0)
        ends = hidden[torch.arange(len(pieces)), sizes - 1]  # [R, hidden]
        logits: torch.Tensor = self._model.get_output_embeddings()(ends).float()
        return logits

    def _masks(self, positions: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        """Returns what each query [R, Q] may see, [R, 1, Q, L]; per kind of layer if it has two."""
        queries = positions[:, None, :, None]  # [R, 1, Q, 1]
        keys = torch.arange(int(positions.max()) + 1)  # [L]
        masks = {}
        for kind, window in self._windows.items():
            mask = keys <= queries
            if window is not None:
                mask &= keys > queries - window
            masks[kind] = mask.to(self._device)
        return masks if len(masks) > 1 else next(iter(masks.values()))
