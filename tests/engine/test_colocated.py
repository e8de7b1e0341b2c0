"""vLLM's own speculation as a baseline: its output, its counts, and the times of its outputs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.verifier.colocated import ColocatedSpeculation
from tests.engine.conftest import EngineHost, prompt, start_engine, tiny_target

pytestmark = pytest.mark.slow
K = 3


@pytest.fixture(scope="module")
def colocated(tiny_folder: Path, run_folder: Path) -> Iterator[EngineHost]:
    speculation = ColocatedSpeculation(
        speculative_config={
            "method": "ngram",
            "num_speculative_tokens": K,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 2,
        }
    )
    host = start_engine(tiny_target(tiny_folder), speculation, run_folder, "colocated")
    yield host
    host.close()


def run(host: EngineHost, detailed: bool) -> list[dict[str, Any]]:
    requests = [msgspec.structs.replace(prompt(n, 30), detailed=detailed) for n in range(3)]
    return host.generate(requests, concurrency=1)


def test_it_drafts_counts_and_changes_nothing(plain: EngineHost, colocated: EngineHost) -> None:
    results = run(colocated, detailed=True)
    expected = run(plain, detailed=True)
    assert [r["token_ids"] for r in results] == [r["token_ids"] for r in expected]
    assert all(r["speculation"] is None for r in expected)
    for result in results:
        counts = result["speculation"]
        assert counts["method"] == "ngram" and counts["rounds"] is None
        assert 0 < counts["drafted_rounds"] <= counts["proposed"] <= K * counts["drafted_rounds"]
        assert sum(counts["accepted_per_position"]) == counts["accepted"]
    assert sum(r["speculation"]["accepted"] for r in results) > 0


def test_events_hold_every_token_in_order(plain: EngineHost, colocated: EngineHost) -> None:
    for result in run(plain, detailed=True) + run(colocated, detailed=True):
        times = [seconds for seconds, _ in result["events"]]
        assert all(before < after for before, after in itertools.pairwise(times))
        assert sum(num_new for _, num_new in result["events"]) == len(result["token_ids"])
        assert times[0] == result["seconds_to_first_token"] and times[-1] <= result["seconds"]
        assert len(result["prompt_token_ids"]) == result["usage"]["prompt_tokens"] == 30


def test_details_come_only_when_asked_for(plain: EngineHost) -> None:
    [result, *_] = run(plain, detailed=False)
    assert not {"events", "prompt_token_ids"} & result.keys()
    assert result["seconds_to_first_token"] > 0
