"""``paceline generate --trace`` end to end: what the real processes took down."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Finished

pytestmark = [pytest.mark.slow, pytest.mark.ray]
CONFIG = str(Path(__file__).parents[2] / "ray_configs" / "quickstart.yaml")
PROMPT = "Repeat this text three times: the red fox runs, the red fox jumps, the red fox naps."


def spans(events: list[dict[str, Any]], process: str, name: str) -> list[dict[str, Any]]:
    """Returns the spans of this name in the process of that name."""
    [number] = [
        event["pid"]
        for event in events
        if event["name"] == "process_name" and event["args"]["name"] == process
    ]
    return [
        event
        for event in events
        if (event["ph"], event["pid"], event["name"]) == ("X", number, name)
    ]


def test_passes_and_drafting_on_one_clock(
    paceline: Callable[..., Finished], tmp_path: Path
) -> None:
    output, trace = tmp_path / "out.jsonl", tmp_path / "traces" / "trace.json"
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"messages": [{"role": "user", "content": PROMPT}]}))
    started = time.monotonic()
    done = paceline(
        *("generate", "--config", CONFIG, "--input", str(source), "--output", str(output)),
        *("--max-tokens", "32", "--trace", str(trace)),
    )
    seconds = time.monotonic() - started
    assert done.code == 0, done.err
    assert f"the trace {trace} has " in done.err and "2 processes" in done.err
    assert list(trace.parent.iterdir()) == [trace]
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert min(event["ts"] for event in events if event["ph"] != "M") == 0.0
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] + event["dur"] <= seconds * 1e6
    passes = spans(events, "verifier target", "verify")
    drafts = spans(events, "drafter ngram for target", "draft")
    counts = json.loads(output.read_text(encoding="utf-8"))["speculation"]
    assert len(passes) == counts["rounds"] + 1, "the prompt's pass, too"
    assert sum(one["args"]["num_drafted"] for one in passes) >= counts["proposed"] > 0
    assert passes[0]["args"]["num_tokens"] > len(PROMPT.split())
    assert drafts and all(one["args"]["rows"] == 1 for one in drafts)
    # Both are of one clock: no draft before the first token, the last one within the run.
    assert passes[0]["ts"] < drafts[0]["ts"] < passes[-1]["ts"] + passes[-1]["dur"]
    assert spans(events, "verifier target", "schedule")
    assert spans(events, "verifier target", "update")
