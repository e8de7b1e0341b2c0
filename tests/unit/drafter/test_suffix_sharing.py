"""Drafts from other requests' text: only where asked for, of one verifier only, bounded."""

from __future__ import annotations

import gc
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paceline.drafter.config import DrafterConfig
from paceline.drafter.model import Draft, DraftRequest, Scope
from paceline.drafter.session import Session
from paceline.drafter.suffix import SuffixDrafter
from paceline.drafter.suffix_store import ANCHOR, MAX_CANDIDATES
from paceline.messages import Close, Pong
from tests.unit.drafter.suffix_reference import best_path
from tests.unit.drafter.talk import commit, opening, welcome
from tests.unit.wire import hello

VOCAB = 1000
OLD = [1, 2, 3, 4, 5, 6, 7, 8]


def drafter(**changes: Any) -> SuffixDrafter:
    return SuffixDrafter(
        DrafterConfig(
            name="s", method="suffix", **{"suffix_share_across_requests": True, **changes}
        )
    )


def finish(model: SuffixDrafter, text: list[int], scope: Scope) -> None:
    """One request from its beginning to its end."""
    request = DraftRequest(text, scope=scope)
    model.open(request)
    model.draft([request], 4, VOCAB)
    request.ended = True
    model.close(request)


def draft(model: SuffixDrafter, text: list[int], scope: Scope, k: int = 4) -> Draft:
    request = DraftRequest(text, scope=scope)
    model.open(request)
    [answer] = model.draft([request], k, VOCAB)
    model.close(request)  # it still runs: it is not to be kept
    return answer


def test_a_finished_request_s_text_is_continued() -> None:
    model, scope = drafter(), Scope()
    finish(model, OLD, scope)
    assert draft(model, [90, 1, 2, 3, 4], scope) == Draft([5, 6, 7, 8], [0.5, 1.0, 1.0, 1.0])


def test_nothing_is_shared_by_default() -> None:
    model, scope = SuffixDrafter(DrafterConfig(name="s", method="suffix")), Scope()
    finish(model, OLD, scope)
    assert draft(model, [90, 1, 2, 3, 4], scope) == Draft([])
    assert not model._stores


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=2, max_size=5))
def test_without_sharing_the_others_change_nothing(texts: list[list[int]]) -> None:
    """Requests that run at the same time and requests that have ended, all of one verifier."""
    model, scope = drafter(suffix_share_across_requests=False), Scope()
    for text in texts:
        finish(model, text, scope)
    running = [DraftRequest(text, scope=scope) for text in texts]
    for request in running:
        model.open(request)
    drafts = model.draft(running, 4, VOCAB)
    for request, answer in zip(running, drafts, strict=True):
        alone = SuffixDrafter(DrafterConfig(name="s", method="suffix"))
        assert answer == draft(alone, request.tokens, Scope())


def test_running_requests_do_not_see_each_other_s_text() -> None:
    model, scope = drafter(), Scope()
    one, other = DraftRequest(OLD, scope=scope), DraftRequest([90, 1, 2, 3, 4], scope=scope)
    for request in (one, other):
        model.open(request)
    assert model.draft([one, other], 4, VOCAB) == [Draft([]), Draft([])]


def test_another_verifier_s_requests_see_nothing() -> None:
    model = drafter()
    finish(model, OLD, Scope())
    assert draft(model, [90, 1, 2, 3, 4], Scope()) == Draft([])


def test_a_short_match_in_another_text_is_chance() -> None:
    model, scope = drafter(), Scope()
    finish(model, OLD, scope)
    assert draft(model, [90, 2, 3, 4], scope) == Draft([])
    assert ANCHOR == 4


def test_the_own_text_wins_where_it_is_as_good() -> None:
    model, scope = drafter(), Scope()
    finish(model, [1, 2, 3, 4, 50, 60], scope)
    assert draft(model, [1, 2, 3, 4, 70, 80, 1, 2, 3, 4], scope, 2).tokens == [70, 80]


@given(
    st.lists(st.integers(0, 2), min_size=ANCHOR, max_size=30),
    st.lists(st.integers(0, 2), min_size=ANCHOR, max_size=12),
)
def test_a_draft_from_another_text_equals_the_scan_s(old: list[int], new: list[int]) -> None:
    model, scope = drafter(), Scope()
    finish(model, old, scope)

    def path(text: list[int], foreign: bool) -> tuple[list[int], list[float], float]:
        return best_path(
            text,
            new,
            depth=24,
            factor=1.0,
            min_prob=0.1,
            num_tokens=4,
            vocab_size=VOCAB,
            foreign=foreign,
        )

    expected = path(new, foreign=False)
    if any(old[i : i + ANCHOR] == new[-ANCHOR:] for i in range(len(old))):
        expected = max(expected, path(old, foreign=True), key=lambda found: found[2])
    assert draft(model, new, scope) == Draft(*expected[:2])


