"""The scripted draft follows its law, is always the same, and spends what it is told to."""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path
from typing import Any

import pytest

from paceline.drafter.build import build_draft_model
from paceline.drafter.config import DrafterConfig
from paceline.drafter.model import DraftRequest
from paceline.drafter.scripted import ScriptedDrafter, rank_of
from paceline.drafter.scripted_answers import Answer, write_answers
from paceline.errors import ConfigError, InputError

VOCAB = 100
PROMPTS = [[7, 8, number] for number in range(60)]
LENGTH = 150


def answer_of(prompt: list[int]) -> list[int]:
    return [(31 * prompt[-1] + 17 * i * i) % VOCAB for i in range(LENGTH)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with an answer for each prompt."""
    path = tmp_path / "answers.jsonl"
    write_answers(path, [Answer(prompt_ids=p, token_ids=answer_of(p)) for p in PROMPTS])
    return path


def config(path: Path, **changes: Any) -> DrafterConfig:
    values = {"name": "s", "method": "scripted", "scripted_answers": str(path), **changes}
    return DrafterConfig(**values)


def drafter(path: Path, **changes: Any) -> ScriptedDrafter:
    return ScriptedDrafter(config(path, **changes), spend=lambda seconds: None)


def opened(model: ScriptedDrafter, prompt: list[int], *output: int) -> DraftRequest:
    request = DraftRequest(list(prompt))
    model.open(request)
    request.tokens.extend(output)
    return request


@pytest.mark.parametrize("accuracy", [0.0, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("num_ranked", [1, 2, 4, 9])
def test_the_target_s_choice_is_among_the_first_as_often_as_the_law_says(
    path: Path, accuracy: float, num_ranked: int
) -> None:
    model = drafter(path, scripted_accuracy=accuracy)
    found, positions = 0, len(PROMPTS) * LENGTH
    for prompt in PROMPTS:
        request, answer = opened(model, prompt), answer_of(prompt)
        for token in answer:
            found += token in model.ranking(request, [], num_ranked, VOCAB)
            request.tokens.append(token)
    expected = 1 - (1 - accuracy) * num_ranked**-1.5
    deviation = math.sqrt(positions * expected * (1 - expected))
    assert abs(found - positions * expected) <= 4 * deviation  # exact at accuracy 1 and 0


@pytest.mark.parametrize(
    ("accuracy", "edge", "above", "below"),
    # A quarter of the draws lies below 1/4, where the first choice is wrong. 4^-1.5 is 1/8.
    [(0.75, 1 << 62, 1, 2), (0.0, 1 << 61, 4, 5)],
)
def test_the_law_is_inverted(accuracy: float, edge: int, above: int, below: int) -> None:
    assert rank_of(edge + (1 << 40), accuracy) == above
    assert rank_of(edge - (1 << 40), accuracy) == below
    assert rank_of(0, 0.5) > 1 << 40


def test_a_longer_ranking_begins_with_the_shorter_one_and_repeats_nothing(path: Path) -> None:
    model = drafter(path, scripted_accuracy=0.3)
    request = opened(model, PROMPTS[0])
    for token in answer_of(PROMPTS[0]):
        longest = model.ranking(request, [], VOCAB + 5, VOCAB)
        assert len(set(longest)) == len(longest) and set(longest) <= set(range(VOCAB))
        for num_ranked in (1, 2, 5):
            assert model.ranking(request, [], num_ranked, VOCAB) == longest[:num_ranked]
        request.tokens.append(token)


def test_the_proposal_is_the_chain_of_first_choices(path: Path) -> None:
    model = drafter(path)
    requests = [opened(model, prompt) for prompt in PROMPTS]
    for request, draft in zip(requests, model.draft(requests, 5, VOCAB), strict=True):
        chain: list[int] = []
        for token in draft.tokens:
            assert model.ranking(request, chain, 1, VOCAB) == [token]
            chain.append(token)
        assert len(chain) == 5 and draft.confidence == []


def test_a_draft_is_right_up_to_its_first_wrong_token_and_then_off_the_answer(path: Path) -> None:
    model = drafter(path, scripted_accuracy=0.75)
    requests = [opened(model, prompt) for prompt in PROMPTS]
    num_right_behind = 0
    for request, draft in zip(requests, model.draft(requests, 8, VOCAB), strict=True):
        answer = answer_of(request.tokens)[:8]
        wrong = next((i for i, token in enumerate(draft.tokens) if token != answer[i]), 8)
        for i in range(wrong + 1, 8):
            # Where the script alone would have been right.
            request.tokens.extend(answer[:i])
            scripted = model.ranking(request, [], 1, VOCAB)[0]
            del request.tokens[3:]
            num_right_behind += scripted == answer[i] == draft.tokens[i]
    assert num_right_behind <= 5, "one in a hundred is right by chance"


def test_with_an_accuracy_of_one_the_answer_is_drafted_to_its_end(path: Path) -> None:
    model = drafter(path, scripted_accuracy=1.0)
    answer = answer_of(PROMPTS[1])
    request = opened(model, PROMPTS[1])
    assert model.draft([request], 32, VOCAB)[0].tokens == answer[:32]
    request.tokens.extend(answer[:-2])
    tokens = model.draft([request], 4, VOCAB)[0].tokens
    assert tokens[:2] == answer[-2:] and len(tokens) == 4


def test_committed_text_that_has_left_the_answer_is_not_followed(path: Path) -> None:
    model = drafter(path, scripted_accuracy=1.0)
    followed = 0
    for prompt in PROMPTS:
        answer = answer_of(prompt)
        request = opened(model, prompt, *answer[:3], (answer[3] + 1) % VOCAB)
        followed += model.ranking(request, [], 1, VOCAB) == [answer[4]]
    assert followed <= 5, "one in a hundred is right by chance"


def test_what_was_opened_with_its_output_goes_on_the_same(path: Path) -> None:
    answer = answer_of(PROMPTS[2])
    model = drafter(path)
    followed = opened(model, PROMPTS[2], *answer[:9])
    taken_over = opened(model, [*PROMPTS[2], *answer[:9]])
    first, second = model.draft([followed, taken_over], 8, VOCAB)
    assert first == second


def test_the_longest_prompt_is_the_prompt(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    short = Answer(prompt_ids=[1], token_ids=[2, 3, 4])
    others = [Answer(prompt_ids=p, token_ids=[9, 9]) for p in ([1, 2], [3] * 9)]
    write_answers(path, [short, *others])
    model = drafter(path, scripted_accuracy=1.0)
    assert model.ranking(opened(model, [1, 2]), [], 1, VOCAB) == [9]
    assert model.ranking(opened(model, [1, 2, 3]), [], 1, VOCAB) == [4]
    assert model.ranking(opened(model, [1]), [], 1, VOCAB) == [2]


def test_draws_depend_on_seed_prompt_and_position_and_on_nothing_else(path: Path) -> None:
    def ranks(model: ScriptedDrafter, prompt: list[int]) -> list[int]:
        request, found = opened(model, prompt), []
        for token in answer_of(prompt):
            ranking = model.ranking(request, [], 3, VOCAB)
            found.append(ranking.index(token) if token in ranking else -1)
            request.tokens.append(token)
        return found

    once = ranks(drafter(path), PROMPTS[0])
    assert ranks(drafter(path, scripted_forward_ms=1), PROMPTS[0]) == once
    assert ranks(drafter(path, scripted_seed=1), PROMPTS[0]) != once
    assert ranks(drafter(path), PROMPTS[1]) != once


def test_for_an_unknown_prompt_drafts_are_arbitrary_always_the_same_and_in_the_vocabulary(
    path: Path, tmp_path: Path
) -> None:
    drafts = []
    for model in (drafter(path), drafter(path), drafter(tmp_path / "not-there-yet")):
        request = opened(model, [1, 2, 3], 4)
        drafts.append(model.draft([request], 32, 5)[0].tokens)
    assert drafts[0] == drafts[1] == drafts[2]
    assert len(drafts[0]) == 32 and set(drafts[0]) <= set(range(5))


def test_answers_that_come_later_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    model = drafter(path, scripted_accuracy=1.0)
    opened(model, [1])
    for later in ([5, 6], [7, 8]):
        write_answers(path, [Answer(prompt_ids=[1], token_ids=later)])
        assert model.draft([opened(model, [1])], 2, VOCAB)[0].tokens == later


def test_a_file_that_has_not_changed_is_not_read_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = drafter(path)
    opened(model, PROMPTS[0])
    monkeypatch.setattr(Path, "read_bytes", None)
    opened(model, [1, 2, 3])


@pytest.mark.parametrize("known", [True, False])
def test_each_step_of_the_whole_batch_is_one_forward(path: Path, known: bool) -> None:
    spent: list[float] = []
    model = ScriptedDrafter(config(path, scripted_forward_ms=2.5), spend=spent.append)
    requests = [opened(model, prompt if known else [1]) for prompt in PROMPTS]
    model.draft(requests, 4, VOCAB)
    assert spent == [0.0025] * 4


def test_the_time_is_processor_time_of_this_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(time, "thread_time", lambda: next(ticks) / 1024)
    model = ScriptedDrafter(config(path, scripted_forward_ms=3000 / 1024))
    model.draft([opened(model, PROMPTS[0])], 2, VOCAB)
    assert next(ticks) == 2 * 4, "for each of two forwards the start, and 1, 2, 3 ticks later"


def test_what_is_closed_is_forgotten(path: Path) -> None:
    model = drafter(path)
    request = opened(model, PROMPTS[0])
    model.close(request)
    model.close(request)
    with pytest.raises(KeyError):
        model.draft([request], 1, VOCAB)


@pytest.mark.parametrize("line", [b"{", b'{"prompt_ids": [1]}', b'{"prompt_ids": 1}', b"\xff"])
def test_a_line_that_is_no_answer_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt_ids": [1], "token_ids": [2]}\n\n' + line + b"\n")
    with pytest.raises(InputError, match=r"a\.jsonl, line 3 is no object with prompt_ids"):
        opened(drafter(path), [1])


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: is a directory"):
        opened(drafter(tmp_path), [1])


def test_without_answers_it_is_refused(path: Path) -> None:
    assert isinstance(build_draft_model(config(path), "float32"), ScriptedDrafter)
    with pytest.raises(ConfigError, match=r"drafter s: method scripted .* set scripted_answers"):
        build_draft_model(DrafterConfig(name="s", method="scripted"), "float32")
