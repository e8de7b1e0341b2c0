"""The plan of shards, and their states with a tiny target."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import ConfigError, InputError
from paceline.training import shards
from paceline.training.answers import Answer
from paceline.training.shards import Plan, check_plan, compute_shards, extend, load_plan, save_plan
from tests.tiny import make_tiny_llama

PLAN = Plan(target="t", dtype="float32", layers=(0, 1))


def _ids(number: int) -> list[str]:
    return [f"a{i}" for i in range(number)]


def test_the_first_shard_is_small_and_all_ids_are_there_once() -> None:
    plan = extend(PLAN, _ids(400), seed=0)
    assert [len(shard) for shard in plan.shards] == [20, 128, 128, 124]
    assert sorted(one for shard in plan.shards for one in shard) == sorted(_ids(400))
    assert plan == extend(PLAN, reversed(_ids(400)), seed=0) != extend(PLAN, _ids(400), seed=1)
    assert len(extend(PLAN, _ids(10_000), seed=0).shards[0]) == 128


def test_a_plan_only_grows() -> None:
    plan = extend(PLAN, _ids(200), seed=0)
    more = extend(plan, _ids(350), seed=0)
    assert more.shards[: len(plan.shards)] == plan.shards
    assert [len(shard) for shard in more.shards[len(plan.shards) :]] == [128, 22]
    assert extend(more, _ids(350), seed=0) == more


def test_a_plan_is_kept(tmp_path: Path) -> None:
    assert load_plan(tmp_path) is None
    plan = extend(PLAN, _ids(3), seed=0)
    save_plan(tmp_path / "new", plan)
    assert load_plan(tmp_path / "new") == plan
    (tmp_path / shards.PLAN_FILE).write_text("{}")
    with pytest.raises(InputError, match="remove the folder"):
        load_plan(tmp_path)


def test_states_of_something_else_are_not_mixed_in(tmp_path: Path) -> None:
    check_plan(extend(PLAN, _ids(3), seed=0), PLAN, tmp_path)
    other = Plan(target="t", dtype="float32", layers=(0, 2))
    with pytest.raises(ConfigError, match=r"of layers \(0, 1\), and the recipe says \(0, 2\)"):
        check_plan(PLAN, other, tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    pytest.importorskip("transformers")
    return make_tiny_llama(tmp_path / "model")


@pytest.fixture
def answers() -> list[Answer]:
    return [
        Answer(
            id=f"a{i}",
            category="",
            temperature=0.7 * (i % 2),
            prompt_ids=list(range(1, 3 + i)),
            answer_ids=[i, 5],
            finish="stop",
        )
        for i in range(5)
    ]


def test_shards_hold_what_the_plan_says(model: Path, answers: list[Answer], tmp_path: Path) -> None:
    import torch
    from transformers import AutoModel

    from paceline.training.states import read_shard

    # Double precision, so that the order of sums in a padded batch does not show.
    body: torch.nn.Module = AutoModel.from_pretrained(model, dtype=torch.float64).eval()
    plan = Plan(
        target="t", dtype="float32", layers=(0, 1), shards=[["a3"], ["a1", "a4"], ["a0", "a2"]]
    )
    loads = []

    def load() -> torch.nn.Module:
        loads.append(1)
        return body

    told: list[str] = []
    for part in (1, 0):
        compute_shards(plan, tmp_path, iter(answers), load, part=part, parts=2, tell=told.append)
        if part == 1:
            assert plan.missing(tmp_path) == [0, 2]
    assert not plan.missing(tmp_path)
    assert told[-1].startswith("2 of 2 shards, 17 tokens in")
    assert len(loads) == 2
    compute_shards(plan, tmp_path, iter(answers), load)
    assert len(loads) == 2  # all was there

    for index, names in enumerate(plan.shards):
        found = list(read_shard(shards.shard_file(tmp_path, index)))
        for states, name in zip(found, names, strict=True):
            answer = answers[int(name[1:])]
            row = answer.prompt_ids + answer.answer_ids
            assert states.tokens.tolist() == row
            assert states.num_prompt == len(answer.prompt_ids)
            assert states.greedy == (answer.temperature == 0)
            with torch.inference_mode():
                output = body(torch.tensor([row]), output_hidden_states=True)
            aux = torch.cat(output.hidden_states[:2], -1)[0]
            torch.testing.assert_close(states.aux, aux)
            torch.testing.assert_close(states.final, output.last_hidden_state[0])


def test_an_answer_that_is_gone_is_named(answers: list[Answer], tmp_path: Path) -> None:
    plan = Plan(target="t", dtype="float32", layers=(0,), shards=[["a0", "b"]])
    with pytest.raises(InputError, match="the answer 'b', which"):
        compute_shards(plan, tmp_path, iter(answers), pytest.fail)