def test_the_least_recently_used_text_goes_first() -> None:
    model, scope = drafter(suffix_max_cached_requests=2), Scope()
    finish(model, [1, 2, 3, 4, 11], scope)
    finish(model, [1, 2, 3, 5, 12], scope)
    assert draft(model, [1, 2, 3, 4], scope).tokens == [11]
    finish(model, [1, 2, 3, 6, 13], scope)
    assert len(model._stores[scope]) == 2
    assert draft(model, [1, 2, 3, 5], scope).tokens == []
    assert draft(model, [1, 2, 3, 4], scope).tokens == [11]
    assert draft(model, [1, 2, 3, 6], scope).tokens == [13]


def test_the_texts_have_a_limit_of_tokens_together() -> None:
    model, scope = drafter(suffix_max_cached_tokens=13), Scope()
    finish(model, [1, 2, 3, 4, 11], scope)
    finish(model, [1, 2, 3, 5, 12], scope)
    store = model._stores[scope]
    assert (len(store), store.num_tokens) == (2, 10)
    finish(model, list(range(50, 64)), scope)
    assert (len(store), store.num_tokens) == (2, 10), "too long alone, it drives nobody out"
    finish(model, [1, 2, 3, 6], scope)
    assert (len(store), store.num_tokens) == (2, 9)
    assert draft(model, [1, 2, 3, 4], scope).tokens == []
    assert draft(model, [1, 2, 3, 5], scope).tokens == [12]
    finish(model, list(range(50, 63)), scope)
    assert (len(store), store.num_tokens) == (1, 13)


def test_a_text_that_nobody_can_find_takes_no_room() -> None:
    model, scope = drafter(suffix_max_cached_requests=1), Scope()
    finish(model, OLD, scope)
    finish(model, [1] * (ANCHOR - 1), scope)
    finish(model, [], scope)
    assert draft(model, [90, 1, 2, 3, 4], scope).tokens == [5, 6, 7, 8]


def test_what_goes_leaves_nothing_behind() -> None:
    model, scope = drafter(suffix_max_cached_requests=3), Scope()
    for number in range(50):
        finish(model, [number, number + 1, *range(100, 110), number], scope)
    store = model._stores[scope]
    assert len(store) == 3
    numbers = {number for having in store._having.values() for number in having}
    assert numbers == set(store._texts) == {47, 48, 49}
    assert store.num_tokens == 3 * 13


def test_few_of_the_texts_that_match_are_searched() -> None:
    model, scope = drafter(), Scope()
    for number in range(20):
        finish(model, [1, 2, 3, 4, 100 + number], scope)
    found = model._stores[scope].candidates([1, 2, 3, 4])
    assert len(found) == MAX_CANDIDATES
    assert draft(model, [1, 2, 3, 4], scope).tokens == [119]


def test_a_request_that_is_opened_anew_is_not_kept_until_it_ends() -> None:
    model = drafter()
    session = Session(hello=hello(), model=model, clock=lambda: 0.0, silence_limit=10.0)
    session.take(welcome())
    for output in ([9], [9, 10], [9, 10, 11]):
        session.take(opening(1, OLD, output))
        session.take(opening(2, [90, 1, 2, 3], [4]))
        running = [session.requests[handle] for handle in (1, 2)]
        assert [answer.tokens for answer in model.draft(running, 4, VOCAB)] == [[], []]
    assert not model._stores
    session.take(Close(handles=[1, 7]))
    [store] = model._stores.values()
    assert (len(store), store.num_tokens) == (1, len(OLD) + 3)
    session.take(Close(handles=[1]))
    assert len(store) == 1


def test_a_verifier_that_is_restarted_or_gone_takes_its_texts_with_it() -> None:
    model = drafter()
    session = Session(hello=hello(), model=model, clock=lambda: 0.0, silence_limit=10.0)
    session.take(welcome())

    def end_a_request(handle: int) -> None:
        session.take(opening(handle, OLD, [9]))
        model.draft([session.requests[handle]], 4, VOCAB)
        session.take(Close(handles=[handle]))

    end_a_request(1)
    assert [len(store) for store in model._stores.values()] == [1]
    session.take(opening(2, [90, 1, 2, 3], [4]))
    [answer] = model.draft([session.requests[2]], 4, VOCAB)
    assert answer.tokens == [5, 6, 7, 8]
    session.take(Pong(incarnation=10, welcomed=False))
    gc.collect()
    assert not model._stores and not model._states
    session.take(welcome(10))
    session.take(opening(1, [90, 1, 2, 3], []))
    session.take(commit(1, 4, 4))
    [answer] = model.draft([session.requests[1]], 4, VOCAB)
    assert answer.tokens == []
