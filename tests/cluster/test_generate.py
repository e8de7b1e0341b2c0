"""``paceline generate`` end to end: the real model, files in and out, beside plain decoding."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.conftest import Finished

pytestmark = [pytest.mark.slow, pytest.mark.ray]
CONFIG = str(Path(__file__).parents[2] / "ray_configs" / "quickstart.yaml")


def test_a_file_with_broken_lines_beside_plain_decoding(
    paceline: Callable[..., Finished], tmp_path: Path
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out" / "out.jsonl"
    repeat = "Repeat this text three times: the red fox runs, the red fox jumps, the red fox naps."
    lines = [
        json.dumps({"id": "a", "messages": [{"role": "user", "content": repeat}]}),
        '{"id": "b", "prompt": ',
        "",
        json.dumps({"prompt": "one two three one two three one two"}),
        json.dumps({"id": "d", "prompt": "long " * 3000}),
    ]
    source.write_text("\n".join(lines), encoding="utf-8")
    done = paceline(
        *("generate", "--config", CONFIG, "--input", str(source), "--output", str(target)),
        *("--max-tokens", "48", "--compare"),
    )
    assert done.code == 1, done.err
    written = {}
    for line in target.read_text(encoding="utf-8").splitlines():
        value = json.loads(line)
        written[value["id"]] = value
    assert set(written) == {"a", "2", "4", "d"}
    assert "line 2: it is not valid JSON" in done.err
    assert "line 5: " in done.err
    assert "2048" in written["d"]["error"]
    for name in ("a", "4"):
        line = written[name]
        assert line["equal_to_plain"] is True
        assert line["usage"]["completion_tokens"] == len(line["token_ids"])
        assert line["finish_reason"] in ("length", "stop")
        speculation = line["speculation"]
        assert speculation["method"] == "ngram"
        assert speculation["accepted"] <= speculation["proposed"]
        assert sum(speculation["accepted_per_position"]) == speculation["accepted"]
    assert sum(written[name]["speculation"]["accepted"] for name in ("a", "4")) > 0
    assert "outputs equal to plain decoding: 2 of 2" in done.err
    assert "speed against plain decoding: " in done.err


def test_one_prompt_prints_the_text_and_nothing_else(paceline: Callable[..., Finished]) -> None:
    done = paceline(
        *("generate", "--config", CONFIG, "--prompt", "Say hello.", "--max-tokens", "8"),
    )
    assert done.code == 0, done.err
    assert 0 < len(done.out.strip()) < 200
    assert "tokens/s" in done.err
