"""What the unit tests share: Hypothesis settings, and folders for sockets."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: a test says what holds, not how fast a shared machine is.
settings.register_profile("unit", deadline=None, database=None)
settings.load_profile("unit")


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """pytest's own tmp_path can be longer than the 107 bytes that a socket's path may have."""
    folder = Path(tempfile.mkdtemp(prefix="pl-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def address(socket_folder: Path) -> str:
    """An address to bind that nobody else has."""
    return f"ipc://{socket_folder}/control"
