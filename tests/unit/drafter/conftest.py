"""A tiny model on disk, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tiny import make_tiny_llama


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")
