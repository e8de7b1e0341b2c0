"""A run that is ended in the middle, and one that goes on with what it has left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import MARK, Finished, check_gone

pytestmark = [pytest.mark.slow, pytest.mark.ray]
CONFIG = str(Path(__file__).parents[2] / "ray_configs" / "quickstart.yaml")
NUM_PROMPTS = 8
LIMIT = 240.0
"""Seconds after which the first line counts as never coming; reached only by a failing test."""


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def end_in_the_middle(arguments: tuple[str, ...], output: Path) -> None:
    """Runs the command until the first line is there, then asks it to end."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline.cluster.launch", *arguments],
        env={**os.environ, MARK: mark},
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + LIMIT
        while not (output.is_file() and b"\n" in output.read_bytes()):
            assert time.monotonic() < deadline, "there is no first line"
            try:
                process.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
            pytest.fail(f"it ended by itself, with code {process.returncode}")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    check_gone(mark)


def test_a_run_that_was_ended_goes_on_where_it_was(
    paceline: Callable[..., Finished], tmp_path: Path
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    ids = [f"count-{number}" for number in range(NUM_PROMPTS)]
    prompts = [
        {"id": name, "prompt": f"Count from {number} on: {number}, {number + 1},"}
        for number, name in enumerate(ids)
    ]
    source.write_text("\n".join(json.dumps(prompt) for prompt in prompts), encoding="utf-8")
    arguments = (
        *("generate", "--config", CONFIG, "--input", str(source), "--output", str(output)),
        *("--max-tokens", "64"),
    )
    end_in_the_middle(arguments, output)
    before = output.read_bytes()
    done = written(output)
    assert 0 < len(done) < NUM_PROMPTS, "it was not ended in the middle"
    with output.open("ab") as file:
        file.write(b'{"id": "count-7", "finger')

    assert paceline(*arguments).code == 2, "without --resume the work stays untouched"
    ended = paceline(*arguments, "--resume")
    assert ended.code == 0, ended.err
    assert f"{len(done)} of {NUM_PROMPTS} lines are done already" in ended.err
    assert output.read_bytes().startswith(before)
    assert sorted(line["id"] for line in written(output)) == ids
    assert all(line["text"] and line["usage"]["completion_tokens"] for line in written(output))

    again = paceline(*arguments, "--resume", timeout=60)
    assert again.code == 0
    assert f"{NUM_PROMPTS} of {NUM_PROMPTS} lines are done already" in again.err
    assert "Ray" not in again.err, "there is nothing to start"
