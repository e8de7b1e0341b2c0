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


def test_drafts_start_from_a_target_that_is_a_little_more_than_a_llama(tmp_path: Path) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from paceline.training.autoregressive import Eagle3, Mtp
    from paceline.training.corpus import collate
    from paceline.training.states import States

    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
    )
    Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    target = Target(tmp_path)
    assert "self_attn.q_norm.weight" in target.layer(1)
    tokens = torch.arange(20) % 7
    states = States(tokens, 3, True, torch.randn(20, 3 * 32), torch.randn(20, 32))
    eagle3 = Eagle3(target.shape, target.embedding, 3, 2)
    mtp = Mtp(target.shape, target.embedding, target.norm)
    for draft, layer in ((eagle3, eagle3.layers[1]), (mtp, mtp.layers[0])):
        draft.start_from(target, [collate([states])])
        up = layer.get_parameter("mlp.up_proj.weight")
        assert up.equal(target.layer(1)["mlp.up_proj.weight"].float())
