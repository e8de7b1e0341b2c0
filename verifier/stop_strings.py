"""Counts of a request that a stop string ends: what lies behind its end was not drafted for it.

vLLM finds stop strings in the front end, in the text of what a pass has added already. The engine,
which counts, does not know of them. So it sends, with the counts, those of before the pass, and
the front end counts the pass itself, up to the last token that it kept.
"""

from __future__ import annotations

from typing import Any

BEFORE = "before_pass"
"""Key of ``before_pass``'s value in the counts of a request that has stop strings."""


def before_pass(report: dict[str, Any], num_tokens: int) -> dict[str, Any]:
    """Returns what the front end needs of the counts before a pass.

    Args:
        report: ``Pipeline.report`` before the pass.
        num_tokens: Output tokens of the request before the pass.
    """
    counted = ("proposed", "accepted", "accepted_per_position")
    return {"num_tokens": num_tokens, **{name: report[name] for name in counted}}


def final_counts(report: dict[str, Any], num_tokens: int, ended_by_string: bool) -> dict[str, Any]:
    """Returns the counts of a request as a client sees them.

    Args:
        report: ``Pipeline.report`` after its last pass, with ``BEFORE`` if it has stop strings.
        num_tokens: Its output tokens, those behind the end left out.
        ended_by_string: Whether a stop string ended it.
    """
    counts = dict(report)
    before = counts.pop(BEFORE, None)
    if before is None or not ended_by_string:
        return counts
    kept = num_tokens - before["num_tokens"]
    proposed = min(counts["proposed"] - before["proposed"], kept)
    accepted = min(counts["accepted"] - before["accepted"], kept)
    per_position = list(before["accepted_per_position"])
    per_position += [0] * (proposed - len(per_position))
    for position in range(accepted):
        per_position[position] += 1
    return {
        **counts,
        "proposed": before["proposed"] + proposed,
        "accepted": before["accepted"] + accepted,
        "accepted_per_position": per_position,
    }
