"""The small language model: its loss, its start and its export, in tiny sizes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from paceline.drafter.config import DrafterConfig  # noqa: E402
from paceline.drafter.draft_model import CausalLMDrafter  # noqa: E402
from paceline.drafter.model import DraftRequest  # noqa: E402
from paceline.training import export_causal  # noqa: E402
from paceline.training.causal_lm import CausalLM, CausalLMObjective  # noqa: E402
from paceline.training.causal_start import ROPE_THETA, Places, low_rank, means, start  # noqa: E402
from paceline.training.corpus import Batch, collate  # noqa: E402
from paceline.training.objective import Vocabulary, distributions  # noqa: E402
from paceline.training.states import States  # noqa: E402
from paceline.training.target import Shape, Target  # noqa: E402
from tests.tiny import add_tokenizer, make_tiny_llama  # noqa: E402

DRAFTED = torch.arange(1, 256, 2)
TEXT = [7, 21, 9, 33, 5, 7, 21, 9, 33]
"""Of drafted tokens; what follows a token is found where it stood before."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = make_tiny_llama(tmp_path_factory.mktemp("target"))
    add_tokenizer(folder)
    return Target(folder)


@pytest.fixture
def vocabulary(target: Target) -> Vocabulary:
    return Vocabulary(DRAFTED, target.head)


@pytest.fixture
def shape(target: Target) -> Shape:
    return msgspec.structs.replace(
        target.shape, hidden_size=128, head_dim=64, rope_theta=ROPE_THETA
    )


def _states(tokens: list[int], num_prompt: int, greedy: bool = True) -> States:
    generator = torch.Generator().manual_seed(len(tokens))
    final = torch.randn(len(tokens), 64, generator=generator)
    return States(torch.tensor(tokens), num_prompt, greedy, final, final)


@pytest.fixture
def batch() -> Batch:
    return collate([_states(TEXT, 3), _states([1, 3, 2, 5, 8, 11], 2)])


@pytest.fixture
def model(shape: Shape, vocabulary: Vocabulary, target: Target) -> CausalLM:
    torch.manual_seed(0)
    model = CausalLM(shape, 2, len(DRAFTED))
    found = means([_states(TEXT, 3)], shape.vocab_size, 64)
    start(model, vocabulary, target.embedding, found)
    return model


def test_the_loss_is_cross_entropy_over_the_whole_vocabulary(
    model: CausalLM, vocabulary: Vocabulary, batch: Batch
) -> None:
    objective = CausalLMObjective(model, vocabulary, prompt_share=0.0)
    loss = objective.loss(batch)
    loss.total.backward()  # type: ignore[no-untyped-call]
    got = model.lm_head.grad
    assert got is not None
    model.lm_head.grad = None

    head = torch.zeros(256, model.shape.hidden_size).index_copy(0, DRAFTED, model.lm_head)
    expected = []
    # Positions of the answers whose next token is drafted: in the second text those before 5, 11.
    for row, positions in ((0, range(3, 8)), (1, (2, 4))):
        logits = model(batch.tokens)[row] @ head.T
        for at in positions:
            aim = torch.zeros(256)
            aim[DRAFTED] = distributions(batch.final[row, at : at + 1], vocabulary.head)[0]
            expected.append(-(aim * logits[at].log_softmax(-1)).sum())
    total = torch.stack(expected).mean()
    total.backward()
    torch.testing.assert_close(loss.total, total)
    torch.testing.assert_close(got, model.lm_head.grad)


def test_prompts_take_part_as_far_as_asked(
    model: CausalLM, vocabulary: Vocabulary, batch: Batch
) -> None:
    never = CausalLMObjective(model, vocabulary, prompt_share=0.0).loss(batch)
    always = CausalLMObjective(model, vocabulary, prompt_share=1.0).loss(batch)
    assert never.total != always.total
    assert never.right[0] == always.right[0], "the share is of the answers' rows"


def test_a_row_drafts_behind_the_token_after_it_and_ends_with_the_text(
    model: CausalLM, vocabulary: Vocabulary, batch: Batch
) -> None:
    # A draft that says what follows in the first text.
    following = dict(pairwise(TEXT))

    class Knows(CausalLM):
        def forward(self, tokens: Any) -> Any:
            following_ids = [[following.get(int(one), 0) for one in row] for row in tokens]
            places = vocabulary.places[torch.tensor(following_ids)]
            return torch.nn.functional.one_hot(places.clamp(min=0), len(DRAFTED)).float()

    knows = Knows(model.shape, 2, len(DRAFTED))
    knows.lm_head = torch.nn.Parameter(torch.eye(len(DRAFTED)))
    right = CausalLMObjective(knows, vocabulary).right(batch, 3)
    # Row r begins at position 2 + r and drafts the tokens at 4 + r, ...; the text has nine.
    assert right[0].sum(-1).tolist() == [3, 3, 3, 2, 1]
    assert right[1].sum().item() == 0


def test_the_start_repeats_what_it_has_seen(model: CausalLM) -> None:
    generator = torch.Generator().manual_seed(1)
    tokens = DRAFTED[torch.randperm(len(DRAFTED), generator=generator)[:60]]
    tokens = torch.cat([tokens, tokens])
    with torch.no_grad():
        model.lm_head[:, Places(model.shape.hidden_size).state] = 0.0  # not the bigrams
        best = DRAFTED[(model(tokens[None])[0] @ model.lm_head.T).argmax(-1)]
    again = best[61:-1] == tokens[62:]
    assert again.float().mean() > 0.9
    assert (best[:59] == tokens[1:60]).float().mean() < 0.1


def test_low_rank_keeps_the_states_that_occur(target: Target) -> None:
    generator = torch.Generator().manual_seed(2)
    states = torch.randn(500, 5, generator=generator) @ torch.randn(5, 64, generator=generator)
    head = target.head.float()
    a, b = low_rank(head, torch.ones(256), states.T @ states / 500, 5)
    z = states @ b.T
    torch.testing.assert_close(z @ a.T, states @ head.T, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(z.T @ z / 500, torch.eye(5), atol=1e-3, rtol=0)


def test_the_export_is_a_llama(
    model: CausalLM, vocabulary: Vocabulary, target: Target, tmp_path: Path
) -> None:
    model.bfloat16().float()
    export_causal.export(model, vocabulary, target, tmp_path)
    llama = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.tensor([TEXT])
    with torch.no_grad():
        logits = llama(tokens).logits
        expected = torch.zeros_like(logits)
        expected[..., DRAFTED] = model(tokens) @ model.lm_head.T
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)

    config = DrafterConfig(
        name="small", method="draft_model", model=str(tmp_path), num_speculative_tokens=3
    )
    drafter = CausalLMDrafter(config, "float32")
    drafter.load()
    assert drafter.vocab_size == 256
    request = DraftRequest(tokens=list(TEXT))
    drafter.open(request)
    [draft] = drafter.draft([request], 3, 256)
    text = list(TEXT)
    for token in draft.tokens:
        assert token == llama(torch.tensor([text])).logits[0, -1].argmax()
        text.append(token)
