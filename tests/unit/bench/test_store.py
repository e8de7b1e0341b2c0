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


def test_what_was_measured_is_there_again(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "a" / "b", a_run(), resume=False)
    store.add(finished())
    store.add(measurement(PLAIN_CONTENDER, record((0.5, 1)), record(error="too long")))
    again = Store.open(tmp_path / "a" / "b", a_run(), resume=True)
    assert list(again) == list(store)
    assert again.find(*finished().key) == finished()
    assert again.find(0, str(NGRAM_CONTENDER), 1, 0.0, 1) is None


def test_the_groups_of_the_first_start_are_kept(tmp_path: Path) -> None:
    Store.open(tmp_path, a_run(max_resident=5), resume=False)
    assert Store.open(tmp_path, a_run(max_resident=3), resume=True).run.max_resident == 5


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    store = Store.open(tmp_path, a_run(), resume=False)
    store.add(finished(0))
    path = tmp_path / "measurements.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    again = Store.open(tmp_path, a_run(), resume=True)
    assert len(again) == 1
    again.add(finished(1))
    assert [json.loads(line)["repeat"] for line in path.read_text().splitlines()] == [0, 1]


def test_resuming_what_never_began_begins_it(tmp_path: Path) -> None:
    assert len(Store.open(tmp_path / "new", a_run(), resume=True)) == 0


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    Store.open(tmp_path, a_run(), resume=False)
    with pytest.raises(ConfigError, match=r"is not empty; name another folder, or add --resume"):
        Store.open(tmp_path, a_run(), resume=False)


def test_a_folder_of_something_else_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds no run that could be resumed"):
        Store.open(tmp_path, a_run(), resume=True)


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
    Store.open(tmp_path, other, resume=False)
    with pytest.raises(ConfigError) as refused:
        Store.open(tmp_path, a_run(), resume=True)
    assert expected in str(refused.value)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        Store.open(tmp_path / "file" / "x", a_run(), resume=False)


def test_results_hold_no_number_that_is_none(tmp_path: Path) -> None:
    store = Store.open(tmp_path, a_run(), resume=False)
    store.write_results({"cells": [{"ratio": None}]})
    assert json.loads((tmp_path / "results.json").read_text()) == {"cells": [{"ratio": None}]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.write_results({"cells": [float("nan")]})
