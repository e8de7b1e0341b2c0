"""Installs the interpreter's backend in a folder, for a child process to find on PYTHONPATH."""

from __future__ import annotations

import shutil
from pathlib import Path

NAME = "paceline_triton_cpu"


def install(folder: Path) -> Path:
    """Writes the package ``triton_cpu`` and its entry points to ``folder``; returns it."""
    shutil.copytree(Path(__file__).parent / "triton_cpu", folder / NAME)
    info = folder / f"{NAME}-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        f"[triton.backends]\ncpu = {NAME}\n"
        f"[vllm.general_plugins]\npaceline_interpreter = {NAME}.plugin:apply\n"
    )
    return folder
