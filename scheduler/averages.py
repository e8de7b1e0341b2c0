"""Running averages of what the decisions are made from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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


class _Forwards:
    """Those of about the same number of rows."""

    def __init__(self) -> None:
        self.num_rows = Average()
        self.seconds = Average()
        self.number = 0

    def add(self, num_rows: int, seconds: float) -> None:
        self.number += 1
        if self.number == 2:
            # What is compiled or allocated in the first one is no part of the time.
            seconds = min(seconds, self.seconds.value or seconds)
            self.num_rows, self.seconds = Average(), Average()
        self.num_rows.add(num_rows)
        self.seconds.add(seconds)


class RowTimes:
    """How long a forward takes with so many rows: measured in steps of powers of two."""

    def __init__(self) -> None:
        self._steps: dict[int, _Forwards] = {}

    def add(self, num_rows: int, seconds: float) -> None:
        """Takes in one forward."""
        self._steps.setdefault(_step(num_rows), _Forwards()).add(num_rows, seconds)

    def seconds(self, num_rows: float) -> float | None:
        """Returns the time of a forward with ``num_rows`` rows; None if nothing is measured.

        Between two measured sizes the time lies on a line. Beyond the largest one it grows as the
        rows do, below the smallest one it stays: the worst that can be.
        """
        below, above = (0.0, 0.0), None
        for point in self._points():
            if point[0] <= num_rows:
                below = point
            elif above is None:
                above = point
        if above is None:
            return below[1] * num_rows / below[0] if below[0] else None
        if not below[0]:
            return above[1]
        share = (num_rows - below[0]) / (above[0] - below[0])
        return below[1] + share * (above[1] - below[1])

    def least_seconds(self, num_rows: int) -> float | None:
        """Returns the same, but beyond what was measured the best that can be."""
        points = self._points()
        if not points:
            return None
        smallest, seconds = points[0]
        if num_rows < smallest:
            return seconds * num_rows / smallest
        return self.seconds(min(num_rows, points[-1][0]))

    def most_rows(self, seconds: float, limit: int) -> int:
        """Returns how many rows a forward of at most ``seconds`` may have; at least 1."""
        for num_rows in self._sizes(limit):
            time = self.seconds(num_rows)
            if time is None or time <= seconds:
                return num_rows
        return 1

    def best_rows(self, weights: Sequence[float], seconds: float) -> int:
        """Returns how many of ``weights`` a forward should have for the most to come of it.

        More rows hold more weight. But where a forward takes longer than ``seconds``, so much less
        of what it begins is done in time. A size that is not known yet is taken to be as fast as
        half of it: else a curve that is flat would never be found.

        Args:
            weights: Of the rows that there could be, the greatest first.
            seconds: The time that there is for each forward.
        """
        best, best_value = 1, 0.0
        for num_rows in reversed(self._sizes(len(weights))):
            known = self._steps.get(_step(num_rows))
            is_new = known is None or known.number < 2
            time = self.seconds(num_rows / 2 if is_new else num_rows) or 0.0
            value = sum(weights[:num_rows]) * (min(1.0, seconds / time) if time else 1.0)
            if value > best_value:
                best, best_value = num_rows, value
        return best

    def _sizes(self, limit: int) -> list[int]:
        """The sizes to choose from, the largest first: at most twice of what was measured."""
        return list(_halved(min(limit, (2 << max(self._steps)) if self._steps else 1)))

    def _points(self) -> list[tuple[float, float]]:
        """Mean rows and seconds of what was measured, the smallest first."""
        points = [(f.num_rows.value or 0.0, f.seconds.value or 0.0) for f in self._steps.values()]
        return sorted(points)


def _step(num_rows: int) -> int:
    return max(num_rows - 1, 0).bit_length()


def _halved(largest: int) -> Iterable[int]:
    while largest > 1:
        yield largest
        largest = 1 << ((largest - 1).bit_length() - 1)
    yield 1
