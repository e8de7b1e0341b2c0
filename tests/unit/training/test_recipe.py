"""Recipes: the files that are there, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.config import load, parse
from paceline.errors import ConfigError
from paceline.training.recipe import Recipe, default_layers, load_recipe

FOLDER = Path(__file__).resolve().parents[3] / "training" / "recipes"
MINIMAL: dict[str, Any] = {
    "target": "t",
    "folder": "f",
    "prompts": {"sources": [{"file": "p.jsonl"}]},
}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_loads(path: Path) -> None:
    recipe = load(path, Recipe)
    assert recipe.drafts
    assert recipe.prompts.held_out


BASE = {"name": "a", "method": "eagle3", "num_layers": 2}
NEXT = BASE | {"name": "b", "start_from": "a"}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"tarjet": "t"}, "unknown key 'tarjet'; did you mean 'target'"),
        ({"answers": {"greedy": 1}}, "unknown key 'answers.greedy'"),
        ({"target": " "}, "target is empty"),
        ({"layers": [3, 2]}, r"layers is \[3, 2\]; they are numbers from 0"),
        ({"layers": [-1]}, r"layers is \[-1\]"),
        ({"dtype": "int8"}, "dtype"),
        ({"prompts": {"sources": []}}, "sources is empty"),
        ({"prompts": {"sources": [{}]}}, "needs either file or dataset"),
        ({"prompts": {"sources": [{"file": "a", "limit": 0}]}}, "limit is 0"),
        ({"prompts": {"sources": [{"file": "a"}], "max_tokens": 0}}, "max_tokens 0"),
        ({"answers": {"greedy_share": 1.5}}, "greedy_share is 1.5"),
        ({"answers": {"temperature": 0.0}}, "temperature is 0.0"),
        ({"answers": {"max_answer_tokens": 0}}, "max_answer_tokens is 0"),
        ({"answers": {"max_minutes": 0.0}}, "max_minutes is 0.0"),
        ({"drafts": [{"name": "a/b", "method": "eagle3"}]}, "name is 'a/b'"),
        ({"drafts": [{"name": "a", "method": "eagle4"}]}, r"drafts\[0\].method"),
        ({"drafts": [{"name": "a", "method": "mtp", "num_layers": 0}]}, "num_layers is 0"),
        ({"drafts": [{"name": "a", "method": "causal_lm"}]}, "needs at least 2"),
        ({"drafts": [{"name": "a", "method": "mtp"}] * 2}, "two drafts have the name 'a'"),
        ({"drafts": [{"name": "a", "method": "mtp", "start_from": "b"}]}, "no earlier draft"),
        ({"drafts": [BASE, NEXT | {"draft_vocab_size": 9}]}, "must be None as there"),
        ({"drafts": [BASE, NEXT | {"num_layers": 1}]}, "at least that, not 1"),
        ({"evaluation": {"num_prompts": 0}}, "num_prompts is 0"),
        ({"evaluation": {"max_tokens": 1025}}, "max_tokens is 1025, it is 1024 at the most"),
        ({"evaluation": {"num_speculative_tokens": 0}}, "num_speculative_tokens is 0"),
        ({"evaluation": {"temperatures": [0, 3]}}, r"temperatures has 3\.0"),
        ({"evaluation": {"files": ["a/x.jsonl", "b/x.jsonl"]}}, "two held-out files .* 'x'"),
    ],
)
def test_what_is_refused(changed: dict[str, Any], sentence: str) -> None:
    parse(MINIMAL, Recipe, "here")
    with pytest.raises(ConfigError, match=sentence):
        parse(MINIMAL | changed, Recipe, "here")


@pytest.mark.parametrize(
    "lines",
    [
        "prompts: {sources: [{file: none.jsonl}]}",
        "prompts: {sources: [{dataset: a}], held_out: [none.jsonl]}",
        "prompts: {sources: [{dataset: a}]}\nmore_answers: [none.jsonl]",
        "prompts: {sources: [{dataset: a}]}\nevaluation: {files: [none.jsonl]}",
    ],
)
def test_files_that_are_missing_are_named_at_once(tmp_path: Path, lines: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"target: t\nfolder: f\n{lines}\n")
    with pytest.raises(ConfigError, match=r"names none\.jsonl, which does not exist"):
        load_recipe(path)


def test_drafts_are_measured_on_the_held_out_prompts_unless_others_are_named() -> None:
    prompts = {**MINIMAL["prompts"], "held_out": ["a.jsonl", "b.jsonl"]}
    recipe = parse({**MINIMAL, "prompts": prompts}, Recipe, "here")
    assert recipe.evaluation_files == [Path("a.jsonl"), Path("b.jsonl")]
    evaluation = {"files": ["c.jsonl"], "temperatures": [0.0]}
    recipe = parse({**MINIMAL, "prompts": prompts, "evaluation": evaluation}, Recipe, "here")
    assert recipe.evaluation_files == [Path("c.jsonl")]
    assert recipe.evaluation.temperatures == (0.0,)


def test_default_layers_are_those_of_eagle3() -> None:
    assert default_layers(30) == (2, 15, 27)
