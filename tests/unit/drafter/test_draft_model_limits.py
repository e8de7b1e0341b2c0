"""Long prompts, the end of the context, and models that cannot be drafts."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
import torch

from paceline.drafter.config import DrafterConfig
from paceline.drafter.draft_model import PREFILL_CHUNK, CausalLMDrafter
from paceline.drafter.model import Draft, DraftRequest
from paceline.errors import EnvironmentError_, ModelError
from tests.tiny import VOCAB_SIZE
from tests.unit.drafter.reference import Greedy, assert_is_greedy, draft_ready, load_drafter

MAX_LENGTH = 512
K = 4


@pytest.fixture(scope="module")
def greedy(tiny_llama: Path) -> Greedy:
    return Greedy(tiny_llama)


@pytest.fixture
def drafter(tiny_llama: Path) -> CausalLMDrafter:
    return load_drafter(tiny_llama)


def opened(drafter: CausalLMDrafter, size: int, seed: int = 1) -> DraftRequest:
    rng = random.Random(seed)
    request = DraftRequest([rng.randrange(VOCAB_SIZE) for _ in range(size)])
    drafter.open(request)
    return request


@pytest.mark.parametrize("size", [PREFILL_CHUNK - 1, PREFILL_CHUNK, PREFILL_CHUNK + 1, 500])
def test_a_long_prompt_is_processed_in_pieces(
    drafter: CausalLMDrafter, greedy: Greedy, size: int
) -> None:
    request = opened(drafter, size)
    pieces = 0
    while not drafter.is_ready(request):
        drafter.prepare(request)
        pieces += 1
    assert pieces == (0 if size <= PREFILL_CHUNK else 1)
    [draft] = drafter.draft([request], K, VOCAB_SIZE)
    assert_is_greedy(greedy, request, draft, K, VOCAB_SIZE)


def test_a_long_commit_after_a_takeover_is_processed_in_pieces(
    drafter: CausalLMDrafter, greedy: Greedy
) -> None:
    """The text grows by more than a chunk behind drafts that were not committed."""
    request = opened(drafter, 20)
    draft_ready(drafter, [request], K, VOCAB_SIZE)
    rng = random.Random(2)
    request.tokens.extend(rng.randrange(VOCAB_SIZE) for _ in range(PREFILL_CHUNK + 30))
    assert not drafter.is_ready(request)
    [draft] = draft_ready(drafter, [request], K, VOCAB_SIZE)
    assert_is_greedy(greedy, request, draft, K, VOCAB_SIZE)


def test_preparing_one_request_leaves_the_others_right(
    drafter: CausalLMDrafter, greedy: Greedy
) -> None:
    short = opened(drafter, 5)
    [draft] = draft_ready(drafter, [short], K, VOCAB_SIZE)
    short.tokens.extend([draft.tokens[0], 7])
    long = opened(drafter, 400, seed=2)
    for request, draft in zip(
        (long, short), draft_ready(drafter, [long, short], K, VOCAB_SIZE), strict=True
    ):
        assert_is_greedy(greedy, request, draft, K, VOCAB_SIZE)


def test_preparing_what_is_ready_is_harmless(drafter: CausalLMDrafter, greedy: Greedy) -> None:
    one, ten = opened(drafter, 1), opened(drafter, 10)
    for _ in range(3):
        drafter.prepare(one)
        drafter.prepare(ten)
    for request in (one, ten):
        [draft] = drafter.draft([request], K, VOCAB_SIZE)
        assert_is_greedy(greedy, request, draft, K, VOCAB_SIZE)


def test_up_to_the_end_of_the_context_it_drafts(drafter: CausalLMDrafter, greedy: Greedy) -> None:
    request = opened(drafter, MAX_LENGTH - K)
    [draft] = draft_ready(drafter, [request], K, VOCAB_SIZE)
    assert_is_greedy(greedy, request, draft, K, VOCAB_SIZE)


@pytest.mark.parametrize("size", [MAX_LENGTH - K + 1, MAX_LENGTH, MAX_LENGTH + 100])
def test_behind_it_the_draft_is_empty(drafter: CausalLMDrafter, size: int) -> None:
    request = opened(drafter, size)
    assert draft_ready(drafter, [request], K, VOCAB_SIZE) == [Draft([])]


def test_who_is_too_long_does_not_spoil_the_others(
    drafter: CausalLMDrafter, greedy: Greedy
) -> None:
    long, short = opened(drafter, MAX_LENGTH), opened(drafter, 6, seed=2)
    empty, draft = draft_ready(drafter, [long, short], K, VOCAB_SIZE)
    assert empty == Draft([])
    assert_is_greedy(greedy, short, draft, K, VOCAB_SIZE)


def test_the_head_s_rows_are_the_vocabulary(drafter: CausalLMDrafter) -> None:
    assert drafter.vocab_size == VOCAB_SIZE
    assert drafter.tokenizer_fingerprint == "", "the tiny model has no tokenizer"


def changed_copy(folder: Path, target: Path, **changes: object) -> Path:
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **changes}))
    return target


def test_a_model_of_an_unknown_kind_is_refused_in_one_sentence(
    tiny_llama: Path, tmp_path: Path
) -> None:
    folder = changed_copy(tiny_llama, tmp_path / "m", model_type="no_such_kind")
    with pytest.raises(ModelError, match="cannot be loaded: ") as caught:
        load_drafter(folder)
    assert "\n" not in str(caught.value)


def test_a_model_that_keeps_another_state_is_refused(tmp_path: Path) -> None:
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    config = Qwen3NextConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        linear_num_key_heads=1,
        linear_num_value_heads=1,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=0,
        layer_types=["linear_attention", "full_attention"],
    )
    Qwen3NextForCausalLM(config).save_pretrained(tmp_path / "m")
    with pytest.raises(ModelError, match="layers of kind linear_attention"):
        load_drafter(tmp_path / "m")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_named(tiny_llama: Path) -> None:
    config = DrafterConfig(name="d", method="draft_model", model=str(tiny_llama), device="cuda")
    with pytest.raises(EnvironmentError_, match="drafter device is cuda, but torch sees no GPU"):
        CausalLMDrafter(config, "float32").load()
