"""How often drafts are at hand at the end of a pass that had time for a number of outcomes.

A pass that verifies K drafts, each of them right with probability a, ends with j < K accepted
drafts with probability a^j (1 - a), and with all of them with a^K. h(F) is the probability that the
target's token is one of F that the drafter tried at that place. So, with F_j tokens tried behind j
drafts,

    p = sum of a^j (1 - a) h(F_j) over j < K, + a^K h(F_K)

which is the hit rate of speculative speculative decoding (arXiv 2603.03251).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator

Law = Callable[[int], float]
"""h: the probability that the token is one of the first F; 0 for F = 0, and never falling."""


def expected_hit_rate(accuracy: float, num_drafts: int, fanout: int) -> float:
    """Returns p for a scripted draft (drafter/scripted.py), with the best ``fanout`` outcomes.

    Args:
        accuracy: ``scripted_accuracy``.
        num_drafts: K.
        fanout: The sum of all F_j.
    """

    def rejected(tried: int) -> float:
        # The first choice was rejected, so it is not among those that are tried.
        return 1 - math.pow(tried + 1, -1.5)

    def last(tried: int) -> float:
        return 1 - (1 - accuracy) * math.pow(tried, -1.5) if tried else 0.0

    # The best F_j are those of the most probable outcomes.
    return sum(heapq.nlargest(fanout, outcomes(accuracy, num_drafts, fanout, rejected, last)))


def outcomes(
    accuracy: float, num_drafts: int, num_tokens: int, rejected: Law, last: Law
) -> Iterator[float]:
    """Yields the probability of every outcome, for the first ``num_tokens`` tokens of each place.

    Args:
        rejected: h behind fewer than all drafts.
        last: h behind all of them.
    """
    for j in range(num_drafts + 1):
        is_last = j == num_drafts
        law, reached = (last, 1.0) if is_last else (rejected, 1 - accuracy)
        for tried in range(1, num_tokens + 1):
            yield math.pow(accuracy, j) * reached * (law(tried) - law(tried - 1))
