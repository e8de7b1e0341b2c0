"""Suffix decoding equals a scan of the text, within its bounds, and forgets what is closed."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafter.build import build_draft_model
from paceline.drafter.config import DrafterConfig
from paceline.drafter.model import Draft, DraftRequest
from paceline.drafter.suffix import CHUNK, SuffixDrafter
from tests.unit.drafter.suffix_reference import best_path

VOCAB = 1 << 20
FEW = st.integers(0, 2)
"""Few different tokens, so that endings do occur again."""
BOUNDS = st.fixed_dictionaries(
    {
        "depth": st.integers(2, 9),
        "factor": st.sampled_from([0.3, 0.5, 1.0, 1.7, 4.0]),
        "min_prob": st.sampled_from([0.0, 0.1, 0.5, 0.75, 1.0]),
    }
)


def drafter(depth: int = 24, factor: float = 1.0, min_prob: float = 0.1) -> SuffixDrafter:
    return SuffixDrafter(
        DrafterConfig(
            name="s",
            method="suffix",
            suffix_max_tree_depth=depth,
            suffix_max_spec_factor=factor,
            suffix_min_token_prob=min_prob,
        )
    )


def draft(text: list[int], k: int = 4, vocab_size: int = VOCAB, **bounds: Any) -> Draft:
    model, request = drafter(**bounds), DraftRequest(text)
    model.open(request)
    [answer] = model.draft([request], k, vocab_size)
    return answer


@given(st.lists(FEW, min_size=1, max_size=40), BOUNDS, st.integers(1, 6), st.integers(1, 3))
def test_a_draft_equals_the_scan_s(
    text: list[int], bounds: dict[str, Any], k: int, vocab_size: int
) -> None:
    answer = draft(text, k, vocab_size, **bounds)
    tokens, confidence, _ = best_path(text, text, num_tokens=k, vocab_size=vocab_size, **bounds)
    assert answer == Draft(tokens, confidence)


@given(st.lists(st.lists(FEW, min_size=1, max_size=6), min_size=1, max_size=12), BOUNDS)
def test_an_automaton_that_grows_with_the_text_equals_one_made_anew(
    pieces: list[list[int]], bounds: dict[str, Any]
) -> None:
    model, request = drafter(**bounds), DraftRequest([])
    model.open(request)
    for piece in pieces:
        request.tokens.extend(piece)
        [answer] = model.draft([request], 5, VOCAB)
        tokens, confidence, _ = best_path(
            request.tokens, request.tokens, num_tokens=5, vocab_size=VOCAB, **bounds
        )
        assert answer == Draft(tokens, confidence)


def test_the_most_frequent_continuation_wins_over_a_later_one() -> None:
    answer = draft([1, 2, 70, 9, 1, 2, 70, 8, 1, 2, 80, 7, 1, 2], 1)
    assert answer == Draft([70], [2 / 4])


def test_the_latest_of_equally_frequent_ones_wins() -> None:
    assert draft([1, 2, 70, 9, 1, 2, 80, 7, 1, 2], 1).tokens == [80]


def test_what_was_seen_once_is_not_certain_and_what_follows_it_is() -> None:
    assert draft([1, 2, 3, 4, 5, 1, 2, 3], 2) == Draft([4, 5], [0.5, 1.0])


def test_a_long_match_whose_past_ends_gives_way_to_a_shorter_one() -> None:
    """The longest ending of a period occurred last one period before the text's end."""
    assert draft([1, 2, 3] * 5, 6).tokens == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize(
    ("bounds", "num_drafts"),
    [
        ({"k": 3}, 3),
        ({"factor": 0.5}, 4),
        ({"factor": 0.25}, 2),
        ({"factor": 0.1}, 0),
        ({"min_prob": 0.5}, 8),
        ({"min_prob": 0.51}, 0),
        ({"depth": 12}, 6),
        ({"depth": 8, "factor": 4.0}, 6),
        ({"depth": 2}, 1),
    ],
)
def test_each_bound_ends_a_draft(bounds: dict[str, Any], num_drafts: int) -> None:
    """Eight tokens match. Within a depth of 12 a match of 6 allows the longest draft, and so on."""
    text = [*range(1, 31), 99, *range(1, 9)]
    assert draft(text, **{"k": 20, **bounds}).tokens == [*range(9, 9 + num_drafts)]


@pytest.mark.parametrize("text", [[1], [1, 2], [1, 2, 3]])
def test_nothing_is_proposed_for_a_text_without_repetition(text: list[int]) -> None:
    assert draft(text) == Draft([])


def test_a_draft_ends_before_a_token_that_the_target_does_not_have() -> None:
    text = [1, 2, 3, 7, 100, 8, 1, 2, 3]
    assert draft(text, 4, vocab_size=101).tokens == [7, 100, 8]
    assert draft(text, 4, vocab_size=100).tokens == [7]
    assert draft(text, 4, vocab_size=7).tokens == []


def test_a_long_prompt_is_taken_in_by_bounded_pieces() -> None:
    model, request = drafter(), DraftRequest([*range(CHUNK * 2), 0, 1, 2])
    model.open(request)
    num_pieces = 0
    while not model.is_ready(request):
        model.prepare(request)
        num_pieces += 1
    assert num_pieces == 2
    [answer] = model.draft([request], 2, VOCAB)
    assert answer.tokens == [3, 4]


def test_two_states_a_token_are_the_most() -> None:
    model, request = drafter(), DraftRequest([n % 7 + n % 11 for n in range(3000)])
    model.open(request)
    model.draft([request], 4, VOCAB)
    assert len(model._states[request].automaton._next) <= 2 * len(request.tokens)


def test_what_is_closed_is_freed_and_forgotten() -> None:
    model, request = drafter(), DraftRequest([1, 2, 3, 1, 2])
    model.open(request)
    model.draft([request], 4, VOCAB)
    automaton = weakref.ref(model._states[request].automaton)
    model.close(request)
    model.close(request)
    gc.collect()
    assert automaton() is None
    assert not model._states and not model._stores
    with pytest.raises(KeyError):
        model.draft([request], 1, VOCAB)


def test_the_configuration_builds_it() -> None:
    model = build_draft_model(DrafterConfig(name="s", method="suffix"), "float32")
    assert isinstance(model, SuffixDrafter)
    assert (model.vocab_size, model.tokenizer_fingerprint) == (0, "")
