"""What extending paths costs: each token once, and no cell for longer than it may be of use."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from paceline.drafter import kv_tree
from paceline.drafter.draft_model import CausalLMDrafter
from tests.unit.drafter.kinds import VOCAB
from tests.unit.drafter.paths import Paths, check, extend_ready, new_request, num_fed
from tests.unit.drafter.reference import Greedy, assert_is_greedy, draft_ready, load_drafter


@pytest.fixture(scope="module")
def greedy(any_model: Path) -> Greedy:
    return Greedy(any_model)


@pytest.fixture
def drafter(any_model: Path) -> CausalLMDrafter:
    return load_drafter(any_model)


def test_a_commit_along_a_branch_costs_only_what_is_new(
    drafter: CausalLMDrafter, greedy: Greedy
) -> None:
    request = new_request(drafter, random.Random(5), 8)
    check(drafter, greedy, [(request, path) for path in [(3,), (5, 6, 7, 8), (5, 6, 9), (5, 2)]])
    request.tokens.extend([5, 6])
    paths: Paths = [
        (request, (7, 8, 1)),
        (request, (7, 8, 2)),
        (request, (9, 4)),
        (request, (7, 3)),
    ]
    assert num_fed(drafter, lambda: check(drafter, greedy, paths)) == [4]
    request.tokens.extend([7, 8, 2])
    assert num_fed(drafter, lambda: check(drafter, greedy, [(request, ())])) == [1]
    request.tokens.extend([3, 4])
    assert num_fed(drafter, lambda: check(drafter, greedy, [(request, (7,))])) == [3]


def test_depth_by_depth_each_path_costs_one_token(drafter: CausalLMDrafter) -> None:
    request = new_request(drafter, random.Random(6), 8)
    paths: Paths = [(request, (first,)) for first in range(10)]
    sizes = []
    for depth in range(4):
        sizes += num_fed(drafter, partial(extend_ready, drafter, paths))
        paths = [(request, (*path, depth)) for _, path in paths]
    assert sizes == [18, 10, 10, 10]


def test_a_path_may_be_asked_for_again(drafter: CausalLMDrafter, greedy: Greedy) -> None:
    request = new_request(drafter, random.Random(7), 8)
    paths: Paths = [(request, ()), (request, (1, 2))]
    check(drafter, greedy, paths)
    assert num_fed(drafter, lambda: check(drafter, greedy, paths)) == [2]


def test_draft_finds_what_was_ranked_and_the_other_way_round(
    drafter: CausalLMDrafter, greedy: Greedy
) -> None:
    request = new_request(drafter, random.Random(8), 8)
    path: tuple[int, ...] = ()
    for _ in range(3):
        [[ranking]] = extend_ready(drafter, [(request, path)])
        path += (ranking[0][0],)
    other: Paths = [(request, (*path[:1], (path[1] + 1) % VOCAB))]
    check(drafter, greedy, other)
    assert num_fed(drafter, lambda: draft_ready(drafter, [request], 4, VOCAB)) == [1] * 4
    [draft] = draft_ready(drafter, [request], 4, VOCAB)
    assert draft.tokens[:3] == list(path)
    assert_is_greedy(greedy, request, draft, 4, VOCAB)
    assert num_fed(drafter, lambda: check(drafter, greedy, other)) == [1]


def test_what_is_not_kept_is_computed_anew(
    drafter: CausalLMDrafter, greedy: Greedy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_tree, "MAX_BRANCH_TOKENS", 6)
    request = new_request(drafter, random.Random(9), 5)
    for first, second in [((1, 2, 3), (4, 5, 6)), ((4, 5, 7), (4, 5, 6, 8)), ((1, 2), (4, 5, 9))]:
        check(drafter, greedy, [(request, first), (request, second)])
        assert drafter._states[request].tree.num_cells <= 5 + 6


def test_cells_are_given_back(drafter: CausalLMDrafter) -> None:
    """Many lives one after another need no more than the first ones did."""
    rng = random.Random(13)
    sizes = set()
    for _ in range(60):
        requests = [new_request(drafter, rng, 20) for _ in range(3)]
        for _ in range(3):
            paths: Paths = [
                (r, tuple(rng.choices(range(VOCAB), k=4))) for r in requests for _ in range(8)
            ]
            extend_ready(drafter, paths)
            for request, path in paths[::8]:
                request.tokens.extend([*path, 1])
        extend_ready(drafter, [(request, ()) for request in requests])
        for request in requests:
            assert drafter._states[request].tree.num_cells == len(request.tokens)
            drafter.close(request)
        sizes.add((drafter._cache._num_slots, drafter._cache._capacity))
    assert len(sizes) == 1
    assert drafter._states == {}
