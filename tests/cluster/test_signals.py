"""SIGTERM while the target is loading: an orderly end, exit code 130, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import MARK, check_gone

pytestmark = [pytest.mark.slow, pytest.mark.ray]
CONFIG = str(Path(__file__).parents[2] / "ray_configs" / "quickstart.yaml")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    # Not pytest's: Ray puts sockets there, whose paths have at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="pl-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def test_terminate_while_loading(short_folder: Path) -> None:
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "paceline.cluster.launch", "generate", "--config", CONFIG]
    with subprocess.Popen(
        [*command, "--prompt", "Hello"],
        env={**os.environ, MARK: mark, "TMPDIR": str(short_folder)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "loading the target" in line:
                break
        else:
            pytest.fail(f"it ended before the target was loaded, with code {process.wait(60)}")
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(60) == 130
    assert rest.strip().splitlines()[-1] == "paceline: interrupted"
    assert "SIGTERM received" not in rest
    check_gone(mark)
    assert not list(short_folder.glob("paceline-*"))
