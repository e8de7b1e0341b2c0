"""The output folder: what is finished stays finished, and nothing is mixed up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.store import Measurement, Run, Store
from paceline.errors import ConfigError
from tests.unit.bench.made import NGRAM_CONTENDER, PLAIN_CONTENDER, counts, measurement, record


def a_run(max_resident: int = 8, cores: int = 2, **arguments: Any) -> Run:
    return Run(
        arguments={"repeats": 3, "workload": {"name": "w", "sha256": "0" * 64}, **arguments},
        environment={"cpu": {"cores": cores}},
        max_resident=max_resident,
        load_average=[0.5, 0.5, 0.5],
    )


def finished(repeat: int = 0) -> Measurement:
    request = record((0.5, 1), (0.75, 3), counts=counts())
    return measurement(NGRAM_CONTENDER, request, repeat=repeat, differences=[])


def begun(folder: Path, run: Run | None = None) -> None:
    """An earlier start, which has measured one thing."""
    with Store.open(folder, run or a_run(), resume=False) as store:
        store.add(finished())


def reopened(folder: Path, run: Run | None = None) -> Store:
    """What is found when going on."""
    with Store.open(folder, run or a_run(), resume=True) as store:
        return store


def test_what_was_measured_is_there_again(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a" / "b", a_run(), resume=False) as store:
        store.add(finished())
        store.add(measurement(PLAIN_CONTENDER, record((0.5, 1)), record(error="too long")))
    again = reopened(tmp_path / "a" / "b")
    assert list(again) == list(store)
    assert again.find(*finished().key) == finished()
    assert again.find(0, str(NGRAM_CONTENDER), 1, 0.0, 1) is None


def test_the_groups_of_the_first_start_are_kept(tmp_path: Path) -> None:
    begun(tmp_path, a_run(max_resident=5))
    assert reopened(tmp_path, a_run(max_resident=3)).run.max_resident == 5


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    begun(tmp_path)
    path = tmp_path / "measurements.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    with Store.open(tmp_path, a_run(), resume=True) as again:
        assert len(again) == 1
        again.add(finished(1))
    assert [json.loads(line)["repeat"] for line in path.read_text().splitlines()] == [0, 1]


def test_resuming_what_never_began_begins_it(tmp_path: Path) -> None:
    assert len(reopened(tmp_path / "new")) == 0


def test_what_failed_before_it_measured_anything_is_in_nobody_s_way(tmp_path: Path) -> None:
    for resume in (False, False, True, False):
        with Store.open(tmp_path, a_run(repeats=resume), resume=resume):
            (tmp_path / "answers.jsonl").write_text("")
    begun(tmp_path, a_run(repeats=5))
    assert reopened(tmp_path, a_run(repeats=5)).run == a_run(repeats=5)


def test_a_folder_is_for_one_run_at_a_time(tmp_path: Path) -> None:
    with Store.open(tmp_path, a_run(), resume=False) as store:
        store.add(finished())
        for resume in (False, True):
            with pytest.raises(ConfigError, match="is used by another run; wait for its end"):
                Store.open(tmp_path, a_run(), resume=resume)
        store.add(finished(1))
    assert len(reopened(tmp_path)) == 2


def test_who_was_refused_does_not_keep_the_folder(tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(ConfigError, match="--resume"):
        Store.open(tmp_path, a_run(), resume=False)
    assert len(reopened(tmp_path)) == 1


@pytest.mark.parametrize("damage", [b"{", b"", b'{"group": "x"}', b'{"contender": "\xff"}'])
def test_a_damaged_line_is_named(tmp_path: Path, damage: bytes) -> None:
    begun(tmp_path)
    path = tmp_path / "measurements.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + damage + b"\n" + whole)
    with pytest.raises(ConfigError, match=r"measurements\.jsonl, line 2 is damaged .* delete this"):
        Store.open(tmp_path, a_run(), resume=True)
    path.write_bytes(whole)
    assert len(reopened(tmp_path)) == 1


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(ConfigError, match=r"is not empty; name another folder, or add --resume"):
        Store.open(tmp_path, a_run(), resume=False)


def test_a_folder_of_something_else_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds no run that could be resumed"):
        Store.open(tmp_path, a_run(), resume=True)
    with pytest.raises(ConfigError, match="is not empty"):
        Store.open(tmp_path, a_run(), resume=False)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"], "left as it was"


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (a_run(repeats=5), "was measured with repeats 5, this run has repeats 3"),
        (a_run(cores=64), 'was measured with cpu {"cores": 64}, this run has cpu {"cores": 2}'),
        (a_run(categories=["qa"]), 'with categories ["qa"], this run has categories null'),
        (
            a_run(workload={"name": "w", "sha256": "1" * 64}),
            "was measured with another workload, this run has another workload",
        ),
    ],
)
def test_measurements_of_something_else_are_not_taken_up(
    tmp_path: Path, other: Run, expected: str
) -> None:
    begun(tmp_path, other)
    with pytest.raises(ConfigError) as refused:
        Store.open(tmp_path, a_run(), resume=True)
    assert expected in str(refused.value)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        Store.open(tmp_path / "file" / "x", a_run(), resume=False)


def test_results_hold_no_number_that_is_none(tmp_path: Path) -> None:
    with Store.open(tmp_path, a_run(), resume=False) as store:
        store.write_results({"cells": [{"ratio": None}]})
        assert json.loads((tmp_path / "results.json").read_text()) == {"cells": [{"ratio": None}]}
        with pytest.raises(ValueError, match="not JSON compliant"):
            store.write_results({"cells": [float("nan")]})
