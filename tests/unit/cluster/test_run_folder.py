"""What a killed run leaves behind is removed, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from paceline.cluster.run_folder import OWNER, RunFolder, sweep
from paceline.errors import EngineDeadError, RequestFailedError

OWN = """
import sys
from paceline.cluster.run_folder import RunFolder

with RunFolder() as folder:
    (folder / "target.log").write_text("a log")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, this process's and its children's."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_a_folder_lives_as_long_as_its_run() -> None:
    with RunFolder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert sweep() == [] and folder.is_dir()
    assert not folder.exists()
    with pytest.raises(RequestFailedError), RunFolder() as folder:
        raise RequestFailedError("x")
    assert not folder.exists()


def test_the_log_of_an_engine_that_died_is_never_swept() -> None:
    with pytest.raises(EngineDeadError), RunFolder() as folder:
        (folder / "target.log").write_text("why")
        raise EngineDeadError("x")
    assert sweep() == [] and (folder / "target.log").read_text() == "why"


def test_a_killed_run_s_folder_is_swept_and_not_before() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        try:
            assert sweep() == [] and (folder / "target.log").exists()
        finally:
            process.kill()
        process.wait()
        assert folder.exists()
        assert sweep() == [folder]
        assert not folder.exists()


def test_what_is_not_known_to_be_dead_and_ours_stays(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (temporary / "paceline-without-owner").mkdir()
    (temporary / "paceline-a-file").write_text("x")
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / OWNER).write_text("")
    (temporary / "paceline-link").symlink_to(elsewhere)
    linked = temporary / "paceline-linked-owner"
    linked.mkdir()
    (linked / OWNER).symlink_to(elsewhere / OWNER)
    before = sorted(temporary.rglob("*"))
    assert sweep() == []
    left = temporary / "paceline-left"
    left.mkdir()
    (left / OWNER).write_text("")
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 12345)
        assert sweep() == []
    assert sweep() == [left]
    assert sorted(temporary.rglob("*")) == before
