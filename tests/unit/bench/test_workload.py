"""Prompts from a file: a fair sample, or one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.bench.workload import load_workload
from paceline.errors import InputError


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "w.jsonl"
    names = ["qa-1", "qa-2", "qa-3", "rag-1", "rag-2", "code-1"]
    lines = [
        json.dumps({"id": name, "category": name.partition("-")[0], "prompt": name})
        for name in names
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def ids(path: Path, *categories: str) -> list[str]:
    return [prompt.id for prompt in load_workload(path, categories or None)]


def test_categories_take_turns(workload: Path) -> None:
    assert ids(workload) == ["qa-1", "rag-1", "code-1", "qa-2", "rag-2", "qa-3"]


def test_only_the_categories_that_were_asked_for(workload: Path) -> None:
    assert ids(workload, "rag", "qa") == ["qa-1", "rag-1", "qa-2", "rag-2", "qa-3"]


def test_lines_without_a_category_keep_their_order(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('{"prompt": "x"}\n{"prompt": "y"}\n')
    assert [prompt.prompt for prompt in load_workload(path, None)] == ["x", "y"]


def test_a_category_that_is_null_is_none(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('{"prompt": "x", "category": null}\n{"prompt": "y"}\n')
    assert [prompt.category for prompt in load_workload(path, None)] == ["", ""]


@pytest.mark.parametrize(
    ("text", "categories", "expected"),
    [
        ("\n", None, "is empty"),
        ('{"prompt": "x"}\n{"prompt": 3}\n', None, "line 2: 'prompt' is not a text"),
        ('{"prompt": "x"}\n', ["qa"], "names 'qa', which no line of"),
        ('{"prompt": "x", "category": "rag"}\n', ["qa"], "it has rag"),
    ],
)
def test_what_cannot_be_used_is_refused(
    tmp_path: Path, text: str, categories: list[str] | None, expected: str
) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        load_workload(path, categories)
    assert expected in str(refused.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: no such file"):
        load_workload(tmp_path / "w.jsonl", None)
