"""What a measurement in vLLM asks for, without vLLM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.errors import InputError
from paceline.training import acceptance_vllm
from paceline.training.acceptance_vllm import cannot_run, chosen, main, max_model_len, prompt_room


@pytest.mark.parametrize(
    ("number", "expected"), [(1, [0]), (3, [0, 3, 6]), (10, list(range(10))), (99, list(range(10)))]
)
def test_prompts_are_taken_evenly(tmp_path: Path, number: int, expected: list[int]) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps({"id": i, "prompt": f"q{i}"}) + "\n" for i in range(10)))
    assert [row.id for row in chosen(path, number)] == [str(i) for i in expected]


def test_a_short_target_gets_short_prompts(tmp_path: Path) -> None:
    assert max_model_len("somebody/model") == 2048
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 64}')
    assert max_model_len(tmp_path) == 64
    assert prompt_room(tmp_path, 50, 4) == 9
    with pytest.raises(InputError, match=r"answers of 60 tokens leave no room .* the 64 tokens"):
        prompt_room(tmp_path, 60, 4)
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 9999}')
    assert max_model_len(tmp_path) == 2048


@pytest.mark.parametrize(
    ("method", "on_cpu", "runner", "runs"),
    [
        ("eagle3", True, "", True),
        ("dspark", False, "", True),
        ("dspark", True, "", False),
        ("dspark", True, "0", False),
        ("dspark", True, "1", True),
    ],
)
def test_what_vllm_cannot_run_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, method: str, on_cpu: bool, runner: str, runs: bool
) -> None:
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    if runner:
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", runner)
    assert (cannot_run(method, on_cpu=on_cpu) == "") == runs


def test_a_draft_that_is_not_there_is_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance_vllm, "_engine", pytest.fail)
    arguments = ["--target", "a/b", "--draft", "/no/draft", "--method", "eagle3"]
    output = ["--output", str(tmp_path / "out.jsonl")]
    assert main([*arguments, *output, str(tmp_path / "p.jsonl")]) == 2
    assert capsys.readouterr().err.strip() == (
        "paceline: the model folder '/no/draft' does not exist: check the path"
    )
