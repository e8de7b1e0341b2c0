"""Drafted output equals plain vLLM's token for token, whatever the drafter does (float32, greedy).

The target is tiny, vLLM and the sockets are real, the drafters are scripted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import (
    EngineHost,
    prompt,
    speculation,
    start_engine,
    tiny_target,
)
from tests.fakes import (
    FakeDrafter,
    Oracle,
    Script,
    dying,
    late,
    oracle_of,
    perfect,
    proposed,
    wrong,
)
from tests.tiny import VOCAB_SIZE

pytestmark = pytest.mark.slow
PROMPTS = [(1, 7), (2, 23), (3, 40), (4, 64)]


@pytest.fixture(scope="module", params=[1, 3, 5], ids=lambda k: f"K{k}")
def drafted(
    request: pytest.FixtureRequest, tiny_folder: Path, run_folder: Path
) -> Iterator[tuple[EngineHost, int]]:
    k = request.param
    name = f"exact{k}"
    # As patient as no machine needs: the counts below are exact.
    spec = speculation(run_folder, name, k, patience_ms=60_000)
    host = start_engine(tiny_target(tiny_folder), spec, run_folder, name)
    yield host, k
    host.close()


@pytest.fixture(scope="module")
def expected(plain: EngineHost) -> list[list[int]]:
    results = plain.generate([prompt(*p) for p in PROMPTS], concurrency=4)
    return [result["token_ids"] for result in results]


@pytest.fixture(scope="module")
def oracle(expected: list[list[int]]) -> Oracle:
    return oracle_of(
        (prompt(*p).prompt_token_ids or []) + output
        for p, output in zip(PROMPTS, expected, strict=True)
    )


def late_with_a_word(oracle: Oracle, k: int) -> Script:
    """Is late, and says so each time: nobody waits for it."""
    script = late(oracle, k)
    return lambda handle, tokens: [*script(handle, tokens), proposed(handle, tokens, [])]


def scripts(oracle: Oracle, k: int) -> dict[str, Script]:
    return {
        "perfect": perfect(oracle, k),
        "wrong": wrong(oracle, k, VOCAB_SIZE),
        "late": late_with_a_word(oracle, k),
        "dying": dying(perfect(oracle, k), after=6),
    }


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("behaviour", ["perfect", "wrong", "late", "dying"])
def test_output_equals_plain_decoding(
    drafted: tuple[EngineHost, int],
    expected: list[list[int]],
    oracle: Oracle,
    behaviour: str,
    concurrency: int,
) -> None:
    engine, k = drafted
    with FakeDrafter(engine.control, scripts(oracle, k)[behaviour], k=k):
        results = engine.generate([prompt(*p) for p in PROMPTS], concurrency)
    assert [result["token_ids"] for result in results] == expected
    assert all(result["finish_reason"] == "length" for result in results)
    counts = [result["speculation"] for result in results]
    num_proposed, accepted = (sum(c[name] for c in counts) for name in ("proposed", "accepted"))
    if behaviour == "wrong":
        assert num_proposed > 0
        assert accepted == 0
    elif behaviour == "late" and k == 1:
        assert num_proposed == 0  # one token late leaves nothing of one token
    else:
        assert accepted == num_proposed > 0, counts
    if behaviour == "perfect":
        for result, count in zip(results, counts, strict=True):
            check_perfect_counts(result, count, k)


def check_perfect_counts(result: dict[str, Any], count: dict[str, Any], k: int) -> None:
    """With every draft right the number of passes and of drafts is known."""
    behind_first = result["usage"]["completion_tokens"] - 1
    rounds = -(-behind_first // (k + 1))
    assert count["rounds"] == rounds
    # The last token of all is never drafted, not even when it is all that is left.
    assert count["drafted_rounds"] == rounds - (behind_first % (k + 1) == 1)
    assert count["proposed"] == behind_first - rounds
    assert sum(count["accepted_per_position"]) == count["accepted"]


def test_a_drafter_that_joins_late_takes_over_what_is_running(
    drafted: tuple[EngineHost, int], oracle: Oracle, expected: list[list[int]]
) -> None:
    engine, k = drafted
    with FakeDrafter(engine.control, dying(perfect(oracle, k), after=2), k=k) as first:
        running = [engine.begin(prompt(*p)) for p in PROMPTS]
        assert first.dead.wait(60)
        with FakeDrafter(engine.control, perfect(oracle, k), k=k):
            results = [future.result(60) for future in running]
    assert [result["token_ids"] for result in results] == expected


def test_without_any_drafter_requests_run_plainly(
    drafted: tuple[EngineHost, int], expected: list[list[int]]
) -> None:
    engine, _ = drafted
    results = engine.generate([prompt(*p) for p in PROMPTS], concurrency=4)
    assert [result["token_ids"] for result in results] == expected
    assert all(result["speculation"]["proposed"] == 0 for result in results)
