"""Counting passes, and the file and table of results."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from paceline.errors import InputError
from paceline.training.acceptance import (
    Counts,
    Measurement,
    append_result,
    count,
    digest,
    over_all_sets,
    read_results,
    table,
)

KEY = Measurement(
    draft="d",
    weights="0123",
    method="eagle3",
    k=2,
    dtype="bfloat16",
    workload="chat",
    temperature=0.0,
    num_prompts=4,
    max_tokens=8,
)


def test_figures_of_whole_passes() -> None:
    # 1 token of the prefill, then passes that commit 3, 1, 2.
    counts = count(7, [2, 2, 2], [2, 0, 1], 2)
    assert counts == Counts(passes=3, tokens=6, drafted=[3, 3], accepted=[2, 1])
    assert counts.mean_acceptance_length == 2.0
    assert counts.acceptance_rate == 0.5
    assert counts.unconditional == [2 / 3, 1 / 3]
    assert counts.conditional == [2 / 3, 1 / 2]


@pytest.mark.parametrize(
    ("num_tokens", "drafted", "accepted", "expected"),
    [
        # The bonus does not stand in the text any more.
        (3, [2], [2], Counts(passes=1, tokens=2, drafted=[1, 1], accepted=[1, 1])),
        # Neither does the second draft, whatever the pass says of it.
        (2, [2], [2], Counts(passes=1, tokens=1, drafted=[1, 0], accepted=[1, 0])),
        # A pass with fewer drafts than K.
        (3, [1], [1], Counts(passes=1, tokens=2, drafted=[1, 0], accepted=[1, 0])),
        # The prefill gave all of it.
        (1, [], [], Counts(passes=0, tokens=0, drafted=[0, 0], accepted=[0, 0])),
    ],
)
def test_only_what_stands_in_the_text_counts(
    num_tokens: int, drafted: list[int], accepted: list[int], expected: Counts
) -> None:
    assert count(num_tokens, drafted, accepted, 2) == expected


@pytest.mark.parametrize(
    ("num_tokens", "accepted", "sentence"),
    [(5, [0, 1], "1 of 5 tokens come from undrafted"), (2, [1, 0], "has passes behind its end")],
)
def test_passes_that_do_not_make_the_text(
    num_tokens: int, accepted: list[int], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        count(num_tokens, [2] * len(accepted), accepted, 2)


def test_no_pass_at_all_has_figures() -> None:
    counts = Counts.none(2)
    assert counts.mean_acceptance_length == 1.0
    assert counts.unconditional == counts.conditional == [0.0, 0.0]
    assert counts.acceptance_rate == 0.0


def test_results_are_read_back_without_a_cut_off_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert read_results(path) == []
    result = replace(KEY, counts=count(7, [2, 2, 2], [2, 0, 1], 2), cpu_s=1.5)
    append_result(path, result)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    assert read_results(path) == [result]
    assert path.read_bytes() == whole
    append_result(path, replace(result, source="offline"))
    assert [one.source for one in read_results(path)] == ["vllm", "offline"]
    assert result.key == KEY
    path.write_bytes(b"{}\n" + whole)
    with pytest.raises(InputError, match="holds a line that is no measurement"):
        read_results(path)


def test_the_table_adds_up_the_sets_of_one_temperature() -> None:
    first = replace(KEY, counts=Counts(passes=10, tokens=20, drafted=[10, 10], accepted=[6, 4]))
    second = replace(first, workload="code", num_prompts=7)
    second = replace(
        second, counts=Counts(passes=30, tokens=90, drafted=[30, 30], accepted=[30, 30])
    )
    third = replace(first, temperature=1.0)
    (total, members), (alone, _) = over_all_sets([first, second, third])
    assert members == [first, second]
    assert total.workload == "all"
    assert total.counts == Counts(passes=40, tokens=110, drafted=[40, 40], accepted=[36, 34])
    assert alone.temperature == 1.0
    lines = table([first, second, third]).splitlines()
    assert len(lines) == 2 + 3 + 1
    assert lines[4] == (
        "| d | vLLM | 2 | 0 | all | 40 | 2.750 | 0.875 | 0.900 0.850 | 0.900 0.944 |"
    )
    assert "| offline |" in table([replace(first, source="offline")])
    # The sum is not counted into a member.
    assert first.counts is not None and first.counts.passes == 10


def test_the_digest_is_that_of_the_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"a")
    before = digest(tmp_path)
    assert len(before) == 12
    (tmp_path / "README.md").write_text("b")
    assert digest(tmp_path) == before
    (tmp_path / "model.safetensors").write_bytes(b"b")
    assert digest(tmp_path) != before
