"""An output belongs to one run at a time, until that run has ended in whatever way."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline.cluster import launch
from paceline.cluster.output import OutputFile
from paceline.errors import ConfigError

HOLD = """
import sys
from pathlib import Path
from paceline.cluster.output import OutputFile

with OutputFile(Path(sys.argv[1])) as output:
    output.write("theirs")
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_run(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds ``path`` until it is told to end, or is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def write(path: Path, text: str) -> None:
    with OutputFile(path) as output:
        output.write(text)


def test_a_second_run_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "out.jsonl"
    with other_run(path) as process:
        with pytest.raises(ConfigError) as refusal:
            write(path, "ours")
        assert str(refusal.value) == (
            f"another run is writing to the output {path}; wait until it has ended, or name "
            "another file"
        )
        assert path.read_text() == "theirs\n"
        process.kill()
        process.wait()
        write(path, "ours")
    assert path.read_text() == "theirs\nours\n"
    assert [file.name for file in path.parent.iterdir()] == ["out.jsonl"], "nothing lies beside it"


@pytest.mark.parametrize("options", [[], ["--resume"], ["--overwrite"]])
def test_the_command_says_so_whatever_is_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str]
) -> None:
    config, source, path = tmp_path / "c.yaml", tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    config.write_text("target: {model: /no/such/model}\n")
    source.write_text('{"prompt": "x"}\n')
    with other_run(path):
        arguments = ["generate", "--config", config, "--input", source, "--output", path, *options]
        assert launch.main([str(argument) for argument in arguments]) == 2
        assert f"another run is writing to the output {path}" in capsys.readouterr().err
        assert path.read_text() == "theirs\n"


def test_a_file_that_takes_its_place_is_locked_as_well(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("old\n")
    path.chmod(0o640)
    with OutputFile(path) as output:
        output.put([b"kept\n"])
        with pytest.raises(ConfigError, match="another run"):
            write(path, "theirs")
        output.write("new")
    assert path.read_text() == "kept\nnew\n"
    assert path.stat().st_mode & 0o777 == 0o640
    write(path, "theirs")


def test_a_file_that_was_replaced_while_it_was_opened_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lock = tmp_path / "out.jsonl", OutputFile._lock
    num_locked = 0

    def replaced_before(self: OutputFile, file: object) -> None:
        nonlocal num_locked
        num_locked += 1
        if num_locked == 1:
            other = tmp_path / "other"
            other.write_text("theirs\n")
            other.replace(path)
        lock(self, file)  # type: ignore[arg-type]

    monkeypatch.setattr(OutputFile, "_lock", replaced_before)
    write(path, "ours")
    assert num_locked == 2
    assert path.read_text() == "theirs\nours\n"


def test_what_is_replaced_stands_until_there_is_something_to_replace_it(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("old, and longer\n")
    with OutputFile(path, replace=True) as output:
        assert output.holds_something()
        assert path.read_text() == "old, and longer\n"
        output.write("größer")
        output.write("2")
    assert path.read_text(encoding="utf-8") == "größer\n2\n"


def test_devices_belong_to_everybody() -> None:
    with (
        OutputFile(Path(os.devnull), replace=True) as one,
        OutputFile(Path(os.devnull), replace=True) as other,
    ):
        assert not one.holds_something()
        one.write("x")
        other.write("y")


def test_a_disk_that_is_full_is_one_sentence() -> None:
    with (
        pytest.raises(ConfigError, match="/dev/full cannot be written: no space left on device"),
        OutputFile(Path("/dev/full")) as output,
    ):
        output.write("x")
