"""The command line: what a user did wrong is one sentence and exit code 2, before Ray starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline import __version__, models, shipped
from paceline.cards import CARD_FILE, Card, card_text
from paceline.cluster import launch, models_command
from paceline.cluster.inputs import Prompt
from paceline.cluster.resume import fingerprint
from paceline.errors import EngineDeadError
from paceline.verifier.config import TargetConfig


@pytest.fixture(autouse=True)
def keep_signals() -> Iterator[None]:
    """The command line sets a handler, which is not this process's to keep."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text("target: {model: /no/such/model}\ndrafters: [{name: n, method: ngram}]\n")
    return path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Returns the sentence that the arguments are refused with."""
    assert launch.main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [sentence] = captured.err.splitlines()
    assert sentence.startswith("paceline: error: ")
    return sentence.removeprefix("paceline: error: ")


def test_a_missing_configuration(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sentence = refused(capsys, "generate", "--config", tmp_path / "no.yaml", "--prompt", "x")
    assert (
        sentence
        == f"the configuration {tmp_path}/no.yaml cannot be read: No such file or directory"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("taget: {model: m}", "unknown key 'taget'; did you mean 'target'?"),
        ("target: {model: m}\ndrafters: [{name: a, method: ngam}]", "did you mean 'ngram'?"),
        ("target: [", "is not valid YAML"),
        ("", "holds no keys; start from one in ray_configs/"),
    ],
)
def test_a_wrong_configuration(
    capsys: pytest.CaptureFixture[str], config: Path, text: str, expected: str
) -> None:
    config.write_text(text)
    sentence = refused(capsys, "generate", "--config", config, "--prompt", "x")
    assert str(config) in sentence and expected in sentence


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--max-tokens", "0"], "--max-tokens is 0, it must be at least 1"),
        (["--temperature", "-1"], "--temperature is -1.0, it lies between 0 and 2"),
        (["--temperature", "nan"], "--temperature is nan, it lies between 0 and 2"),
    ],
)
def test_a_wrong_argument(
    capsys: pytest.CaptureFixture[str], config: Path, arguments: list[str], expected: str
) -> None:
    assert refused(capsys, "generate", "--config", config, "--prompt", "x", *arguments) == expected


def test_an_empty_prompt(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    sentence = refused(capsys, "generate", "--config", config, "--prompt", "  ")
    assert sentence == "the prompt is empty or no valid UTF-8; write what to complete"


def test_an_input_that_is_missing_or_empty(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    path = tmp_path / "in.jsonl"
    assert "cannot be read" in refused(capsys, "generate", "--config", config, "--input", path)
    path.write_text("\n")
    assert "is empty" in refused(capsys, "generate", "--config", config, "--input", path)


def test_an_output_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    sentence = refused(
        capsys, "generate", "--config", config, "--prompt", "x", "--output", tmp_path
    )
    assert sentence == f"the output {tmp_path} cannot be written: is a directory"


def test_an_output_that_holds_something_is_not_overwritten_unasked(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text("work\n")
    arguments = ("generate", "--config", config, "--prompt", "x", "--output", output)
    sentence = refused(capsys, *arguments)
    assert str(output) in sentence and "--resume" in sentence and "--overwrite" in sentence
    assert output.read_text() == "work\n"
    # A run that cannot start has nothing to put in its place.
    assert launch.main([*map(str, arguments), "--overwrite"]) == 2
    assert "/no/such/model" in capsys.readouterr().err
    assert output.read_text() == "work\n"


@pytest.mark.parametrize(
    "arguments", [["--prompt", "x"], ["--prompt", "x", "--output", "o"], ["--input", "i"]]
)
def test_resume_needs_both_files(
    capsys: pytest.CaptureFixture[str], config: Path, arguments: list[str]
) -> None:
    sentence = refused(capsys, "generate", "--config", config, *arguments, "--resume")
    assert sentence == "--resume goes on with a file; name it with --output, and --input"


def test_resume_needs_an_input_that_can_be_read_twice(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    pipe, output = tmp_path / "pipe", tmp_path / "out.jsonl"
    os.mkfifo(pipe)
    arguments = ("generate", "--config", config, "--input", pipe, "--output", output, "--resume")
    assert refused(capsys, *arguments) == f"--resume reads the input twice, and {pipe} is no file"
    assert not output.exists()


def test_the_input_is_not_the_output_whatever_is_asked(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "x"}\n')
    arguments = ("generate", "--config", config, "--input", path, "--output", path)
    for option in ((), ("--resume",), ("--overwrite",)):
        assert "is the input" in refused(capsys, *arguments, *option)
    assert path.read_text() == '{"prompt": "x"}\n'


def test_a_recording_replaces_no_file_of_the_run(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "x"}\n')
    for name, path in (("input", source), ("output", tmp_path / "out.jsonl"), ("config", config)):
        recorded = config.read_text() + f"\nspeculation: {{record: {path}}}\n"
        (other := tmp_path / "other.yaml").write_text(recorded)
        if name == "config":
            other.write_text(recorded.replace(str(path), str(other)))
        arguments = ("generate", "--config", other, "--input", source, "--output")
        assert f"which is --{name}" in refused(capsys, *arguments, tmp_path / "out.jsonl")
    assert source.read_text() == '{"prompt": "x"}\n'


def test_a_run_that_is_done_starts_nothing(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"id": "a", "prompt": "x"}\n')
    made = fingerprint(
        TargetConfig(model="/no/such/model"),
        Prompt(line=1, id="a", prompt="x"),
        {"max_tokens": 128, "temperature": 0.0},
    )
    line = json.dumps({"id": "a", "text": "y", "fingerprint": made}) + "\n"
    output.write_text(line)
    arguments = ("generate", "--config", config, "--input", source, "--output", output, "--resume")
    assert launch.main([str(argument) for argument in arguments]) == 0
    assert capsys.readouterr().err == "paceline: 1 of 1 lines are done already\n"
    assert output.read_text() == line
    sentence = refused(capsys, *arguments, "--max-tokens", "7")
    assert "holds a result for 'a' with another prompt, target or sampling" in sentence


def test_a_model_that_is_not_there(
    capsys: pytest.CaptureFixture[str], config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On this machine it is looked for before Ray starts."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    sentence = refused(capsys, "generate", "--config", config, "--prompt", "x")
    assert sentence == "the model folder '/no/such/model' does not exist: check the path"


def test_an_alias_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no-such-alias" in refused(capsys, "models", "fetch", "no-such-alias")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["generat"],
        ["generate"],
        ["generate", "--config", "c"],
        ["generate", "--config", "c", "--prompt", "x", "--input", "y"],
        ["generate", "--config", "c", "--prompt", "x", "--max-tokens", "many"],
        ["generate", "--config", "c", "--prompt", "x", "--resume", "--overwrite"],
        ["models"],
    ],
)
def test_arguments_that_do_not_parse(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        launch.main(arguments)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_models_list_needs_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launch.main(["models", "list"]) == 0
    out = capsys.readouterr().out
    assert all(alias in out for alias in models.ALIASES)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "models")
    assert launch.main(["models", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == shipped.NO_FOLDER


def test_models_list_shows_the_shipped_drafts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    folder = tmp_path / "models" / "tiny-mtp"
    folder.mkdir(parents=True)
    card = Card(
        name="tiny-mtp",
        target="tiny",
        method="mtp",
        num_speculative_tokens=2,
        mean_acceptance_length=1.987,
    )
    (folder / CARD_FILE).write_text(card_text({}, card, "x" * 60_000))
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "models")
    assert launch.main(["models", "list"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("tiny-mtp ") and " mtp " in line
    assert "for tiny, 0.1 MB, 1.99 tokens a pass" in line
    assert "holds no config.json" in line


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (EngineDeadError("the engine is gone"), 1, "paceline: error: the engine is gone"),
        (KeyboardInterrupt(), 130, "paceline: interrupted"),
        (
            ModuleNotFoundError("No module named 'ray'", name="ray.x"),
            2,
            "paceline: error: 'models' needs the package ray, which is not installed; install "
            "Paceline with its extra cpu or gpu",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_how_a_run_can_end(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    message: str,
) -> None:
    def run(arguments: object) -> int:
        raise error

    monkeypatch.setattr(models_command, "run", run)
    assert launch.main(["models", "list"]) == code
    assert capsys.readouterr().err.splitlines() == [message]


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("paceline.x", name="paceline.x"), AssertionError("a bug")]
)
def test_a_bug_of_our_own_is_not_dressed_up(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def run(arguments: object) -> int:
        raise error

    monkeypatch.setattr(models_command, "run", run)
    with pytest.raises(type(error)):
        launch.main(["models", "list"])


def test_a_request_to_terminate_ends_as_an_interrupt_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(arguments: object) -> int:
        signal.raise_signal(signal.SIGTERM)
        return 0

    monkeypatch.setattr(models_command, "run", run)
    assert launch.main(["models", "list"]) == 130


@pytest.mark.parametrize(
    ("option", "expected"),
    [("--help", "usage: paceline"), ("--version", f"paceline {__version__}")],
)
def test_the_installed_command_speaks(option: str, expected: str) -> None:
    command = Path(sys.executable).parent / "paceline"
    ended = subprocess.run([command, option], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(expected)
    assert ended.stderr == ""
