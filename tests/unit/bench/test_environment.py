"""What is recorded of the machine, and what is not."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

import pytest

from paceline import __version__
from paceline.bench import environment
from paceline.verifier.config import TargetConfig


def test_versions_machine_and_threads() -> None:
    made = environment.environment(TargetConfig(model="m", threads=3))
    assert made["versions"]["paceline"] == __version__
    assert made["versions"]["python"] == platform.python_version()
    assert set(made["versions"]) == {"paceline", "vllm", "torch", "ray", "python"}
    assert made["cpu"]["cores"] == os.cpu_count()
    assert made["threads"] == 3


def test_no_host_name_and_no_path() -> None:
    text = json.dumps(environment.environment(TargetConfig(model="/models/secret")))
    assert platform.node() not in text
    assert str(Path.home()) not in text and "secret" not in text and str(Path.cwd()) not in text


def test_what_is_not_installed_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "PACKAGES", {"vllm": ("no-such-package", "nor-this")})
    assert environment.environment(TargetConfig(model="m"))["versions"]["vllm"] is None


def test_the_load_is_three_numbers() -> None:
    assert len(environment.load_average()) == 3
