"""``paceline bench``: what a user did wrong is one sentence and exit code 2, before Ray starts."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.cluster import launch


@pytest.fixture(autouse=True)
def keep_signals() -> Iterator[None]:
    """The command line sets a handler, which is not this process's to keep."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


class Bench:
    """Options that would do, but for a model that does not exist."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.output = folder / "out"
        config = folder / "c.yaml"
        config.write_text(
            "target: {model: /no/such, max_model_len: 64}\n"
            "drafters: [{name: n, method: ngram}, {name: s, method: scripted}]\n"
        )
        self.workload = folder / "w.jsonl"
        self.workload.write_text(json.dumps({"prompt": "x", "category": "qa"}))
        self._options = {
            "--config": str(config),
            "--workload": str(self.workload),
            "--systems": "plain,paceline:n",
            "--output": str(self.output),
            "--max-tokens": "16",
        }

    def refused(self, **changes: str) -> str:
        """Returns the sentence that the options are refused with."""
        changed = {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
        options = {**self._options, **changed}
        arguments = [word for option in options.items() for word in option]
        assert launch.main(["bench", *arguments]) == 2
        captured = self._capsys.readouterr()
        assert captured.out == ""
        last = captured.err.splitlines()[-1]
        assert last.startswith("paceline: error: ")
        assert not self.output.exists()
        return last.removeprefix("paceline: error: ")


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(tmp_path, capsys)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("systems", "vllm:x", "has no drafter 'x'; it has n, s"),
        ("num_speculative_tokens", "0", "names 0, it lies between 1 and 32"),
        ("num_speculative_tokens", "2,33", "names 33, it lies between 1 and 32"),
        ("num_speculative_tokens", "two", "names 'two', which is not a whole number"),
        ("num_speculative_tokens", "2,,4", "is '2,,4', which has an empty item"),
        ("concurrency", "17", "names 17, it lies between 1 and target.max_num_seqs (16)"),
        ("concurrency", "1.5", "names '1.5', which is not a whole number"),
        ("temperature", "-1", "names -1, it lies between 0 and 2"),
        ("temperature", "nan", "names nan, it lies between 0 and 2"),
        ("dtype", "float8", "names 'float8'; there are float32, bfloat16, float16"),
        ("num_prompts", "0", "--num-prompts is 0, it must be at least 1"),
        ("max_tokens", "0", "--max-tokens is 0, it must be at least 1"),
        ("max_tokens", "64", "--max-tokens is 64, but a request has at most 64 tokens, prompt"),
        ("output", "", "--output is empty; name a new folder"),
        ("output", " ", "--output is empty; name a new folder"),
        ("systems", "vllm", "without a drafter; write vllm:NAME"),
        ("systems", "vllm:s", "vllm:s is not possible: vLLM drafts by no script"),
        ("repeats", "0", "--repeats is 0, it must be at least 1"),
        ("categories", "rag", "names 'rag', which no line of"),
        ("workload", "/no/such/file", "cannot be read"),
        ("config", "/no/such/file", "cannot be read"),
    ],
)
def test_a_wrong_option(bench: Bench, option: str, value: str, expected: str) -> None:
    assert expected in bench.refused(**{option: value})


def test_a_model_that_is_not_there_is_noticed_before_the_folder_is_made(bench: Bench) -> None:
    assert bench.refused() == "the model folder '/no/such' does not exist: check the path"


def test_a_scripted_draft_and_a_temperature(bench: Bench) -> None:
    refused = bench.refused(systems="paceline:s", temperature="0,0.5")
    assert "paceline:s@" in refused and "follows plain decoding's answers" in refused
    assert "leave it out of --systems, or 0.5 out of --temperature" in refused
    assert "/no/such" in bench.refused(systems="paceline:n", temperature="0,0.5")
    assert "/no/such" in bench.refused(systems="paceline:s"), "answers are the bench's to make"


def test_a_model_s_own_limit(bench: Bench, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"max_position_embeddings": 32}')
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    config = tmp_path / "own.yaml"
    config.write_text(f"target: {{model: {model}}}\ndrafters: [{{name: n, method: ngram}}]\n")
    refused = bench.refused(config=str(config), max_tokens="32")
    assert "at most 32 tokens" in refused


def test_more_prompts_than_there_are_is_said(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr("paceline.bench.command.say", told.append)
    bench.refused(num_prompts="5")
    assert told == ["the workload has 1 prompts, not 5; all are used"]
