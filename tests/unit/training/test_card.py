"""What a card says, and where its numbers come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from paceline.cards import Card, read_card
from paceline.config import parse
from paceline.training.acceptance import Counts, Measurement
from paceline.training.card import Curve, make_card, read_curve
from paceline.training.learned import Learned, learned
from paceline.training.prompt_rows import Origin
from paceline.training.recipe import Recipe
from paceline.training.shards import Plan, save_plan

LEARNED = Learned(
    num_answers=1200,
    num_greedy=600,
    num_tokens=54_321,
    num_rows=53_121,
    origins={Origin("org/set", "MIT"): 1000, Origin("", ""): 200},
)
RESULT = Measurement(
    draft="d",
    weights="0123",
    method="eagle3",
    k=3,
    dtype="bfloat16",
    workload="chat",
    temperature=0.0,
    num_prompts=4,
    max_tokens=8,
    counts=Counts(passes=10, tokens=25, drafted=[10, 10, 10], accepted=[9, 5, 1]),
)


def recipe(**changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "target": "smollm2-135m-instruct",
        "folder": "data",
        "prompts": {"sources": [{"dataset": "org/questions"}]},
        "drafts": [{"name": "d", "method": "eagle3", "num_speculative_tokens": 3}],
        "licence": "apache-2.0",
    }
    return parse(values | changes, Recipe, "here")


def text(one: Recipe, measured: list[Measurement], curve: Curve | None = None) -> str:
    return make_card(one, one.drafts[0], LEARNED, curve, measured)


def front_matter(card: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return values


def test_the_front_matter_is_the_hub_s_and_ours(tmp_path: Path) -> None:
    card = text(recipe(), [RESULT])
    assert front_matter(card) == {
        "license": "apache-2.0",
        "base_model": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "datasets": ["org/questions"],
        "pipeline_tag": "text-generation",
        "tags": ["speculative-decoding", "eagle3"],
        "paceline": {
            "name": "d",
            "target": "smollm2-135m-instruct",
            "method": "eagle3",
            "num_speculative_tokens": 3,
            "mean_acceptance_length": 2.5,
        },
    }
    (tmp_path / "README.md").write_text(card)
    assert read_card(tmp_path) == Card(
        name="d",
        target="smollm2-135m-instruct",
        method="eagle3",
        num_speculative_tokens=3,
        mean_acceptance_length=2.5,
    )


def test_a_target_s_place_on_this_machine_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    card = text(recipe(target=str(tmp_path / "my-model"), licence=None), [])
    assert str(tmp_path) not in card
    assert front_matter(card)["paceline"]["target"] == "my-model"
    assert "base_model" not in front_matter(card)
    assert front_matter(card)["license"] == "unknown"
    assert "Not stated" in card and "Not measured yet" in card
    assert front_matter(text(recipe(target="org/target"), []))["base_model"] == "org/target"


def test_the_headline_is_greedy_at_the_draft_s_k_over_all_sets() -> None:
    other = replace(
        RESULT,
        workload="code",
        counts=Counts(passes=10, tokens=35, drafted=[10, 10, 10], accepted=[9, 8, 8]),
    )
    warm = replace(RESULT, temperature=1.0, counts=Counts.none(3))
    shallow = replace(RESULT, k=1, counts=Counts.none(1))
    offline = replace(RESULT, source="offline", counts=Counts.none(3))
    measured = [offline, shallow, warm, RESULT, other]
    block = front_matter(text(recipe(), measured))["paceline"]
    assert block["mean_acceptance_length"] == 3.0
    block = front_matter(text(recipe(), [replace(RESULT, source="offline")]))["paceline"]
    assert block["mean_acceptance_length"] == 2.5
    assert "mean_acceptance_length" not in front_matter(text(recipe(), [warm]))["paceline"]


def test_the_text_has_figures_numbers_and_licences() -> None:
    curve = Curve(
        rows=106_000,
        seconds=600.0,
        mean_acceptance_length=2.345,
        acceptance_per_position=[0.7, 0.4, 0.2],
    )
    card = text(recipe(seed=7), [RESULT], curve)
    assert "| d | vLLM | 3 | 0 | chat | 10 | 2.500 | 0.500 | 0.900 0.500 0.100 |" in card
    assert "| answer tokens | 54,321 |" in card
    assert "| seed | 7 |" in card
    assert "| rows trained on | 106,000 |" in card
    assert "2.345 (positions 0.700 0.400 0.200)" in card
    assert "| org/set | MIT | 1,000 |" in card
    assert "| not stated | see there | 200 |" in card
    assert "The weights: Apache-2.0." in card
    assert "It learned from 54,321 answer tokens." in card


@pytest.mark.parametrize(
    ("method", "ours", "theirs"),
    [
        ("causal_lm", "    method: draft_model\n", '"method": "draft_model", "model": "d"'),
        ("eagle3", "did not have `eagle3`", '"method": "eagle3", "model": "d"'),
        ("mtp", "did not have `mtp`", "vllm serve ASSEMBLED \\\n    --speculative-config '{\"me"),
        ("dspark", "did not have `dspark`", "V2 model runner, which needs Triton"),
        ("dflash", "did not have `dflash`", '"method": "dflash", "model": "d"'),
    ],
)
def test_how_it_is_used(
    monkeypatch: pytest.MonkeyPatch, method: str, ours: str, theirs: str
) -> None:
    served = {"draft_model": ""}
    monkeypatch.setattr("paceline.training.card.METHODS", served)
    card = text(recipe(drafts=[{"name": "d", "method": method, "num_layers": 2}]), [])
    assert ours in card
    assert theirs in card


def test_the_curve_s_end(tmp_path: Path) -> None:
    path = tmp_path / "held_out.jsonl"
    assert read_curve(path) is None
    line = {
        "rows": 5,
        "seconds": 1.5,
        "mean_acceptance_length": 1.25,
        "acceptance_per_position": [0.25],
    }
    path.write_text(json.dumps({**line, "rows": 1}) + "\n" + json.dumps(line) + "\n")
    assert read_curve(path) == Curve(
        rows=5, seconds=1.5, mean_acceptance_length=1.25, acceptance_per_position=[0.25]
    )


def test_what_was_learned_is_counted_without_what_was_held_apart(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "prompt": "x", "source": "org/set:part-1", "license": "MIT"},
        {"id": "b", "prompt": "x", "source": "org/set:part-2", "license": "MIT"},
        {"id": "c", "prompt": "x", "licence": "CC0-1.0"},
        {"id": "unanswered", "prompt": "x", "source": "s"},
    ]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = tmp_path / "data" / "answers"
    answers.mkdir(parents=True)

    def line(one: str, temperature: float, num_tokens: int) -> str:
        answer = {
            "id": one,
            "category": "",
            "temperature": temperature,
            "prompt_ids": [1],
            "answer_ids": [2] * num_tokens,
            "finish": "stop",
        }
        return json.dumps(answer) + "\n"

    there = [line("a", 0, 5), line("b", 0.7, 7), line("c", 0, 3), line("apart", 0, 99)]
    (answers / "answers-00-of-01.jsonl").write_text("".join([*there, line("org/q-train-0", 0, 1)]))
    (tmp_path / "more.jsonl").write_text(line("elsewhere", 0.7, 2) + line("a", 0, 50))
    one = recipe(
        folder=str(tmp_path / "data"),
        prompts={"sources": [{"file": str(tmp_path / "p.jsonl")}, {"dataset": "org/q"}]},
        more_answers=[str(tmp_path / "more.jsonl")],
    )
    assert learned(one).num_answers == 6
    plan = Plan(
        target="t",
        dtype="bfloat16",
        layers=(0,),
        shards=[["apart"], ["a", "b", "c"], ["elsewhere", "org/q-train-0"]],
    )
    save_plan(tmp_path / "data" / "states", plan)
    found = learned(one)
    assert (found.num_answers, found.num_greedy) == (5, 3)
    # What more_answers has of "a" comes first.
    assert found.num_tokens == 50 + 7 + 3 + 2 + 1
    assert found.num_rows == found.num_tokens - 5
    assert found.origins == {
        Origin("org/set", "MIT"): 2,
        Origin("", "CC0-1.0"): 1,
        Origin("org/q", ""): 1,
        Origin("", ""): 1,
    }
