"""``paceline bench`` end to end: three systems on the real model, and what it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster.generate import TIE
from tests.cluster.conftest import Finished

pytestmark = [pytest.mark.slow, pytest.mark.ray]
CONFIG = str(Path(__file__).parents[2] / "ray_configs" / "quickstart.yaml")
MAX_TOKENS = 16
FIELDS = {
    *("system", "drafter", "method", "mode", "dtype", "num_speculative_tokens", "concurrency"),
    *("temperature", "output_tokens_per_s", "output_tokens_per_s_iqr", "ratio_to_plain"),
    *("ttft_ms", "itl_ms", "acceptance_rate", "mean_acceptance_length"),
    *("accepted_per_position", "round_ms", "hit_rate", "misses", "expected_hit_rate"),
    *("verify_ms", "gap_ms", "exposed_wait_ms", "exposed_on_hits"),
    *("equal_to_plain", "differences"),
    *("simulated", "num_repeats", "num_prompts", "num_errors"),
}


def check_cell(cell: dict[str, Any]) -> None:
    """What holds for every system."""
    assert cell.keys() == FIELDS
    assert (cell["dtype"], cell["concurrency"], cell["temperature"]) == ("float32", 1, 0.0)
    assert (cell["num_repeats"], cell["num_prompts"], cell["num_errors"]) == (2, 3, 1)
    assert cell["output_tokens_per_s"] > 0 and cell["output_tokens_per_s_iqr"] >= 0
    for latency in (cell["ttft_ms"], cell["itl_ms"]):
        assert 0 < latency["p50"] <= latency["p99"]
    assert cell["round_ms"] > 0
    assert cell["simulated"] is False


def check_plain(cell: dict[str, Any]) -> None:
    """Nobody drafts, and there is nothing to compare with."""
    for name in (
        *("drafter", "method", "mode", "num_speculative_tokens", "ratio_to_plain"),
        *("acceptance_rate", "mean_acceptance_length", "accepted_per_position"),
        *("hit_rate", "misses", "verify_ms", "exposed_wait_ms", "equal_to_plain", "differences"),
    ):
        assert cell[name] is None, name


def check_drafted(cell: dict[str, Any]) -> None:
    """Drafts were counted, and changed nothing."""
    assert (cell["drafter"], cell["method"], cell["num_speculative_tokens"]) == (
        "ngram",
        "ngram",
        2,
    )
    assert cell["ratio_to_plain"] > 0
    assert 0 < cell["acceptance_rate"] <= 1
    per_position = cell["accepted_per_position"]
    assert len(per_position) == 2 and 1 >= per_position[0] >= per_position[1] >= 0
    assert cell["mean_acceptance_length"] == pytest.approx(1 + sum(per_position))
    ties = [d for d in cell["differences"] if d["top_two_gap"] < TIE]
    assert cell["differences"] == ties
    assert cell["equal_to_plain"] == 1.0 or ties


def test_three_systems_take_turns(paceline: Callable[..., Finished], tmp_path: Path) -> None:
    workload, output = tmp_path / "w.jsonl", tmp_path / "results" / "first"
    repeat = "Repeat this text three times: the red fox runs, the red fox jumps, the red fox naps."
    lines = [
        {"id": "fox", "category": "copy", "messages": [{"role": "user", "content": repeat}]},
        {"id": "count", "category": "text", "prompt": "one two three one two three one two"},
        {"id": "long", "category": "text", "prompt": "long " * 3000},
    ]
    workload.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    arguments = (
        *("bench", "--config", CONFIG, "--workload", str(workload), "--output", str(output)),
        *("--systems", "plain,vllm:ngram,paceline:ngram", "--num-speculative-tokens", "2"),
        *("--num-prompts", "9", "--max-tokens", str(MAX_TOKENS), "--repeats", "2"),
    )
    trace = output / "trace.json"
    done = paceline(*arguments, "--trace", str(trace), timeout=580)
    assert done.code == 1, done.err
    assert "the workload has 3 prompts, not 9" in done.err
    assert "6 of 6 measurements" in done.err
    assert "1 of 3 prompts could not be served" in done.err
    assert [line.split()[0] for line in done.out.splitlines()] == [
        *("system", "plain", "vllm:ngram", "paceline:ngram@lockstep"),
    ]
    text = (output / "results.json").read_text(encoding="utf-8")
    results = json.loads(text)
    assert results.keys() == {"environment", "arguments", "cells"}
    assert str(tmp_path) not in text and str(Path.home()) not in text
    plain, vllm, ours = results["cells"]
    for cell in results["cells"]:
        check_cell(cell)
    assert [c["system"] for c in results["cells"]] == ["plain", "vllm", "paceline"]
    check_plain(plain)
    check_drafted(vllm)
    assert (vllm["mode"], vllm["exposed_wait_ms"]) == (None, None)
    check_drafted(ours)
    assert ours["mode"] == "lockstep" and ours["exposed_wait_ms"] >= 0
    assert 0 < ours["verify_ms"] < ours["round_ms"]
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == [
        *("verifier paceline:ngram@lockstep K=2 float32",),
        *("drafter ngram for paceline:ngram@lockstep K=2 float32",),
    ]
    # Nothing of the warm-up: each pass is one of a request's rounds, or takes in its prompt.
    num_rounds = sum(
        request["counts"]["rounds"] + 1
        for line in (output / "measurements.jsonl").read_text(encoding="utf-8").splitlines()
        if (one := json.loads(line))["contender"].startswith("paceline")
        for request in one["requests"]
        if request["error"] is None
    )
    assert sum(1 for e in events if e["name"] == "verify") == num_rounds
    measured = (output / "measurements.jsonl").read_bytes()
    assert len(measured.splitlines()) == 6

    assert paceline(*arguments).code == 2
    resumed = paceline(*arguments, "--resume")
    assert resumed.code == 1, resumed.err
    assert "starting Ray" not in resumed.err, "something was measured again"
    assert resumed.out == done.out
    assert (output / "measurements.jsonl").read_bytes() == measured
    other = paceline(*arguments, "--resume", "--max-tokens", "17")
    assert other.code == 2
    assert f"was measured with max_tokens {MAX_TOKENS}" in other.err


def test_a_simulated_draft_and_the_target_as_its_own(
    paceline: Callable[..., Finished], write_config: Callable[..., str], tmp_path: Path
) -> None:
    model, output = "smollm2-135m-instruct", tmp_path / "out"
    config = write_config(
        target={"model": model, "dtype": "float32", "max_model_len": 256, "max_num_seqs": 1},
        drafters=[
            {"name": "sim", "method": "scripted", "scripted_forward_ms": 1},
            {"name": "self", "method": "draft_model", "model": model},
        ],
        speculation={"patience_ms": 30_000},
    )
    workload = tmp_path / "w.jsonl"
    lines = [{"prompt": "Count: one two three"}, {"prompt": "The weather is", "category": None}]
    workload.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    done = paceline(
        *("bench", "--config", config, "--workload", str(workload), "--output", str(output)),
        *("--systems", "paceline:sim,vllm:self", "--num-speculative-tokens", "3"),
        *("--max-tokens", "32", "--repeats", "1"),
        timeout=580,
    )
    assert done.code == 0, done.err
    results = json.loads((output / "results.json").read_text(encoding="utf-8"))
    plain, scripted, vllm = results["cells"]
    assert [cell["simulated"] for cell in results["cells"]] == [False, True, False]
    for cell in (scripted, vllm):
        assert all(d["top_two_gap"] < TIE for d in cell["differences"])
    assert vllm["acceptance_rate"] > 0.9, "the target agrees with itself"
    # About 60 draws with probability 0.75, of which the same ones are right each time.
    assert 0.5 <= scripted["accepted_per_position"][0] <= 0.95
    assert f"paceline:sim@{scripted['mode']} (simulated)" in done.out
    assert len((output / "answers.jsonl").read_bytes().splitlines()) == len(lines)
    assert plain["num_errors"] == scripted["num_errors"] == vllm["num_errors"] == 0
