"""Tiny models on disk, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import make_tiny_llama
from tests.unit.drafter import kinds


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


_KINDS: dict[str, Callable[[], Any]] = {
    "full": kinds.full,
    # Windows that are shorter than most paths of the tests.
    "sliding": lambda: kinds.sliding(4),
    "mixed": lambda: kinds.mixed(4),
    "learned": lambda: kinds.learned(kinds.MAX_LENGTH),
}


@pytest.fixture(scope="session", params=_KINDS)
def any_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each kind of attention, with ``kinds.MAX_LENGTH`` positions."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("kind") / str(request.param)
    _KINDS[request.param]().save_pretrained(folder)
    return folder
