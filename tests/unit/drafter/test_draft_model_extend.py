"""Rankings behind paths equal those of the model run anew over the whole text."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from paceline.drafter.draft_model import PREFILL_CHUNK, CausalLMDrafter
from paceline.drafter.model import DraftRequest
from tests.unit.drafter.kinds import MAX_LENGTH, VOCAB
from tests.unit.drafter.paths import Paths, assert_is_ranking, check, extend_ready, new_request
from tests.unit.drafter.reference import Greedy, assert_is_greedy, draft_ready, load_drafter


@pytest.fixture(scope="module")
def greedy(any_model: Path) -> Greedy:
    return Greedy(any_model)


@pytest.fixture
def drafter(any_model: Path) -> CausalLMDrafter:
    return load_drafter(any_model)


def test_many_paths_of_one_request(drafter: CausalLMDrafter, greedy: Greedy) -> None:
    """Of unequal length; some are beginnings of others, in an order of no meaning."""
    request = new_request(drafter, random.Random(1), 9)
    paths = [(3, 1, 4, 1, 5, 9), (), (3,), (3, 1, 4, 2), (7, 7), (3, 1), (2, 7, 1, 8, 2, 8, 1)]
    check(drafter, greedy, [(request, path) for path in paths])


def test_depth_by_depth(drafter: CausalLMDrafter, greedy: Greedy) -> None:
    """As the drafter does it: the beginnings are in when a path is extended."""
    rng = random.Random(2)
    requests = [new_request(drafter, rng, size) for size in (3, 12)]
    paths: Paths = [(request, (token,)) for request in requests for token in (4, 9, 33)]
    for _ in range(6):
        check(drafter, greedy, paths)
        paths = [(request, (*path, rng.randrange(VOCAB))) for request, path in paths]
        paths.append((requests[0], (rng.randrange(VOCAB),)))


def test_a_path_whose_beginnings_were_never_asked_for(
    drafter: CausalLMDrafter, greedy: Greedy
) -> None:
    request = new_request(drafter, random.Random(3), 6)
    check(drafter, greedy, [(request, (1, 2, 3, 4, 5, 6))])
    check(drafter, greedy, [(request, (1, 2, 3))])
    check(drafter, greedy, [(request, (1, 2, 3, 9)), (request, (1, 2, 3, 4, 5, 6, 7))])


def test_paths_behind_a_text_that_is_not_in_yet(drafter: CausalLMDrafter, greedy: Greedy) -> None:
    """With a long one beside it, whose context takes pieces."""
    rng = random.Random(4)
    long, short = new_request(drafter, rng, PREFILL_CHUNK + 20), new_request(drafter, rng, 2)
    check(drafter, greedy, [(short, (5, 6)), (long, (7,)), (short, (8,)), (long, (7, 9))])


@pytest.mark.parametrize("seed", range(4))
def test_a_random_life(drafter: CausalLMDrafter, greedy: Greedy, seed: int) -> None:
    """Few tokens, so that commits follow branches; they also skip, contradict and lag behind."""
    rng = random.Random(seed)
    requests: list[DraftRequest] = []
    for _ in range(20):
        if len(requests) < 4 and rng.random() < 0.5:
            requests.append(new_request(drafter, rng, rng.choice([1, 2, 7, 30])))
        elif len(requests) > 1 and rng.random() < 0.2:
            drafter.close(requests.pop(rng.randrange(len(requests))))
        if not requests:
            continue
        if rng.random() < 0.3:
            batch = rng.sample(requests, rng.randint(1, len(requests)))
            for request, draft in zip(batch, draft_ready(drafter, batch, 3, VOCAB), strict=True):
                assert_is_greedy(greedy, request, draft, 3, VOCAB)
                if rng.random() < 0.5:
                    request.tokens.extend(draft.tokens[: rng.randint(0, 3)])
        # No set: its order would be another one in each run.
        paths = list(
            dict.fromkeys(
                (rng.choice(requests), tuple(rng.choices(range(3), k=rng.randint(0, 6))))
                for _ in range(rng.randint(1, 10))
            )
        )
        check(drafter, greedy, paths)
        for request, path in paths:
            if rng.random() < 0.2:
                request.tokens.extend(path or rng.choices(range(VOCAB), k=2))


def test_behind_the_end_of_the_context_there_is_no_ranking(
    drafter: CausalLMDrafter, greedy: Greedy
) -> None:
    rng = random.Random(10)
    long, short = new_request(drafter, rng, MAX_LENGTH - 3), new_request(drafter, rng, 3)
    paths: Paths = [(long, (1, 2, 3)), (short, (1, 2, 3)), (long, (1, 2)), (long, (4, 5, 6, 7))]
    rankings = extend_ready(drafter, paths)
    assert [len(found) for found in rankings] == [0, 1, 1, 0]
    assert_is_ranking(greedy, [*long.tokens, 1, 2], rankings[2][0])
    assert extend_ready(drafter, paths[:1]) == [[]]
    assert extend_ready(drafter, []) == []


@pytest.mark.parametrize(("num_ranked", "vocab_size"), [(1, VOCAB), (3, 17), (9, 4), (100, 200)])
def test_only_tokens_that_the_target_has_are_ranked(
    drafter: CausalLMDrafter, greedy: Greedy, num_ranked: int, vocab_size: int
) -> None:
    request = new_request(drafter, random.Random(11), 6)
    [[ranking]] = extend_ready(drafter, [(request, (40, 50))], num_ranked, vocab_size)
    assert len(ranking) == min(num_ranked, vocab_size, VOCAB)
    size = min(vocab_size, VOCAB)
    assert_is_ranking(greedy, [*request.tokens, 40, 50], ranking, num_ranked, size)


def test_the_same_calls_give_the_same_rankings(any_model: Path) -> None:
    lives = []
    for _ in range(2):
        drafter = load_drafter(any_model)
        request = new_request(drafter, random.Random(12), 6)
        rankings = []
        for paths in [[(1, 2), (3,)], [(1, 2, 3), (3, 3)], [(1,), ()]]:
            rankings += extend_ready(drafter, [(request, p) for p in paths])
            request.tokens.append(1)
        lives.append(rankings)
    assert lives[0] == lives[1]
