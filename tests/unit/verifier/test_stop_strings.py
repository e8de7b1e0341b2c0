"""What is counted of a pass in which a stop string ended the request."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.verifier.stop_strings import BEFORE, before_pass, final_counts


def report(proposed: int, accepted: int, *per_position: int) -> dict[str, Any]:
    return {
        "rounds": 9,
        "proposed": proposed,
        "accepted": accepted,
        "accepted_per_position": list(per_position),
    }


# Before the pass: two drafts, one accepted. The pass adds four drafts, the first two right, and
# so three tokens to the eleven that there were.
EARLIER = report(2, 1, 1, 0)
LATER = report(6, 3, 2, 1, 0, 0) | {BEFORE: before_pass(EARLIER, 11)}


@pytest.mark.parametrize(
    ("num_kept", "expected"),
    [
        (1, report(3, 2, 2, 0)),
        (2, report(4, 3, 2, 1)),
        # The last token is the bonus: the draft that it corrected counts, the one behind does not.
        (3, report(5, 3, 2, 1, 0)),
    ],
)
def test_drafts_behind_the_string_are_left_out(num_kept: int, expected: dict[str, Any]) -> None:
    assert final_counts(LATER, 11 + num_kept, ended_by_string=True) == expected


def test_other_ends_are_counted_as_the_engine_did() -> None:
    everything = report(6, 3, 2, 1, 0, 0)
    assert final_counts(LATER, 14, ended_by_string=False) == everything
    assert final_counts(everything, 14, ended_by_string=False) == everything


def test_an_undrafted_pass_stays_one() -> None:
    later = report(2, 1, 1, 0) | {BEFORE: before_pass(EARLIER, 11)}
    assert final_counts(later, 12, ended_by_string=True) == EARLIER


def test_what_it_is_given_stays_as_it_is() -> None:
    final_counts(LATER, 12, ended_by_string=True)
    assert LATER == report(6, 3, 2, 1, 0, 0) | {BEFORE: before_pass(EARLIER, 11)}
    assert EARLIER == report(2, 1, 1, 0)
