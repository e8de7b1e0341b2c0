"""Draft models of other kinds than the Llama: learned positions, sliding windows, own attention."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.drafter.model import DraftRequest
from paceline.errors import ModelError
from tests.unit.drafter.kinds import SMALL, VOCAB, learned, sliding
from tests.unit.drafter.reference import Greedy, assert_is_greedy, draft_ready, load_drafter

K = 4


def gpt_oss() -> Any:
    """Attention sinks, which torch's own attention function does not have."""
    from transformers import GptOssConfig, GptOssForCausalLM

    return GptOssForCausalLM(
        GptOssConfig(head_dim=16, num_local_experts=2, num_experts_per_tok=1, **SMALL)
    )


def check(model: Any, folder: Path, sizes: list[int]) -> None:
    """Drafts for requests of these sizes, one after another and then all at once."""
    model.save_pretrained(folder)
    greedy, drafter, rng = Greedy(folder), load_drafter(folder), random.Random(0)
    requests: list[DraftRequest] = []
    for size in sizes:
        requests.append(DraftRequest([rng.randrange(VOCAB) for _ in range(size)]))
        drafter.open(requests[-1])
        drafts = draft_ready(drafter, requests, K, VOCAB)
        for request, draft in zip(requests, drafts, strict=True):
            assert_is_greedy(greedy, request, draft, K, VOCAB)
            request.tokens.append(draft.tokens[0])


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("kind", [lambda: learned(64), lambda: sliding(8)])
def test_within_its_limits(kind: Any, tmp_path: Path) -> None:
    check(kind(), tmp_path, [3, 1])


def test_padding_behind_the_last_learned_position(tmp_path: Path) -> None:
    check(learned(64), tmp_path, [55, 20])


def test_a_text_that_is_longer_than_the_sliding_window(tmp_path: Path) -> None:
    check(sliding(8), tmp_path, [30])


def test_a_model_without_the_attention_that_takes_our_masks_is_refused(tmp_path: Path) -> None:
    gpt_oss().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="scaled_dot_product_attention"):
        load_drafter(tmp_path)
