"""Slow and obvious: what a draft must be, computed anew from the whole text each time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from paceline.drafter.config import DrafterConfig
from paceline.drafter.draft_model import CausalLMDrafter
from paceline.drafter.model import Draft, DraftRequest


def lookup(
    text: Sequence[int], shortest: int, longest: int, num_tokens: int, vocab_size: int
) -> list[int]:
    """Prompt lookup by scanning: the longest suffix first, its latest occurrence first."""
    for size in range(longest, shortest - 1, -1):
        if size >= len(text):
            continue
        suffix = list(text[-size:])
        for start in range(len(text) - size - 1, -1, -1):
            if list(text[start : start + size]) == suffix:
                return _copy(text, start + size, num_tokens, vocab_size)
    return []


def _copy(text: Sequence[int], source: int, num_tokens: int, vocab_size: int) -> list[int]:
    """Token by token, each appended before the next one is read."""
    longer = list(text)
    for offset in range(num_tokens):
        token = longer[source + offset]
        if token >= vocab_size:
            break
        longer.append(token)
    return longer[len(text) :]


class Greedy:
    """Hugging Face's own forward over the whole text, without a cache, one request at a time."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def probabilities(self, text: Sequence[int], vocab_size: int) -> torch.Tensor:
        """Returns those of the tokens below ``vocab_size`` behind ``text``, [V]."""
        logits: torch.Tensor = self._model(
            input_ids=torch.tensor([list(text)]), use_cache=False
        ).logits
        return logits[0, -1, :vocab_size].softmax(-1)

    def continuation(
        self, text: Sequence[int], num_tokens: int, vocab_size: int
    ) -> tuple[list[int], list[float]]:
        """Returns the most probable tokens below ``vocab_size``, and the probability of each."""
        tokens: list[int] = []
        confidence: list[float] = []
        for _ in range(num_tokens):
            probabilities = self.probabilities([*text, *tokens], vocab_size)
            tokens.append(int(probabilities.argmax()))
            confidence.append(float(probabilities.max()))
        return tokens, confidence


def load_drafter(folder: Path) -> CausalLMDrafter:
    """Returns the real drafter, loaded."""
    config = DrafterConfig(name="d", method="draft_model", model=str(folder))
    drafter = CausalLMDrafter(config, "float32")
    drafter.load()
    return drafter


def draft_ready(
    drafter: CausalLMDrafter, requests: Sequence[DraftRequest], k: int, vocab_size: int
) -> list[Draft]:
    """Prepares until every request is ready, as the service does, then drafts for all at once."""
    for request in requests:
        while not drafter.is_ready(request):
            drafter.prepare(request)
    return drafter.draft(requests, k, vocab_size)


def assert_is_greedy(
    greedy: Greedy, request: DraftRequest, draft: Draft, k: int, vocab_size: int
) -> None:
    """Compares with the reference; the confidences in float32's precision."""
    tokens, confidence = greedy.continuation(request.tokens, k, vocab_size)
    assert draft.tokens == tokens
    torch.testing.assert_close(
        torch.tensor(draft.confidence), torch.tensor(confidence), rtol=1e-3, atol=1e-4
    )
