"""``paceline replay``: what it prints, and its exit code."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from paceline.cluster import launch
from paceline.scheduler.recording import Record
from tests.unit.scheduler.test_recording import history


@pytest.fixture
def lines() -> list[bytes]:
    return history(3, 80)[1]


def replay(tmp_path: Path, lines: list[bytes]) -> int:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(lines))
    return launch.main(["replay", str(path)])


def test_an_identical_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[bytes]
) -> None:
    assert replay(tmp_path, lines) == 0
    events, passes, hits, misses, last = capsys.readouterr().out.splitlines()
    assert events.split() == ["events", str(len(lines) - 1)]
    assert passes.startswith("passes  ") and hits.startswith("hits    ")
    assert misses.startswith("misses  ") and "none" in misses
    assert last == "identical"


def test_a_torn_run_is_said_to_be_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[bytes]
) -> None:
    assert replay(tmp_path, [*lines, b'{"ev']) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "the last line is not whole, and was left out",
        "identical",
    ]


def test_a_run_that_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[bytes]
) -> None:
    for number, line in enumerate(lines[1:], 1):
        record = msgspec.json.decode(line, type=Record)
        if record.commands:
            lines[number] = (
                msgspec.json.encode(msgspec.structs.replace(record, commands=[])) + b"\n"
            )
            break
    assert replay(tmp_path, lines) == 1
    assert capsys.readouterr().out.startswith(f"different: line {number + 1}: ")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"prompts\n", "run.jsonl: it does not begin as a recording does: "),
        (None, "run.jsonl cannot be read: no such file or directory"),
    ],
)
def test_a_bad_file_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, expected: str
) -> None:
    path = tmp_path / "run.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert launch.main(["replay", str(path)]) == 2
    captured = capsys.readouterr()
    [sentence] = captured.err.splitlines()
    assert sentence.startswith("paceline: error: ") and expected in sentence
    assert captured.out == ""


def test_a_damaged_line_is_told_with_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[bytes]
) -> None:
    lines[4] = b"{}\n"
    assert replay(tmp_path, lines) == 2
    assert "line 5 of the recording is damaged" in capsys.readouterr().err


def test_a_file_that_is_one_long_line_is_not_read_into_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.cluster.replay.MAX_LINE_BYTES", 1 << 10)
    assert replay(tmp_path, [b"x" * (1 << 11)]) == 2
    assert "a line is longer than" in capsys.readouterr().err


@pytest.mark.parametrize("field", ["num_drafted", "num_accepted"])
def test_numbers_that_no_pass_has_are_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[bytes], field: str
) -> None:
    number = next(n for n, line in enumerate(lines) if f'"{field}":'.encode() in line)
    lines[number] = lines[number].replace(
        f'"{field}":'.encode(), f'"{field}":9'.encode() + b"9" * 20
    )
    assert replay(tmp_path, lines) == 2
    assert f"line {number + 1} of the recording is damaged" in capsys.readouterr().err
