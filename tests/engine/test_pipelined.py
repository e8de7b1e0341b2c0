"""Drafts that are made while the pass runs: the exactness matrix in every way that this may go.

A hit, a miss of each cause, a late branch, an undrafted pass, a hostile drafter, a dying one, and
the real drafter's loop with a model that is right always, or in three of five tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.engine.branch_scripts import BRANCH_SCRIPTS
from tests.engine.conftest import EngineHost, prompt, speculation, start_engine, tiny_target
from tests.engine.drafters import OracleModel, real_drafter
from tests.engine.matrix import FEATURES, Matrix, running_matrix
from tests.engine.views import check_same, in_kinds, view_all
from tests.fakes import FakeDrafter, Oracle, oracle_of

pytestmark = pytest.mark.slow
REAL = {"real, always right": 1.0, "real, often right": 0.6}
BEHAVIOURS = (*BRANCH_SCRIPTS, *REAL)
KS = (1, 3, 5)
K = 4


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory, run_folder: Path) -> Iterator[Matrix]:
    folder = tmp_path_factory.mktemp("tiny-pipelined")
    with running_matrix(folder, run_folder, "pipelined", mode="pipelined") as running:
        yield running


def behaving(
    host: EngineHost, behaviour: str, oracle: Oracle, k: int
) -> AbstractContextManager[object]:
    if behaviour in REAL:
        return real_drafter(host.control, OracleModel(oracle, REAL[behaviour]), k)
    return FakeDrafter(host.control, BRANCH_SCRIPTS[behaviour](oracle, k), k=k)


CELLS = [
    pytest.param(
        feature,
        behaviour,
        k,
        marks=[] if (row + column) % (2 * len(KS)) == index else [pytest.mark.full],
        id=f"{feature}-{behaviour}-K{k}",
    )
    for row, feature in enumerate(FEATURES)
    for column, behaviour in enumerate(BEHAVIOURS)
    for index, k in enumerate(KS)
]


@pytest.mark.parametrize(("feature", "behaviour", "k"), CELLS)
def test_cell(matrix: Matrix, feature: str, behaviour: str, k: int) -> None:
    with behaving(matrix.drafted, behaviour, matrix.oracle(feature), k):
        for concurrency in (1, 4):
            requests = in_kinds(matrix.requests(feature), k + concurrency // 4)
            views = view_all(matrix.drafted, requests, concurrency)
            for view, expected in zip(views, matrix.expected(feature), strict=True):
                check_same(view, expected)


@pytest.fixture(scope="module")
def engine(tiny_folder: Path, run_folder: Path) -> Iterator[EngineHost]:
    spec = speculation(run_folder, "pipelined-counts", K, mode="pipelined")
    host = start_engine(tiny_target(tiny_folder), spec, run_folder, "pipelined-counts")
    yield host
    host.close()


NUM_TOKENS = 31
"""The first one, and 6 rounds of K = 4 that are accepted whole: as far as a branch reaches."""


def run(
    engine: EngineHost,
    plain: EngineHost,
    behaviour: str,
    number: int,
    num_tokens: int = NUM_TOKENS,
) -> dict[str, Any]:
    """Returns the counts of one request; its output equals plain decoding's."""
    expected = plain.generate([prompt(number, 30, 4 * NUM_TOKENS)], 1)[0]["token_ids"]
    oracle = oracle_of([(prompt(number, 30).prompt_token_ids or []) + expected])
    with behaving(engine, behaviour, oracle, K):
        result = engine.generate([prompt(number, 30, num_tokens)], 1)[0]
    assert result["token_ids"] == expected[:num_tokens]
    counts: dict[str, Any] = result["speculation"]
    return counts


def test_every_count_of_a_run_of_hits_is_known(engine: EngineHost, plain: EngineHost) -> None:
    counts = run(engine, plain, "hits", 301)
    assert counts["rounds"] == counts["drafted_rounds"] == 6
    assert counts["proposed"] == counts["accepted"] == 6 * K
    assert counts["accepted_per_position"] == [6] * K
    assert counts["hits"] == 5, "the last pass ends the request, and is no hit and no miss"
    assert counts["misses"] == {}


def test_outcomes_with_a_rejected_draft_are_hits_as_well(
    engine: EngineHost, plain: EngineHost
) -> None:
    # 0, 1, 2, 3, 4 and 0 accepted drafts, each with a bonus token, behind the first token.
    counts = run(engine, plain, "rejected", 302, num_tokens=1 + 10 + 6)
    # The last pass has room for no draft: its one token is the bonus token.
    assert (counts["rounds"], counts["drafted_rounds"]) == (6, 5)
    assert counts["accepted_per_position"] == [4, 3, 2, 1]
    assert (counts["hits"], counts["misses"]) == (5, {})


def test_a_miss_is_counted_by_its_cause(engine: EngineHost, plain: EngineHost) -> None:
    counts = run(engine, plain, "wrong bonus", 303)
    # At the first pass all is there before it begins; later ones depend on the clock.
    assert counts["misses"]["bonus"] > 0
    # A proposal that comes while its pass runs without drafts is right behind that pass's token:
    # the only hits there may be.
    assert counts["hits"] <= counts["rounds"] - counts["drafted_rounds"]


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_each_pass_that_goes_on_is_a_hit_or_a_miss(
    engine: EngineHost, plain: EngineHost, behaviour: str
) -> None:
    counts = run(engine, plain, behaviour, 304)
    num_decided = counts["hits"] + sum(counts["misses"].values())
    # Behind a drafter's death nobody counts.
    assert num_decided == counts["rounds"] - 1 or behaviour == "dies"


def test_wrong_drafts_behind_the_right_outcome_are_hits_and_not_accepted(
    engine: EngineHost, plain: EngineHost
) -> None:
    counts = run(engine, plain, "wrong drafts", 304)
    assert counts["hits"] > 0
    assert counts["accepted_per_position"][0] < counts["drafted_rounds"]


def test_behind_an_undrafted_pass_the_drafts_are_there(
    engine: EngineHost, plain: EngineHost
) -> None:
    counts = run(engine, plain, "undrafted", 305)
    assert counts["rounds"] > counts["drafted_rounds"] > 0
    assert counts["hits"] > 0
    assert counts["accepted"] == counts["proposed"] > 0


def test_the_real_loop_with_the_target_s_own_choices_is_never_wrong(
    engine: EngineHost, plain: EngineHost
) -> None:
    counts = run(engine, plain, "real, always right", 306)
    assert counts["proposed"] == counts["accepted"] > 0
    assert counts["hits"] > 0


def test_a_drafter_that_takes_over_has_hits_again(engine: EngineHost, plain: EngineHost) -> None:
    """Acceptance returns after each disturbance: a death in mid-request, K changed."""
    expected = plain.generate([prompt(307, 30, 220)], 1)[0]["token_ids"]
    oracle = oracle_of([(prompt(307, 30).prompt_token_ids or []) + expected + [0] * 9])
    request = prompt(307, 30, 220)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(
            FakeDrafter(engine.control, BRANCH_SCRIPTS["dies"](oracle, K), k=K, name="first")
        )
        future = engine.begin(request)
        assert first.dead.wait(60)
        stack.enter_context(
            FakeDrafter(engine.control, BRANCH_SCRIPTS["hits"](oracle, 2), k=2, name="second")
        )
        result = future.result(120)
    assert result["token_ids"] == expected
    counts = result["speculation"]
    assert counts["accepted"] == counts["proposed"]
    assert counts["hits"] > 6, "the second drafter's are among them"
