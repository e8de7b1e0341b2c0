"""The command line as a user runs it: a process of its own, with a real Ray and real engines."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

MARK = "PACELINE_TEST_MARK"


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str


def marked(mark: str) -> list[psutil.Process]:
    """Returns the processes that were started, at any depth, with ``mark`` in the environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def check_gone(mark: str) -> None:
    """Fails if a process with ``mark`` stays; one that is just ending is given its time."""
    _, left = psutil.wait_procs(marked(mark), timeout=60)
    assert not left, f"still running: {[process.cmdline() for process in left]}"


@pytest.fixture
def paceline() -> Callable[..., Finished]:
    """Runs the command line; fails if it leaves a process behind."""

    def run(*arguments: str, timeout: float = 300) -> Finished:
        mark = uuid.uuid4().hex
        result = subprocess.run(
            [sys.executable, "-m", "paceline.cluster.launch", *arguments],
            env={**os.environ, MARK: mark},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        check_gone(mark)
        return Finished(result.returncode, result.stdout, result.stderr)

    return run


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[..., str]:
    """Writes a configuration file with ``sections``; returns its path."""

    def write(**sections: Any) -> str:
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(sections), encoding="utf-8")
        return str(path)

    return write
