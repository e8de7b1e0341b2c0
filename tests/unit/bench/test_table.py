"""The table on the screen."""

from __future__ import annotations

from paceline.bench.cells import cell
from paceline.bench.matrix import Load
from paceline.bench.table import HEADERS, SIMULATED, table
from tests.unit.bench.made import (
    NGRAM_CONTENDER,
    PLAIN_CONTENDER,
    SCRIPTED_CONTENDER,
    counts,
    measurement,
    record,
)

LOAD = Load(concurrency=1, temperature=0.0)
MEASURED = [
    measurement(PLAIN_CONTENDER, record((0.5, 1), (1.5, 1)), seconds=1.0),
    measurement(NGRAM_CONTENDER, record((0.5, 1), (1.0, 1), counts=counts()), seconds=0.5),
]


def lines() -> list[str]:
    cells = [
        cell(PLAIN_CONTENDER, LOAD, None, MEASURED),
        cell(NGRAM_CONTENDER, LOAD, "ngram", MEASURED),
    ]
    return table(cells).splitlines()


def test_the_figures_stand_in_their_columns() -> None:
    header, plain, ngram = lines()
    assert header.split() == " ".join(HEADERS).split()
    assert plain.split() == ("plain - float32 1 0 2.0 - - 500 1000.0 1000.0 - - - - - 0".split())
    expected = (
        "paceline:ngram@lockstep 2 float32 1 0 4.0 - 2.00 500 500.0 500.0 6.0 - 0.75 2.50 - 0"
    )
    assert ngram.split() == expected.split()


def test_the_hit_rate_of_the_pipelined_mode_has_a_column() -> None:
    hit = measurement(
        SCRIPTED_CONTENDER, record((0.5, 1), counts=counts(hits=3, misses={"bonus": 1}))
    )
    header, row, _ = table([cell(SCRIPTED_CONTENDER, LOAD, "scripted", [hit])]).splitlines()
    end = header.index("hits") + len("hits")
    assert row[:end].split()[-1] == "0.75"


def test_the_columns_are_aligned() -> None:
    header, plain, ngram = lines()
    for name in ("tokens/s", "vs plain", "errors"):
        end = header.index(name) + len(name)
        assert all(
            line[end - 1] != " " and line[end : end + 2].strip() == "" for line in (plain, ngram)
        )


def test_what_is_simulated_is_marked_and_a_note_says_what_that_means() -> None:
    cells = [
        cell(PLAIN_CONTENDER, LOAD, None, MEASURED),
        cell(NGRAM_CONTENDER, LOAD, "scripted", MEASURED),
    ]
    _, plain, scripted, note = table(cells).splitlines()
    assert scripted.startswith(f"{NGRAM_CONTENDER.system} (simulated)  ")
    assert "simulated" not in plain
    assert note == SIMULATED and "scripted_accuracy" in note
