"""How a self-test reads its results, and what it makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from paceline.cluster.report import Totals
from paceline.cluster.self_test import NUM_TOKENS, PROMPTS, Evidence, collect, judge, rejections
from paceline.verifier.engine import GenerationRequest

ALL_ACCEPTED = [1, 5, 5, 5, 5, 3]
"""New tokens of each pass: with K = 4 there is room for two drafts in the last one."""


def result(passes: list[int], tokens: list[int] | None = None, **counts: int) -> dict[str, Any]:
    """A detailed result, with the counts of such passes unless ``counts`` says otherwise."""
    assert sum(passes) == NUM_TOKENS
    lengths = [sum(passes[:index]) for index in range(1, len(passes))]
    proposed = sum(min(4, NUM_TOKENS - length - 1) for length in lengths)
    speculation = {
        "rounds": len(passes) - 1,
        "drafted_rounds": len(passes) - 1,
        "proposed": proposed,
        "accepted": sum(passes[1:]) - len(passes) + 1,
        **counts,
    }
    return {
        "token_ids": tokens or list(range(NUM_TOKENS)),
        "prompt_token_ids": [100, 101],
        "usage": {"completion_tokens": NUM_TOKENS},
        "events": [(0.1 * index, number) for index, number in enumerate(passes)],
        "speculation": speculation,
    }


@pytest.mark.parametrize(
    ("passes", "positions"),
    [
        (ALL_ACCEPTED, []),
        ([1, 1, 5, 5, 5, 5, 2], [1]),
        ([1, 5, 3, 5, 5, 5], [8]),
        ([1, 5, 5, 5, 5, 1, 2], [21]),
        ([1] * 24, list(range(1, 23))),
    ],
)
def test_a_pass_that_is_short_has_rejected_a_draft(passes: list[int], positions: list[int]) -> None:
    assert rejections(result(passes)) == positions


def test_a_pass_without_all_its_drafts_is_noticed() -> None:
    assert rejections(result([1, 1, 5, 5, 5, 5, 2], proposed=18)) is None


def two_in_one() -> dict[str, Any]:
    """Outputs of two passes that came as one."""
    return result([1, 10, 5, 5, 3], proposed=18, accepted=18)


def test_an_output_of_two_passes_is_noticed() -> None:
    assert rejections(two_in_one()) is None


class Plain:
    """Plain decoding, by script: the same tokens for each prompt, gaps by the text's length."""

    def __init__(self, tokens: list[int], gaps: dict[int, float]) -> None:
        self._tokens = tokens
        self._gaps = gaps
        self.asked: list[list[int]] = []

    def __call__(self, requests: Sequence[GenerationRequest]) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        for request in requests:
            if request.prompt is not None:
                answers.append({"token_ids": self._tokens})
                continue
            assert request.prompt_token_ids is not None
            assert (request.sampling["max_tokens"], request.sampling["logprobs"]) == (1, 2)
            self.asked.append(request.prompt_token_ids)
            answers.append({"top_two_gaps": [self._gaps[len(request.prompt_token_ids) - 2]]})
        return answers


def test_equal_outputs_of_accepted_drafts_need_no_second_look() -> None:
    plain = Plain(list(range(NUM_TOKENS)), {})
    evidence = collect([result(ALL_ACCEPTED) for _ in PROMPTS], plain)
    assert (evidence.num_differing, evidence.gaps, plain.asked) == (0, [], [])
    assert evidence.totals.proposed == evidence.totals.accepted == 18 * len(PROMPTS)


def test_plain_decoding_is_asked_where_texts_part_and_drafts_were_rejected() -> None:
    tokens = list(range(NUM_TOKENS))
    changed = [*tokens[:7], 50, *tokens[8:20], 51, *tokens[21:]]
    drafted = [result([1, 5, 3, 5, 5, 5], changed)] + [result(ALL_ACCEPTED) for _ in PROMPTS[1:]]
    plain = Plain(tokens, {7: 0.25, 8: 0.125})
    evidence = collect(drafted, plain)
    assert evidence.num_differing == 2
    assert evidence.gaps == [0.25, 0.125]
    assert plain.asked == [[100, 101, *changed[:7]], [100, 101, *changed[:8]]]


def test_a_place_that_is_both_is_asked_for_once() -> None:
    tokens = list(range(NUM_TOKENS))
    drafted = [result([1, 1, 5, 5, 5, 5, 2], [0, 60, *tokens[2:]])] * len(PROMPTS)
    plain = Plain(tokens, {1: 0.0})
    assert collect(drafted, plain).gaps == [0.0]


def test_without_the_places_of_rejections_there_are_no_gaps() -> None:
    drafted = [two_in_one()] + [result(ALL_ACCEPTED) for _ in PROMPTS[1:]]
    assert collect(drafted, Plain(list(range(NUM_TOKENS)), {})).gaps is None


def evidence(
    accepted: int, proposed: int, num_differing: int = 0, gaps: list[float] | None = None
) -> Evidence:
    totals = Totals(rounds=30, drafted_rounds=25 if proposed else 0, tokens=96)
    totals.proposed, totals.accepted = proposed, accepted
    return Evidence(totals=totals, num_differing=num_differing, gaps=gaps)


@pytest.mark.parametrize(
    ("dtype", "seen", "level"),
    [
        ("float32", evidence(100, 100, gaps=[]), "ok"),
        ("float32", evidence(199, 200, gaps=[3.0]), "ok"),
        ("float32", evidence(99, 100, gaps=[0.0]), "fail"),
        ("float32", evidence(100, 100, 1, gaps=[9e-5]), "ok"),
        ("float32", evidence(100, 100, 1, gaps=[1e-4]), "fail"),
        ("float32", evidence(0, 0, gaps=[]), "fail"),
        ("bfloat16", evidence(100, 100, gaps=[]), "ok"),
        ("bfloat16", evidence(60, 100, gaps=[0.49, 0.0]), "ok"),
        ("bfloat16", evidence(98, 100, gaps=[0.5, 0.0]), "fail"),
        ("bfloat16", evidence(100, 100, 3, gaps=[0.49]), "ok"),
        ("bfloat16", evidence(100, 100, 3, gaps=[0.5]), "fail"),
        ("bfloat16", evidence(98, 100), "fail"),
        ("bfloat16", evidence(100, 100), "ok"),
        ("float16", evidence(98, 100, gaps=[0.0624]), "ok"),
        ("float16", evidence(98, 100, gaps=[0.0625]), "fail"),
    ],
)
def test_it_is_judged_by_counts_and_near_ties(dtype: str, seen: Evidence, level: str) -> None:
    assert judge(seen, dtype).level == level


def test_what_differs_is_reported_with_its_gaps() -> None:
    assert judge(evidence(90, 100, 5, gaps=[0.25, 0.03125]), "bfloat16").text == (
        "the target accepted 90 of 100 of its own drafts (90.0%) in bfloat16, and 5 of 96 tokens "
        "differ from plain decoding; where they part, plain decoding's two best tokens are 0.031, "
        "0.25 apart, near-ties (below 0.5), which rounding decides"
    )
