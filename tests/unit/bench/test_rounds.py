"""The figures of rounds, computed by hand; None where they were not counted."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.bench.rounds import round_figures
from tests.unit.bench.made import counts, vllm_counts

NO_GAP = dict.fromkeys(("wait", "look_up", "schedule", "transport", "export"))


def pipelined(**changes: Any) -> dict[str, Any]:
    values = {"hits": 2, "misses": {"bonus": 1}, "hit_exposed_s": 0.01, "hit_verify_s": 0.2}
    return counts(**values | changes)


def test_hits_and_misses_are_parts_of_the_passes_that_were_either() -> None:
    made = round_figures([pipelined(), pipelined(hits=3, misses={"bonus": 1, "late": 1})])
    assert made["hit_rate"] == 5 / 8
    assert made["misses"] == {"none": 0, "length": 0, "bonus": 2 / 8, "stale": 0, "late": 1 / 8}


def test_times_are_means_over_the_rounds_of_all_requests() -> None:
    made = round_figures([counts(), counts(rounds=12, waited_s=0.0, verify_s=0.8)])
    assert made["verify_ms"] == pytest.approx(1000 * 1.2 / 16)
    assert made["gap_ms"] == {
        "wait": pytest.approx(1000 * 0.02 / 16),
        "look_up": pytest.approx(1000 * 0.008 / 16),
        "schedule": pytest.approx(1000 * 0.016 / 16),
        "transport": pytest.approx(1000 * 0.004 / 16),
        "export": None,
    }
    assert made["exposed_wait_ms"] == pytest.approx(1000 * 0.028 / 16), "transport is in the wait"


def test_what_is_exposed_on_hits_is_a_part_of_their_verification() -> None:
    made = round_figures([pipelined(), pipelined(hit_exposed_s=0.03, hit_verify_s=0.6)])
    assert made["exposed_on_hits"] == pytest.approx(0.04 / 0.8)


def test_lockstep_has_neither_hits_nor_misses() -> None:
    made = round_figures([counts()])
    assert made["hit_rate"] is made["misses"] is made["exposed_on_hits"] is None
    assert made["verify_ms"] == pytest.approx(100)


def test_without_a_pass_that_hit_nothing_is_said_of_hits() -> None:
    made = round_figures([pipelined(hits=0, hit_exposed_s=0.0, hit_verify_s=0.0)])
    assert (made["hit_rate"], made["exposed_on_hits"]) == (0.0, None)
    assert round_figures([pipelined(hits=0, misses={})])["misses"] is None, "it ended at once"


@pytest.mark.parametrize("counted", [[], [vllm_counts()], [counts(rounds=0)]])
def test_what_was_not_counted_is_none(counted: list[dict[str, Any]]) -> None:
    made = round_figures(counted)
    assert made.pop("gap_ms") == NO_GAP
    assert made == dict.fromkeys(made)
