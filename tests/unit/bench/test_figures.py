"""Statistics against Python's own, and where there are none."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.bench.figures import interquartile_range, median, percentile, ratio

SAMPLES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30)


@given(SAMPLES)
def test_as_the_standard_library_has_them(values: list[float]) -> None:
    quarters = statistics.quantiles(values, n=4, method="inclusive")
    assert median(values) == pytest.approx(statistics.median(values), abs=1e-6)
    assert interquartile_range(values) == pytest.approx(quarters[2] - quarters[0], abs=1e-6)
    hundredths = statistics.quantiles(values, n=100, method="inclusive")
    assert percentile(values, 99) == pytest.approx(hundredths[98], abs=1e-6)


def test_the_order_of_the_values_does_not_count() -> None:
    assert percentile([30.0, 10.0, 20.0, 40.0, 50.0], 25) == 20.0
    assert (percentile([3.0, 1.0], 0), percentile([3.0, 1.0], 100)) == (1.0, 3.0)


def test_without_values_there_is_nothing() -> None:
    assert median([]) is None
    assert percentile([], 99) is None
    assert interquartile_range([]) is None


def test_one_value_has_a_median_and_no_spread() -> None:
    assert median([7.0]) == 7.0
    assert interquartile_range([7.0]) is None


def test_a_ratio_to_nothing_is_none_and_not_zero() -> None:
    assert ratio(0, 0) is None
    assert ratio(0, 4) == 0.0
