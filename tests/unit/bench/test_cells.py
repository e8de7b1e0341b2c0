"""Each figure of a cell, computed by hand; null where it is not defined."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.bench.cells import cell
from paceline.bench.matrix import Contender, Load
from paceline.bench.store import Difference, Measurement
from tests.unit.bench.made import (
    NGRAM_CONTENDER,
    PLAIN_CONTENDER,
    counts,
    measurement,
    record,
    vllm_counts,
)

LOAD = Load(concurrency=1, temperature=0.0)


def figures(*measurements: Measurement, contender: Contender = NGRAM_CONTENDER) -> dict[str, Any]:
    method = None if contender is PLAIN_CONTENDER else "ngram"
    return cell(contender, LOAD, method, measurements)


def test_what_a_cell_is() -> None:
    made = figures(measurement(NGRAM_CONTENDER, record((0.5, 1))))
    expected = {
        "system": "paceline",
        "drafter": "ngram",
        "method": "ngram",
        "mode": "lockstep",
        "dtype": "float32",
        "num_speculative_tokens": 2,
        "concurrency": 1,
        "temperature": 0.0,
        "simulated": False,
        "num_repeats": 1,
        "num_prompts": 1,
        "num_errors": 0,
    }
    assert {name: made[name] for name in expected} == expected


def test_speed_is_the_median_over_repeats_with_its_spread() -> None:
    repeats = [
        measurement(NGRAM_CONTENDER, record((0.5, 10)), record((0.5, 10)), repeat=i, seconds=s)
        for i, s in enumerate([1.0, 2.0, 4.0])
    ]
    made = figures(*repeats)
    assert made["output_tokens_per_s"] == 10.0
    assert made["output_tokens_per_s_iqr"] == pytest.approx(7.5)


def test_the_ratio_is_taken_repeat_by_repeat_within_a_group() -> None:
    request = record((0.5, 10))
    measurements = [
        measurement(PLAIN_CONTENDER, request, repeat=0, seconds=1.0),
        measurement(PLAIN_CONTENDER, request, repeat=1, seconds=3.0),
        measurement(PLAIN_CONTENDER, request, repeat=2, seconds=9.0),
        measurement(PLAIN_CONTENDER, request, repeat=0, seconds=99.0, group=1),
        measurement(NGRAM_CONTENDER, request, repeat=0, seconds=0.5),
        measurement(NGRAM_CONTENDER, request, repeat=1, seconds=1.0),
        measurement(NGRAM_CONTENDER, request, repeat=2, seconds=2.0),
    ]
    assert figures(*measurements)["ratio_to_plain"] == pytest.approx(3.0)
    plain = figures(*measurements, contender=PLAIN_CONTENDER)
    assert plain["ratio_to_plain"] is None
    assert plain["num_repeats"] == 4, "plain is in each group"


def test_another_load_and_another_k_are_other_cells() -> None:
    mine = measurement(NGRAM_CONTENDER, record((0.5, 10)))
    other = Contender(system=NGRAM_CONTENDER.system, dtype="float32", num_speculative_tokens=4)
    assert figures(mine, contender=other)["output_tokens_per_s"] is None
    busy = cell(NGRAM_CONTENDER, Load(concurrency=4, temperature=0.0), "ngram", [mine])
    assert busy["num_repeats"] == 0


def test_latencies() -> None:
    requests = [record((0.5, 1), (0.75, 5), (0.875, 1)), record((1.5, 2), (2.0, 1))]
    made = figures(measurement(NGRAM_CONTENDER, *requests))
    assert made["ttft_ms"] == {"p50": 1000.0, "p99": pytest.approx(1490.0)}
    # 0.25 s for 5 tokens, 0.125 s for one, 0.5 s for one.
    assert made["itl_ms"]["p50"] == pytest.approx(125.0)
    assert made["itl_ms"]["p99"] == pytest.approx(125 + 0.98 * 375)
    assert made["round_ms"] == pytest.approx(1000 * (0.375 + 0.5) / 3)


def test_acceptance_is_summed_over_the_requests_and_repeats() -> None:
    long = counts(proposed=3, accepted=3, drafted_rounds=1, accepted_per_position=[1, 1, 1])
    none = counts(proposed=0, accepted=0, drafted_rounds=0, accepted_per_position=[])
    made = figures(
        measurement(NGRAM_CONTENDER, record((1, 1), counts=counts()), record((1, 1), counts=long)),
        measurement(NGRAM_CONTENDER, record((1, 1), counts=none), repeat=1),
    )
    assert made["acceptance_rate"] == pytest.approx(6 / 7)
    assert made["mean_acceptance_length"] == pytest.approx(1 + 6 / 3)
    assert made["accepted_per_position"] == pytest.approx([3 / 3, 2 / 3, 1 / 3])


def test_drafts_that_were_all_wrong_have_a_rate_of_zero() -> None:
    wrong = counts(accepted=0, accepted_per_position=[0, 0])
    made = figures(measurement(NGRAM_CONTENDER, record((1, 1), counts=wrong)))
    assert (made["acceptance_rate"], made["mean_acceptance_length"]) == (0.0, 1.0)
    assert made["accepted_per_position"] == [0.0, 0.0]


def test_vllms_counts_know_no_rounds() -> None:
    made = figures(measurement(NGRAM_CONTENDER, record((1, 1), counts=vllm_counts())))
    assert made["acceptance_rate"] == 0.75
    assert made["exposed_wait_ms"] is made["verify_ms"] is made["hit_rate"] is None


@pytest.mark.parametrize(
    "counted", [None, counts(proposed=0, accepted=0, drafted_rounds=0, accepted_per_position=[])]
)
def test_without_drafts_there_is_no_acceptance(counted: dict[str, Any] | None) -> None:
    made = figures(measurement(NGRAM_CONTENDER, record((1, 1), counts=counted)))
    for name in ("acceptance_rate", "mean_acceptance_length", "accepted_per_position"):
        assert made[name] is None


def test_equality_counts_every_prompt_of_every_repeat() -> None:
    differs = [Difference(id="b", position=7, top_two_gap=0.25)]
    pair = [record((1, 1), id="a"), record((1, 1), id="b")]
    made = figures(
        *(measurement(PLAIN_CONTENDER, *pair, repeat=repeat) for repeat in range(2)),
        measurement(NGRAM_CONTENDER, *pair, differences=[]),
        measurement(NGRAM_CONTENDER, *pair, differences=differs, repeat=1),
    )
    assert made["equal_to_plain"] == 0.75
    assert made["differences"] == [{"prompt": "b", "repeat": 1, "position": 7, "top_two_gap": 0.25}]


def test_what_was_not_compared_is_neither_equal_nor_unequal() -> None:
    made = figures(measurement(NGRAM_CONTENDER, record((1, 1))))
    assert (made["equal_to_plain"], made["differences"]) == (None, None)


def test_an_output_that_plain_decoding_does_not_have_is_neither_equal_nor_unequal() -> None:
    pair, failed = [record((1, 1)), record((1, 1))], record(error="too long")
    ours = measurement(NGRAM_CONTENDER, *pair, differences=[])
    made = figures(measurement(PLAIN_CONTENDER, failed, failed), ours)
    assert (made["equal_to_plain"], made["differences"]) == (None, None)
    differs = [Difference(id="a", position=0, top_two_gap=None)]
    half = measurement(NGRAM_CONTENDER, *pair, differences=differs)
    made = figures(measurement(PLAIN_CONTENDER, record((1, 1)), failed), half)
    assert made["equal_to_plain"] == 0.0, "one was compared, not two"


def test_a_scripted_draft_is_marked() -> None:
    ours = measurement(NGRAM_CONTENDER, record((1, 1)))
    assert cell(NGRAM_CONTENDER, LOAD, "scripted", [ours])["simulated"] is True
    assert cell(NGRAM_CONTENDER, LOAD, "ngram", [ours])["simulated"] is False


def test_what_is_expected_of_a_draft_stands_beside_what_was_found() -> None:
    ours = measurement(NGRAM_CONTENDER, record((1, 1), counts=counts(hits=1, misses={"bonus": 1})))
    made = cell(NGRAM_CONTENDER, LOAD, "scripted", [ours], expected_hit_rate=0.75)
    assert (made["hit_rate"], made["expected_hit_rate"]) == (0.5, 0.75)
    assert figures(ours)["expected_hit_rate"] is None


def test_prompts_that_failed_are_counted_once_and_in_no_figure() -> None:
    failed = record(id="long", error="too long", token_ids=[])
    made = figures(
        *(measurement(PLAIN_CONTENDER, record((1, 4)), failed, repeat=i) for i in range(2)),
        measurement(NGRAM_CONTENDER, record((1, 4)), failed, differences=[]),
        measurement(NGRAM_CONTENDER, record((1, 4)), failed, differences=[], repeat=1),
    )
    assert (made["num_errors"], made["num_prompts"]) == (1, 2)
    assert made["equal_to_plain"] == 1.0
    assert made["output_tokens_per_s"] == 4.0


def test_if_nothing_was_served_everything_is_null() -> None:
    failed = record(error="too long")
    ours = measurement(NGRAM_CONTENDER, failed, differences=[])
    made = figures(measurement(PLAIN_CONTENDER, failed), ours)
    for name in (
        *("output_tokens_per_s", "output_tokens_per_s_iqr", "ratio_to_plain", "round_ms"),
        *("exposed_wait_ms", "exposed_on_hits", "verify_ms", "hit_rate", "misses"),
        *("acceptance_rate", "equal_to_plain"),
    ):
        assert made[name] is None, name
    assert made["ttft_ms"] == made["itl_ms"] == {"p50": None, "p99": None}
    assert made["num_errors"] == 1
