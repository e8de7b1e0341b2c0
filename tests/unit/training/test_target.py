"""Where a training's target is, and what of it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import ModelError
from paceline.training.target import Target, target_folder
from tests.tiny import make_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


def test_a_folder_is_used_where_it_is(model: Path) -> None:
    folder = target_folder(str(model), "float32")
    assert folder == model
    assert Target(folder).shape.vocab_size == 256


def test_a_target_of_the_hub_is_brought_here(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str, allow_patterns: list[str]) -> str:
        assert "*.safetensors" in allow_patterns
        if name != "org/there":
            raise OSError("404 not found.\nand a long page")
        return str(model)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert target_folder("org/there", "bfloat16") == model
    with pytest.raises(ModelError, match=r"the target org/no cannot be had .*\(404 not found\)"):
        target_folder("org/no", "bfloat16")
