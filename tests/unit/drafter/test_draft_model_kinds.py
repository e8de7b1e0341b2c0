"""Draft models of other kinds than the Llama: learned positions, sliding windows, own attention."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.drafter.model import DraftRequest
from paceline.errors import ModelError
from tests.unit.drafter.reference import Greedy, assert_is_greedy, draft_ready, load_drafter

VOCAB = 64
K = 4
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


def gpt2() -> Any:
    """Learned positions, of which there are 64."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB,
            n_positions=64,
            n_embd=32,
            n_layer=2,
            n_head=2,
            initializer_range=0.3,
            bos_token_id=0,
            eos_token_id=1,
        )
    )


def mistral() -> Any:
    """Each token sees eight."""
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(sliding_window=8, **SMALL))


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


@pytest.mark.parametrize("kind", [gpt2, mistral])
def test_within_its_limits(kind: Any, tmp_path: Path) -> None:
    check(kind(), tmp_path, [3, 1])


def test_padding_behind_the_last_learned_position(tmp_path: Path) -> None:
    check(gpt2(), tmp_path, [55, 20])


def test_a_text_that_is_longer_than_the_sliding_window(tmp_path: Path) -> None:
    check(mistral(), tmp_path, [30])


def test_a_model_without_the_attention_that_takes_our_masks_is_refused(tmp_path: Path) -> None:
    gpt_oss().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="scaled_dot_product_attention"):
        load_drafter(tmp_path)
