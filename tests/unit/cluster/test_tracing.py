"""``--trace``: refused before anything starts, and written however the run ends."""

from __future__ import annotations

import errno
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.cluster import launch, tracing
from paceline.cluster.tracing import check_trace, traced
from paceline.errors import ConfigError
from paceline.trace import Tracer


@pytest.fixture
def said() -> list[str]:
    """What the user was told."""
    return []


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A trace that can be written, in a folder that is not there yet."""
    return tmp_path / "traces" / "t.json"


def write_part(folder: Path | None) -> None:
    """Does what a process of the run does."""
    with Tracer("verifier target", folder) as tracer:
        tracer.span("target", "verify", 1.0, 2.0)


def test_the_parts_are_merged_and_removed(file: Path, said: list[str]) -> None:
    check_trace(file)
    with traced(file, said.append) as folder:
        write_part(folder)
    assert json.loads(file.read_text())["traceEvents"]
    assert list(file.parent.iterdir()) == [file]
    assert said == [f"the trace {file} has 1 records of 1 processes"]


def test_a_run_that_is_interrupted_has_a_trace(file: Path, said: list[str]) -> None:
    with pytest.raises(KeyboardInterrupt), traced(file, said.append) as folder:
        write_part(folder)
        raise KeyboardInterrupt
    assert list(file.parent.iterdir()) == [file]


def test_without_a_file_there_is_no_folder(said: list[str]) -> None:
    check_trace(None)
    with traced(None, said.append) as folder:
        write_part(folder)
    assert folder is None and not said


def test_a_file_that_cannot_be_written_at_the_end(
    file: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, file: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tracing, "merge", full)
    expected = f"the trace {file} cannot be written: no space left on device"
    with pytest.raises(ConfigError, match=expected), traced(file, said.append):
        pass
    assert not list(file.parent.iterdir())


def test_what_is_refused_at_the_start(tmp_path: Path) -> None:
    there = tmp_path / "there.json"
    there.write_text("x")
    for file, output, expected in (
        (there, None, "exists already; name another file, or remove it"),
        (tmp_path, None, "exists already"),
        (there / "t.json", None, f"cannot be written: {there} is no folder to write in"),
        (tmp_path / "a" / ".." / "new", str(tmp_path / "new"), "is the output, too"),
    ):
        with pytest.raises(ConfigError, match=expected):
            check_trace(file, output)


@pytest.fixture
def keep_signals() -> Iterator[None]:
    """The command line sets handlers, which are not this process's to keep."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("keep_signals")
@pytest.mark.parametrize("command", ["generate", "bench"])
def test_the_command_line(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, before the model is looked for."""
    config, there = tmp_path / "c.yaml", tmp_path / "there.json"
    config.write_text("target: {model: /no/such}\ndrafters: [{name: n, method: ngram}]\n")
    there.write_text('{"prompt": "x"}')
    own = {
        "generate": ["--input", str(there), "--output", str(tmp_path / "out.jsonl")],
        "bench": ["--workload", str(there), "--systems", "plain", "--output", str(tmp_path / "o")],
    }
    arguments = [command, "--config", str(config), *own[command], "--trace", str(there)]
    assert launch.main(arguments) == 2
    assert capsys.readouterr().err == (
        f"paceline: error: the trace {there} exists already; name another file, or remove it\n"
    )
    assert there.read_text() and not (tmp_path / "o").exists()
