"""Running averages of what the decisions are made from."""

from __future__ import annotations

from collections.abc import Iterable

PRIOR_ACCEPTANCE = 0.65
"""Per draft token, before anything is measured."""


class Average:
    """Exponentially weighted: recent values count, and a single odd one does not."""

    def __init__(self, weight: float = 0.1) -> None:
        self._weight = weight
        self._num_values = 0
        self.value: float | None = None
        """None before the first value."""

    def add(self, value: float) -> None:
        """Takes in a value; the first ones count alike, or the very first would linger."""
        self._num_values += 1
        if self.value is None:
            self.value = value
        else:
            weight = max(self._weight, 1 / self._num_values)
            self.value += weight * (value - self.value)


class Acceptance:
    """How probable the target accepts the draft at each position, given those before it."""

    def __init__(self, prior: float = PRIOR_ACCEPTANCE, prior_weight: float = 4) -> None:
        self._prior = prior
        self._prior_weight = prior_weight
        self._tried: list[float] = []
        self._accepted: list[float] = []

    def add(self, num_drafted: int, num_accepted: int) -> None:
        """Takes in one drafted pass: a draft behind the first rejected one was not tried."""
        for position in range(min(num_accepted + 1, num_drafted)):
            if position == len(self._tried):
                self._tried.append(0.0)
                self._accepted.append(0.0)
            # Old passes fade: half the weight after some 350 further ones.
            self._tried[position] = 0.998 * self._tried[position] + 1
            self._accepted[position] *= 0.998
            self._accepted[position] += position < num_accepted

    def at(self, position: int) -> float:
        """Returns the probability for the draft at ``position``, counted from 0."""
        if position >= len(self._tried):
            # Positions that were never tried do as the last one that was.
            return self.at(len(self._tried) - 1) if self._tried else self._prior
        prior = self._prior * self._prior_weight
        return (self._accepted[position] + prior) / (self._tried[position] + self._prior_weight)

    def outcomes(self, num_drafts: int) -> list[float]:
        """Returns P(j) for j = 0 … ``num_drafts``: that j drafts are accepted, and no more."""
        reached, probabilities = 1.0, []
        for position in range(num_drafts):
            alpha = self.at(position)
            probabilities.append(reached * (1 - alpha))
            reached *= alpha
        return [*probabilities, reached]


class RowTimes:
    """How long a forward takes with so many rows: measured in steps of powers of two."""

    def __init__(self) -> None:
        self._steps: dict[int, Average] = {}

    def add(self, num_rows: int, seconds: float) -> None:
        """Takes in one forward."""
        self._steps.setdefault(max(num_rows - 1, 0).bit_length(), Average()).add(seconds)

    def seconds(self, num_rows: int) -> float | None:
        """Returns the time of a forward with ``num_rows`` rows; None if nothing is known of it.

        Between two measured sizes the larger one's time counts; beyond the largest one the time
        grows as the rows do, which is the worst that can be.
        """
        step = max(num_rows - 1, 0).bit_length()
        larger = [s for s in self._steps if s >= step]
        if larger:
            return self._steps[min(larger)].value
        if not self._steps:
            return None
        largest = max(self._steps)
        value = self._steps[largest].value
        assert value is not None
        return value * num_rows / (1 << largest)

    def least_seconds(self, num_rows: int) -> float | None:
        """Returns what a forward with ``num_rows`` rows takes at the least; None if unknown.

        The time of the largest measured size that is no larger.
        """
        step = max(num_rows - 1, 0).bit_length()
        smaller = [s for s in self._steps if s <= step]
        return self._steps[max(smaller)].value if smaller else None

    def most_rows(self, seconds: float, limit: int) -> int:
        """Returns how many rows a forward of at most ``seconds`` may have; at least 1.

        At most twice of what was measured, so that a curve is learned step by step.
        """
        known = 2 << max(self._steps) if self._steps else 1
        sizes = _halved(min(limit, known))
        fitting = (n for n in sizes if (time := self.seconds(n)) is None or time <= seconds)
        return next(iter(fitting), 1)


def _halved(largest: int) -> Iterable[int]:
    while largest > 1:
        yield largest
        largest = 1 << ((largest - 1).bit_length() - 1)
    yield 1
