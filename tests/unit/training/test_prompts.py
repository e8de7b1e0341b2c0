"""Prompts from files and data sets, and what is left out of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import EnvironmentError_, InputError
from paceline.training.held_out import HeldOut
from paceline.training.prompt_rows import Row, Source, read_rows, read_texts
from paceline.training.prompts import Prompt, PromptsConfig, load_prompts, save_prompts, select

LONG = "one two three four five six seven eight nine ten eleven twelve thirteen"


def _write(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _say(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _encode(row: Row) -> list[int] | None:
    """One token per character; no chat that begins with an assistant."""
    return None if row.messages[0]["role"] == "assistant" else [ord(c) for c in row.text]


def _select(config: PromptsConfig, seed: int = 0) -> tuple[list[Prompt], str]:
    told: list[str] = []
    prompts = select(config, _encode, seed, told.append)
    return prompts, told[0]


def test_rows_of_a_file(tmp_path: Path) -> None:
    chat = [_say("system", "s"), _say("user", "u"), _say("assistant", "a"), _say("user", "v")]
    path = _write(
        tmp_path / "some.jsonl",
        {"id": 5, "category": "math", "prompt": "hello"},
        {"messages": [*chat, _say("assistant", "not asked")]},
    )
    first, second = read_rows(Source(file=path), seed=0)
    assert first == Row(id="5", category="math", messages=[_say("user", "hello")])
    assert second == Row(id="some-2", category="", messages=chat)
    assert second.text == "u\na\nv"


@pytest.mark.parametrize(
    "row",
    [
        {"id": "a"},
        {"prompt": " "},
        {"messages": []},
        {"messages": [_say("assistant", "a")]},
        {"messages": [{"role": "user", "content": ["x"]}]},
    ],
)
def test_a_row_that_is_no_prompt_is_named(tmp_path: Path, row: dict[str, Any]) -> None:
    path = _write(tmp_path / "some.jsonl", {"prompt": "good"}, row)
    with pytest.raises(InputError, match=r"some\.jsonl, line 2, is no prompt"):
        read_rows(Source(file=path), seed=0)


def test_what_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "some.jsonl").write_text("{\n")
    with pytest.raises(InputError, match=r"some\.jsonl, line 1, is not valid JSON"):
        read_rows(Source(file=str(tmp_path / "some.jsonl")), seed=0)


def test_a_limit_chooses_by_the_seed(tmp_path: Path) -> None:
    path = _write(tmp_path / "some.jsonl", *({"prompt": str(i)} for i in range(100)))
    first, again, other = (read_rows(Source(file=path, limit=10), seed) for seed in (0, 0, 1))
    assert len(first) == 10
    assert first == again != other


def test_held_out_texts_are_found_by_runs_of_words() -> None:
    held_out = HeldOut([f"He said: {LONG}, and left.", "What now?"])
    assert held_out.shares(f"Count! {LONG.upper()}.")
    assert not held_out.shares(LONG.rpartition(" ")[0] + " hundred")
    assert held_out.shares("what, NOW")
    assert not held_out.shares("what now is a question that may well be part of a longer text")
    assert not held_out.shares("...")


def test_what_many_held_out_texts_have_in_common_counts_for_nothing() -> None:
    asking = "please reason step by step and put your final answer within a box"
    own = [" ".join(f"word{i}x{j}" for j in range(13)) for i in range(30)]
    texts = [f"{words}? {asking}" for words in own]
    assert HeldOut(texts[:19]).shares(f"another question, {asking}")
    held_out = HeldOut(texts)
    assert not held_out.shares(f"another question, {asking}")
    assert held_out.shares(f"{own[7].upper()}! {asking}")
    assert held_out.shares(f"asked in other words: {own[7]}")


def test_held_out_files_may_have_turns(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "held.jsonl",
        {"turns": ["a", "b"]},
        {"prompt": "c", "turns": ["c", "d"]},
        {"messages": [_say("system", "s"), _say("user", "e")]},
    )
    assert list(read_texts(Path(path))) == ["a", "b", "c", "d", "c", "e"]


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    held_out = _write(tmp_path / "held.jsonl", {"prompt": LONG})
    rows = [
        {"prompt": "good"},
        {"prompt": "good"},
        {"prompt": "x"},
        {"prompt": "y" * 101},
        {"prompt": f"please count {LONG}"},
        {"messages": [_say("assistant", "greeting"), _say("user", "thanks")]},
    ]
    path = _write(tmp_path / "some.jsonl", *rows)
    config = PromptsConfig(
        sources=[Source(file=path)], held_out=[held_out], min_tokens=2, max_tokens=100
    )
    prompts, told = _select(config)
    assert [(prompt.id, prompt.ids) for prompt in prompts] == [("some-1", [*map(ord, "good")])]
    assert told == (
        "1 prompts out of 6; 1 are there twice; 1 do not fit the chat template; "
        "1 have over 100 tokens; 1 have under 2 tokens; "
        "1 share 13 words in a row with a held-out one"
    )


def test_prompts_are_mixed_by_the_seed(tmp_path: Path) -> None:
    path = _write(tmp_path / "some.jsonl", *({"prompt": str(i)} for i in range(50)))
    config = PromptsConfig(sources=[Source(file=path)])
    orders = [[prompt.id for prompt in _select(config, seed)[0]] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])


def test_an_id_is_there_once(tmp_path: Path) -> None:
    path = _write(tmp_path / "some.jsonl", {"id": "a", "prompt": "1"}, {"id": "a", "prompt": "2"})
    with pytest.raises(InputError, match="two prompts have the id 'a'"):
        _select(PromptsConfig(sources=[Source(file=path)]))


def test_nothing_left_is_an_error(tmp_path: Path) -> None:
    path = _write(tmp_path / "some.jsonl", {"prompt": "long"})
    with pytest.raises(InputError, match="no prompt is left"):
        _select(PromptsConfig(sources=[Source(file=path)], max_tokens=3))


def test_prompts_are_kept_for_other_processes(tmp_path: Path) -> None:
    prompts = [Prompt(id="a", category="", ids=[1]), Prompt(id="b", category="c", ids=[2, 3])]
    save_prompts(tmp_path / "prompts.jsonl", prompts)
    assert load_prompts(tmp_path / "prompts.jsonl") == prompts


def test_a_data_set_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(EnvironmentError_, match="needs the package 'datasets'"):
        read_rows(Source(dataset="some/set"), seed=0)


class TestDataSet:
    """The library itself, with a folder in place of a data set of the hub."""

    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        pytest.importorskip("datasets")
        import datasets

        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        datasets.disable_progress_bars()
        folder = tmp_path / "set"
        folder.mkdir()
        rows = [
            {
                "prompt": f"question {i}",
                "messages": [_say("user", f"question {i}"), _say("assistant", "old answer")],
                "conversations": [{"from": "human", "value": f"question {i}"}],
                "number": i,
            }
            for i in range(20)
        ]
        _write(folder / "train.jsonl", *rows)
        return str(folder)

    @pytest.mark.parametrize("column", ["prompt", "messages", "conversations"])
    def test_rows(self, folder: str, column: str) -> None:
        rows = read_rows(Source(dataset=folder, column=column), seed=0)
        assert [row.messages for row in rows] == [
            [_say("user", f"question {i}")] for i in range(20)
        ]
        assert rows[3].id == f"{folder}-train-3"

    def test_a_limit_keeps_the_ids(self, folder: str) -> None:
        some = read_rows(Source(dataset=folder, limit=5), seed=0)
        every = read_rows(Source(dataset=folder), seed=0)
        assert len(some) == 5
        assert all(row in every for row in some)

    @pytest.mark.parametrize(
        ("changed", "sentence"),
        [
            ({"dataset": "/nowhere/at/all"}, "the data set '/nowhere/at/all' cannot be loaded"),
            ({"split": "test"}, "cannot be loaded .*test"),
            ({"column": "text"}, "has no column 'text'; it has prompt, messages"),
            ({"column": "number"}, "row 0 of the data set .* holds no prompt in its column"),
        ],
    )
    def test_errors(self, folder: str, changed: dict[str, str], sentence: str) -> None:
        with pytest.raises(InputError, match=sentence):
            read_rows(Source(**{"dataset": folder} | changed), seed=0)  # type: ignore[arg-type]
