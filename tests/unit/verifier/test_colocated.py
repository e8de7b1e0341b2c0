"""vLLM's counts of a request, in our words."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.verifier.colocated import read_counts


@dataclass
class Metrics:
    """The fields of vLLM's ``RequestSpecDecodeMetrics`` that are read."""

    per_step_drafted: list[int] = field(default_factory=list)
    per_step_accepted: list[int] = field(default_factory=list)


def test_passes_are_summed_up() -> None:
    metrics = Metrics(per_step_drafted=[3, 2, 3], per_step_accepted=[3, 0, 1])
    assert read_counts(metrics, "ngram") == {
        "method": "ngram",
        "rounds": None,
        "drafted_rounds": 3,
        "proposed": 8,
        "accepted": 4,
        "accepted_per_position": [2, 1, 1],
    }


def test_a_pass_whose_drafts_the_grammar_took_is_not_a_drafted_one() -> None:
    metrics = Metrics(per_step_drafted=[0, 2], per_step_accepted=[0, 1])
    counts = read_counts(metrics, "ngram")
    assert (counts["drafted_rounds"], counts["accepted_per_position"]) == (1, [1, 0])


def test_without_drafts_all_counts_are_zero() -> None:
    counts = read_counts(Metrics(), "ngram")
    assert (counts["proposed"], counts["accepted_per_position"]) == (0, [])
