"""Figures of a run: right where they are defined, absent where they are not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.cluster.report import Comparison, Totals, row, summary, with_rates


def counters(
    proposed: int = 10, accepted: int = 6, rounds: int = 8, drafted_rounds: int = 4
) -> dict[str, Any]:
    return {
        "proposed": proposed,
        "accepted": accepted,
        "rounds": rounds,
        "drafted_rounds": drafted_rounds,
    }


def result(tokens: int = 20, speculation: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"usage": {"completion_tokens": tokens}, "speculation": speculation}


def totals(seconds: float = 2.0, **changes: int) -> Totals:
    made = Totals(seconds=seconds)
    made.add(result(20, counters(**changes)))
    return made


def test_rates_are_added_beside_the_counts() -> None:
    assert with_rates(counters()) == {
        **counters(),
        "acceptance_rate": 0.6,
        "mean_acceptance_length": 2.5,
    }


def test_rates_are_null_where_nothing_was_drafted() -> None:
    rates = with_rates(counters(proposed=0, accepted=0, drafted_rounds=0))
    assert rates is not None
    assert rates["acceptance_rate"] is None and rates["mean_acceptance_length"] is None


def test_drafts_that_were_all_wrong_have_rates() -> None:
    rates = with_rates(counters(accepted=0))
    assert rates is not None
    assert (rates["acceptance_rate"], rates["mean_acceptance_length"]) == (0.0, 1.0)


def test_a_plain_engine_has_no_speculation() -> None:
    assert with_rates(None) is None


@given(st.integers(0, 50), st.integers(1, 8))
def test_rates_stay_within_their_bounds(rounds: int, k: int) -> None:
    for accepted in (0, rounds * k):
        rates = with_rates(counters(rounds * k, accepted, rounds, rounds))
        assert rates is not None
        if rounds:
            assert rates["acceptance_rate"] == accepted / (rounds * k)
            assert 1 <= rates["mean_acceptance_length"] <= 1 + k


def test_totals_are_sums_and_plain_results_count_tokens_only() -> None:
    made = Totals(seconds=4.0)
    made.add(result(20, counters()))
    made.add(result(10, counters(1, 1, 1, 1)))
    made.add(result(10, None))
    assert made == Totals(
        requests=3, tokens=40, seconds=4.0, proposed=11, accepted=7, rounds=9, drafted_rounds=5
    )
    assert made.tokens_per_second == 10.0


def test_without_time_there_is_no_speed() -> None:
    assert Totals().tokens_per_second == 0.0
    assert "0 requests, 0 tokens in 0.0 s: 0.0 tokens/s" in summary(Totals(), None)


def test_a_summary_of_a_drafted_run() -> None:
    assert summary(totals(), None).splitlines() == [
        "1 requests, 20 tokens in 2.0 s: 10.0 tokens/s",
        "drafts: 6 of 10 accepted (60%); a drafted pass commits 2.50 tokens, plain decoding 1; "
        "4 of 8 rounds were drafted",
    ]


def test_a_summary_where_nothing_was_drafted_says_so() -> None:
    text = summary(totals(proposed=0, accepted=0, drafted_rounds=0), None)
    assert text.splitlines()[1:] == ["drafts: none in 8 rounds"]


def test_a_summary_of_plain_decoding_does_not_speak_of_drafts() -> None:
    plain = Totals(seconds=1.0)
    plain.add(result())
    assert "draft" not in summary(plain, None)


def test_a_comparison_names_speed_and_differences() -> None:
    comparison = Comparison(
        plain=totals(seconds=4.0), compared=3, equal=1, ties=1, differences=["a", "b"]
    )
    assert summary(totals(), comparison).splitlines()[2:] == [
        "plain decoding: 5.0 tokens/s",
        "speed against plain decoding: 2.00x",
        "outputs equal to plain decoding: 1 of 3, 1 more part at a tie",
        "a",
        "b",
    ]


def test_a_comparison_without_time_or_ties() -> None:
    comparison = Comparison(compared=2, equal=2)
    assert summary(totals(), comparison).splitlines()[2:] == [
        "plain decoding: 0.0 tokens/s",
        "outputs equal to plain decoding: 2 of 2",
    ]


def test_a_comparison_of_nothing_is_left_out() -> None:
    assert summary(totals(), Comparison()) == summary(totals(), None)


def line(**changes: Any) -> dict[str, Any]:
    return {
        "id": "q",
        "text": "one\n two",
        **result(5, with_rates(counters())),
        **changes,
    }


def test_a_row_is_one_line_with_the_request_s_figures() -> None:
    text = row(line(equal_to_plain=True))
    assert "\n" not in text
    assert text.split() == [*"q 5 tokens 6 of 10 drafts 2.50 tokens equal one two".split()]


@pytest.mark.parametrize(
    ("changes", "word"), [({"equal_to_plain": False}, "DIFFERS"), ({}, "tokens  ")]
)
def test_a_row_says_whether_it_was_compared(changes: dict[str, Any], word: str) -> None:
    assert word in row(line(**changes))
    assert ("equal" in row(line(**changes))) is False


def test_a_row_of_an_undrafted_request_has_no_length() -> None:
    for speculation in (None, with_rates(counters(0, 0, 3, 0))):
        assert "0 of 0 drafts                 -  " in row(line(speculation=speculation))


def test_long_ids_and_texts_are_cut() -> None:
    text = row(line(id="i" * 50, text="t" * 100), width=10)
    assert text.startswith("i" * 20 + " ")
    assert text.endswith(" " + "t" * 9 + "…")
