"""Extending paths in tests, and what their rankings must be."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from paceline.drafter.draft_model import CausalLMDrafter
from paceline.drafter.model import DraftRequest, Path
from paceline.scheduler.branching import Ranking
from tests.unit.drafter.kinds import VOCAB
from tests.unit.drafter.reference import Greedy

RANKED = 5
Paths = Sequence[tuple[DraftRequest, tuple[int, ...]]]


def new_request(drafter: CausalLMDrafter, rng: random.Random, size: int) -> DraftRequest:
    """Returns an opened request with a random text of ``size`` tokens."""
    request = DraftRequest(rng.choices(range(VOCAB), k=size))
    drafter.open(request)
    return request


def extend_ready(
    drafter: CausalLMDrafter, paths: Paths, num_ranked: int = RANKED, vocab_size: int = VOCAB
) -> list[list[Ranking]]:
    """Prepares until every request is ready, then ranks behind all paths at once."""
    for request, _ in paths:
        while not drafter.is_ready(request):
            drafter.prepare(request)
    behind = [Path(request, tokens) for request, tokens in paths]
    return drafter.extend(behind, 1, num_ranked, vocab_size)


def assert_is_ranking(
    greedy: Greedy,
    text: Sequence[int],
    ranking: Ranking,
    num_ranked: int = RANKED,
    vocab_size: int = VOCAB,
) -> None:
    """Compares with the model run anew over the whole ``text``; two tokens that are as probable to
    within rounding may stand in either order."""
    probabilities = greedy.probabilities(text, vocab_size)
    best = probabilities.topk(min(num_ranked, len(probabilities)))
    tokens = [token for token, _ in ranking]
    assert len(set(tokens)) == len(best.indices)
    values = torch.tensor([probability for _, probability in ranking])
    torch.testing.assert_close(values, best.values, rtol=0, atol=1e-5)
    torch.testing.assert_close(probabilities[tokens], best.values, rtol=0, atol=1e-5)


def check(drafter: CausalLMDrafter, greedy: Greedy, paths: Paths) -> None:
    """Extends all paths at once and compares each."""
    for (request, path), rankings in zip(paths, extend_ready(drafter, paths), strict=True):
        [ranking] = rankings
        assert_is_ranking(greedy, [*request.tokens, *path], ranking)


def num_fed(drafter: CausalLMDrafter, act: Callable[[], object]) -> list[int]:
    """Returns how many tokens each forward of ``act`` took, padding included."""
    sizes: list[int] = []

    def count(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        sizes.append(kwargs["input_ids"].numel())

    decoder = getattr(drafter._model, drafter._model.base_model_prefix)
    hook = decoder.register_forward_pre_hook(count, with_kwargs=True)
    act()
    hook.remove()
    return sizes
