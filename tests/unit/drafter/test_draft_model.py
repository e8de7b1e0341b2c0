"""Drafts of a causal LM equal greedy decoding without a cache, whatever was committed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from paceline.drafter.draft_model import CausalLMDrafter
from paceline.drafter.model import DraftRequest
from tests.tiny import VOCAB_SIZE
from tests.unit.drafter.reference import Greedy, assert_is_greedy, draft_ready, load_drafter

K = 4


@pytest.fixture(scope="module")
def greedy(tiny_llama: Path) -> Greedy:
    return Greedy(tiny_llama)


@pytest.fixture
def drafter(tiny_llama: Path) -> CausalLMDrafter:
    return load_drafter(tiny_llama)


def new_request(drafter: CausalLMDrafter, random_: random.Random, size: int) -> DraftRequest:
    request = DraftRequest([random_.randrange(VOCAB_SIZE) for _ in range(size)])
    drafter.open(request)
    return request


def check(
    drafter: CausalLMDrafter,
    greedy: Greedy,
    requests: list[DraftRequest],
    k: int = K,
    vocab_size: int = VOCAB_SIZE,
) -> list[list[int]]:
    """Drafts for all of them at once and compares each; returns the drafts."""
    drafts = draft_ready(drafter, requests, k, vocab_size)
    assert len(drafts) == len(requests)
    for request, draft in zip(requests, drafts, strict=True):
        assert_is_greedy(greedy, request, draft, k, vocab_size)
    return [draft.tokens for draft in drafts]


@pytest.mark.parametrize("num_accepted", range(K + 1))
def test_after_any_number_of_accepted_drafts(
    drafter: CausalLMDrafter, greedy: Greedy, num_accepted: int
) -> None:
    """Each outcome twice in a row; the bonus token is never the one that was drafted."""
    request = new_request(drafter, random.Random(1), 9)
    for _ in range(2):
        [draft] = check(drafter, greedy, [request])
        drafted_next = draft[num_accepted] if num_accepted < K else -1
        bonus = (drafted_next + 1) % VOCAB_SIZE
        request.tokens.extend([*draft[:num_accepted], bonus])
    check(drafter, greedy, [request])


def test_when_the_bonus_token_is_what_was_drafted(drafter: CausalLMDrafter, greedy: Greedy) -> None:
    """An undrafted pass commits the first draft: the cache then holds more than the text."""
    request = new_request(drafter, random.Random(2), 5)
    for _ in range(3):
        [draft] = check(drafter, greedy, [request])
        request.tokens.append(draft[0])


def test_twice_without_a_commit_in_between(drafter: CausalLMDrafter, greedy: Greedy) -> None:
    request = new_request(drafter, random.Random(3), 5)
    assert check(drafter, greedy, [request]) == check(drafter, greedy, [request])


@pytest.mark.parametrize("seed", range(3))
def test_a_random_life_of_many_requests(
    drafter: CausalLMDrafter, greedy: Greedy, seed: int
) -> None:
    """Opened and closed in between (slots are used again), batches of any subset, in any order."""
    rng = random.Random(seed)
    requests: list[DraftRequest] = []
    last: dict[DraftRequest, list[int]] = {}
    for _ in range(14):
        if len(requests) < 5 and rng.random() < 0.6:
            requests.append(new_request(drafter, rng, rng.choice([1, 2, 7, 30])))
        if len(requests) > 1 and rng.random() < 0.3:
            drafter.close(requests.pop(rng.randrange(len(requests))))
        if not requests:
            continue
        batch = rng.sample(requests, rng.randint(1, len(requests)))
        last |= zip(batch, check(drafter, greedy, batch, k=3), strict=True)
        for request in requests:
            # Some are left as they are, some were drafted several passes ago.
            if rng.random() < 0.8:
                accepted = last.get(request, [])[: rng.randint(0, 3)]
                request.tokens.extend([*accepted, rng.randrange(VOCAB_SIZE)])
                last.pop(request, None)


def test_rows_that_are_no_range_of_slots(drafter: CausalLMDrafter, greedy: Greedy) -> None:
    rng = random.Random(4)
    requests = [new_request(drafter, rng, size) for size in (3, 11, 5, 40, 2)]
    check(drafter, greedy, requests)
    check(drafter, greedy, [requests[4], requests[0], requests[2]])
    check(drafter, greedy, requests[::-1])


def test_a_slot_that_is_used_again_shows_nothing_of_its_last_request(
    drafter: CausalLMDrafter, greedy: Greedy
) -> None:
    rng = random.Random(5)
    longer = new_request(drafter, rng, 60)
    other = new_request(drafter, rng, 8)
    check(drafter, greedy, [longer, other])
    drafter.close(longer)
    shorter = new_request(drafter, rng, 4)
    check(drafter, greedy, [shorter, other])


def test_drafts_come_in_the_order_of_the_requests(drafter: CausalLMDrafter, greedy: Greedy) -> None:
    rng = random.Random(6)
    requests = [new_request(drafter, rng, 6) for _ in range(4)]
    forward = check(drafter, greedy, requests)
    assert len({tuple(draft) for draft in forward}) == 4, "equal drafts would hide the order"
    assert check(drafter, greedy, requests[::-1]) == forward[::-1]


@pytest.mark.parametrize("k", [1, 2, 9])
def test_any_k(drafter: CausalLMDrafter, greedy: Greedy, k: int) -> None:
    rng = random.Random(7)
    request = new_request(drafter, rng, 6)
    for _ in range(2):
        [draft] = check(drafter, greedy, [request], k=k)
        request.tokens.extend(draft)


def test_k_may_change_between_drafts(drafter: CausalLMDrafter, greedy: Greedy) -> None:
    request = new_request(drafter, random.Random(8), 6)
    for k in (6, 1, 3, 6):
        [draft] = check(drafter, greedy, [request], k=k)
        request.tokens.append(draft[0])


@pytest.mark.parametrize("vocab_size", [1, 17, VOCAB_SIZE, VOCAB_SIZE + 64])
def test_only_tokens_that_the_target_has_are_drafted(
    drafter: CausalLMDrafter, greedy: Greedy, vocab_size: int
) -> None:
    """The confidence is the probability among those."""
    request = new_request(drafter, random.Random(9), 6)
    [draft] = check(drafter, greedy, [request], vocab_size=vocab_size)
    assert max(draft) < vocab_size
    if vocab_size == 17:
        assert draft != greedy.continuation(request.tokens, K, VOCAB_SIZE)[0], "it limits nothing"


def test_closing_twice_or_a_stranger_is_harmless(drafter: CausalLMDrafter, greedy: Greedy) -> None:
    rng = random.Random(10)
    one, other = (new_request(drafter, rng, 5) for _ in range(2))
    drafter.close(one)
    drafter.close(one)
    drafter.close(DraftRequest([1]))
    third = new_request(drafter, rng, 5)
    fourth = new_request(drafter, rng, 5)
    check(drafter, greedy, [other, third, fourth])
