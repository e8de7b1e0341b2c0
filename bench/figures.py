"""Statistics of small samples; what is undefined is None."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Returns a percentile, interpolated linearly between neighbours; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median(values: Sequence[float]) -> float | None:
    """Returns the median; None without values."""
    return percentile(values, 50)


def interquartile_range(values: Sequence[float]) -> float | None:
    """Returns the 75th less the 25th percentile; None for fewer than two values."""
    upper, lower = percentile(values, 75), percentile(values, 25)
    return None if upper is None or lower is None or len(values) < 2 else upper - lower


def ratio(part: float, whole: float) -> float | None:
    """Returns ``part / whole``; None where the whole is zero."""
    return part / whole if whole else None
