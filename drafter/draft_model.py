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
from paceline.drafter.kv_batch import Batch
from paceline.drafter.kv_slots import KVSlots
from paceline.drafter.kv_tree import Feed, TokenTree
from paceline.drafter.model import Draft, DraftModel, DraftRequest, Path
from paceline.drafter.ranking import rank
from paceline.errors import EnvironmentError_, ModelError
from paceline.scheduler.branching import Ranking

PREFILL_CHUNK = 256
"""Tokens per prefill forward, so that a long prompt does not keep other requests waiting."""


@dataclass(slots=True)
class _State:
    """Where one request's keys and values are."""

    slot: int
    tree: TokenTree = field(default_factory=TokenTree)


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
                # Takes the boolean masks of kv_batch.py; where a model has no such kernel,
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
        self._warm_up()

    def _warm_up(self) -> None:
        """Runs a forward: the first one takes many times as long as the others, and a target that
        waits for it would no longer count on this drafter."""
        request = DraftRequest(tokens=[0] * 8)
        self.open(request)
        self.draft([request], 1, self.vocab_size)
        self.close(request)

    def open(self, request: DraftRequest) -> None:
        self._states[request] = _State(slot=self._cache.take())

    def close(self, request: DraftRequest) -> None:
        state = self._states.pop(request, None)
        if state is not None:
            self._cache.give_back(state.slot)

    def is_ready(self, request: DraftRequest) -> bool:
        known = self._states[request].tree.num_known(request.tokens)
        return len(request.tokens) - known <= PREFILL_CHUNK or self._is_too_long(request, 1)

    @torch.inference_mode()
    def prepare(self, request: DraftRequest) -> None:
        state = self._states[request]
        known = state.tree.num_known(request.tokens)
        # The last token is left to the forward that yields the first draft.
        end = min(known + PREFILL_CHUNK, len(request.tokens) - 1)
        if known < end and not self._is_too_long(request, 0):
            self._forward([state], [state.tree.feed(request.tokens[:end], [])])

    def draft(
        self, requests: Sequence[DraftRequest], num_tokens: int, vocab_size: int
    ) -> list[Draft]:
        drafts = {request: Draft([]) for request in requests}
        fitting = [request for request in requests if not self._is_too_long(request, num_tokens)]
        for _ in range(num_tokens if fitting else 0):
            paths = [Path(request, tuple(drafts[request].tokens)) for request in fitting]
            for path, ranking in zip(paths, self._rank(paths, 1, vocab_size), strict=True):
                [(token, probability)] = ranking
                drafts[path.request].tokens.append(token)
                drafts[path.request].confidence.append(probability)
        return [drafts[request] for request in requests]

    def extend(
        self, paths: Sequence[Path], num_tokens: int, num_ranked: int, vocab_size: int
    ) -> list[list[Ranking]]:
        rankings: list[list[Ranking]] = [[] for _ in paths]
        fitting = [
            index
            for index, path in enumerate(paths)
            if not self._is_too_long(path.request, len(path.tokens) + 1)
        ]
        if fitting:
            ranked = self._rank([paths[index] for index in fitting], num_ranked, vocab_size)
            for index, ranking in zip(fitting, ranked, strict=True):
                rankings[index] = [ranking]
        return rankings

    def _is_too_long(self, request: DraftRequest, num_tokens: int) -> bool:
        return len(request.tokens) + num_tokens > self._max_length

    @torch.inference_mode()
    def _rank(self, paths: Sequence[Path], num_ranked: int, vocab_size: int) -> list[Ranking]:
        """Ranks what may follow each path, at least one, in one forward."""
        indexes: dict[DraftRequest, list[int]] = {}
        for index, path in enumerate(paths):
            indexes.setdefault(path.request, []).append(index)
        # By slot, so that rows which are a range of slots need no copy of their cache.
        requests = sorted(indexes, key=lambda request: self._states[request].slot)
        states = [self._states[request] for request in requests]
        feeds = [
            state.tree.feed(request.tokens, [paths[index].tokens for index in indexes[request]])
            for request, state in zip(requests, states, strict=True)
        ]
        logits = self._model.get_output_embeddings()(self._forward(states, feeds))  # [P, V]
        ranked = rank(logits, num_ranked, vocab_size)
        order = [index for request in requests for index in indexes[request]]
        by_index = dict(zip(order, ranked, strict=True))
        return [by_index[index] for index in range(len(paths))]

    def _forward(self, states: Sequence[_State], feeds: Sequence[Feed]) -> torch.Tensor:
        """Runs one forward, the states ascending by slot; returns the paths' ends [P, hidden]."""
        length = max(state.tree.num_cells for state in states)
        slots = [state.slot for state in states]
        spare = self._cache.reserve(length)
        batch = Batch(feeds, slots, length, spare, self._windows, self._device)
        self._cache.begin(slots, length, batch.slots, batch.cells, batch.moves)
        decoder = getattr(self._model, self._model.base_model_prefix)
        masks = batch.masks
        hidden = decoder(
            input_ids=batch.input_ids,
            position_ids=batch.positions,
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state  # [R, Q, hidden]
        ends: torch.Tensor = hidden.flatten(0, 1).index_select(0, batch.ends)
        return ends
