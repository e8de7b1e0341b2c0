"""The stage evaluate: what is measured where, and the card at its end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from paceline.cards import read_card
from paceline.config import parse
from paceline.errors import InputError, RequestFailedError, UserError
from paceline.training import evaluate as stage
from paceline.training import offline
from paceline.training.acceptance import Counts, Measurement, append_result, read_results
from paceline.training.evaluate import RESULTS_FILE, command, evaluate
from paceline.training.parts import Share
from paceline.training.recipe import Recipe

GIVEN = [Share(part=0, parts=1, device="cpu")]
COUNTS = Counts(passes=4, tokens=10, drafted=[4, 4, 4], accepted=[4, 2, 0])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    return tmp_path


def recipe(folder: Path, *methods: str, **changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "target": "org/target",
        "folder": str(folder),
        "prompts": {"sources": [{"dataset": "org/q"}], "held_out": ["a/chat.jsonl"]},
        "drafts": [
            {"name": f"d-{method}", "method": method, "num_layers": 2, "num_speculative_tokens": 3}
            for method in methods
        ],
    }
    return parse(values | changes, Recipe, "here")


def trained(one: Recipe, name: str) -> Path:
    path = one.drafts_folder / name
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(name.encode())
    return path


def test_the_process_is_told_what_the_recipe_says(folder: Path) -> None:
    evaluation = {"files": ["x/code.jsonl", "y/maths.jsonl"], "temperatures": [0, 0.5]}
    one = recipe(folder, "causal_lm", evaluation={**evaluation, "max_tokens": 9})
    words = command(one, one.drafts[0])
    assert words[:3] == [sys.executable, "-m", "paceline.training.acceptance_vllm"]
    parser = __import__("paceline.training.acceptance_vllm", fromlist=["x"])._parser()
    options = parser.parse_args(words[3:])
    assert options.target == "org/target"
    assert Path(options.draft) == one.drafts_folder / "d-causal_lm"
    assert (options.method, options.num_speculative_tokens) == ("draft_model", 3)
    assert (options.temperatures, options.num_prompts, options.max_tokens) == ([0, 0.5], 20, 9)
    assert options.output == one.drafts_folder / "d-causal_lm" / RESULTS_FILE
    assert [str(path) for path in options.workloads] == ["x/code.jsonl", "y/maths.jsonl"]
    one = recipe(folder, "eagle3", evaluation={"num_speculative_tokens": 6})
    options = parser.parse_args(command(one, one.drafts[0])[3:])
    assert options.num_speculative_tokens == 6
    assert [str(path) for path in options.workloads] == ["a/chat.jsonl"]


class Processes:
    """Stands in for subprocess.Popen; writes what a measurement would."""

    def __init__(self, work: Callable[[list[str]], int]) -> None:
        self.work = work
        self.commands: list[list[str]] = []

    def __call__(self, words: list[str], env: dict[str, str]) -> Processes:
        assert env["OMP_NUM_THREADS"]
        self.commands.append(words)
        return self

    def wait(self) -> int:
        return self.work(self.commands[-1])

    def poll(self) -> int:
        return 0


def result(one: Recipe, name: str, method: str) -> Measurement:
    return replace(
        offline.keys(one, next(draft for draft in one.drafts if draft.name == name))[0],
        counts=COUNTS,
        source="vllm",
        method=method,
    )


def test_drafts_are_measured_in_vllm_or_offline_and_get_cards(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = recipe(folder, "eagle3", "dspark", "mtp")
    trained(one, "d-eagle3")
    trained(one, "d-dspark")

    def work(words: list[str]) -> int:
        output = Path(words[words.index("--output") + 1])
        append_result(output, result(one, "d-eagle3", "eagle3"))
        append_result(output, replace(result(one, "d-eagle3", "eagle3"), weights="others"))
        return 0

    processes = Processes(work)
    monkeypatch.setattr(subprocess, "Popen", processes)
    played: list[str] = []

    def measure(recipe: Recipe, draft: Any, device: str) -> list[Measurement]:
        played.append(draft.name)
        return [replace(key, counts=COUNTS) for key in offline.keys(recipe, draft)]

    monkeypatch.setattr(offline, "prepare", lambda recipe, given: None)
    monkeypatch.setattr(offline, "measure", measure)
    evaluate(one, GIVEN)
    told = capsys.readouterr().err
    assert "d-mtp has not been trained yet and is left out" in told
    assert "d-dspark is measured offline: vLLM has dspark in its V2 model runner only" in told
    assert len(processes.commands) == 1
    assert played == ["d-dspark"]
    for name in ("d-eagle3", "d-dspark"):
        card = read_card(one.drafts_folder / name)
        assert card is not None and card.mean_acceptance_length == 2.5
    text = (one.drafts_folder / "d-eagle3" / "README.md").read_text()
    assert text.count("| d-eagle3 | vLLM |") == 1, "other weights' results are not shown"
    (found,) = read_results(one.drafts_folder / "d-dspark" / RESULTS_FILE)
    assert (found.source, found.temperature) == ("offline", 0.0)

    evaluate(one, GIVEN)
    assert played == ["d-dspark"], "it is not measured again"
    (one.drafts_folder / "d-dspark" / "model.safetensors").write_bytes(b"trained on")
    evaluate(one, GIVEN)
    assert played == ["d-dspark"] * 2


@pytest.mark.parametrize(("code", "error"), [(2, UserError), (-9, RequestFailedError)])
def test_a_measurement_that_fails_ends_the_stage(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    one = recipe(folder, "eagle3")
    trained(one, "d-eagle3")
    monkeypatch.setattr(subprocess, "Popen", Processes(lambda words: code))
    with pytest.raises(error):
        evaluate(one, GIVEN)
    assert not (one.drafts_folder / "d-eagle3" / "README.md").exists()


def test_without_drafts_or_held_out_prompts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = recipe(folder, "eagle3", prompts={"sources": [{"dataset": "org/q"}]})
    with pytest.raises(InputError, match="run the stage train first"):
        evaluate(one, GIVEN)
    trained(one, "d-eagle3")
    monkeypatch.setattr(subprocess, "Popen", pytest.fail)
    evaluate(one, GIVEN)
    assert "nothing is measured" in capsys.readouterr().err
    card = read_card(one.drafts_folder / "d-eagle3")
    assert card is not None and card.mean_acceptance_length is None


def test_the_stage_is_the_last_one() -> None:
    from paceline.training.command import STAGES

    assert list(STAGES)[-1] == "evaluate"
    assert STAGES["evaluate"][0] == stage.__name__
