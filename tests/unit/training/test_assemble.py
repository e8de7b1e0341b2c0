"""A Llama and an MTP block become one model, whose first part is the Llama unchanged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from paceline import models
from paceline.errors import ModelError
from paceline.training.assemble import BLOCK, assemble, assembled, check_fit
from tests.tiny import make_tiny_llama


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    # A Qwen2's heads have the hidden size together: 2 of 32.
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama", num_heads=2)


@pytest.fixture
def block(target: Path, tmp_path: Path) -> Path:
    """A block whose layer is that of the target's, without biases."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "block"
    folder.mkdir()
    prefix = "model.layers.1."
    tensors = {
        BLOCK + name.removeprefix(prefix): tensor
        for name, tensor in load_file(target / "model.safetensors").items()
        if name.startswith(prefix)
    }
    tensors["other"] = tensors[BLOCK + "input_layernorm.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    shutil.copy(target / "config.json", folder)
    return folder


def test_the_whole_holds_both_parts(target: Path, block: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    whole = tmp_path / "whole"
    assemble(target, block, whole)
    models.check_folder(whole)
    index = json.loads((whole / "model.safetensors.index.json").read_bytes())["weight_map"]
    tensors = {
        name: tensor
        for file in set(index.values())
        for name, tensor in load_file(whole / file).items()
    }
    assert set(tensors) == set(index), "each tensor is where the index says"
    original = load_file(target / "model.safetensors")
    assert all(tensors[name].equal(tensor) for name, tensor in original.items())
    assert "other" not in index
    layer = f"{BLOCK}mlp.up_proj.weight"
    assert tensors[layer].equal(original["model.layers.1.mlp.up_proj.weight"])
    for prefix in ("model.layers.0.", "model.layers.1.", BLOCK):
        for name, size in (("q", 64), ("k", 64), ("v", 64)):
            bias = tensors[f"{prefix}self_attn.{name}_proj.bias"]
            assert bias.shape == (size,) and not bias.any()


def test_the_llama_s_half_computes_what_the_llama_does(
    target: Path, block: Path, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, Qwen2ForCausalLM

    whole = tmp_path / "whole"
    assemble(target, block, whole)
    ids = torch.tensor([[1, 2, 3, 200, 7]])
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float64)(ids).logits
        model, report = Qwen2ForCausalLM.from_pretrained(
            whole, dtype=torch.float64, output_loading_info=True
        )
        torch.testing.assert_close(model(ids).logits, expected)
    assert not report["missing_keys"]


def test_the_config_is_mimo_s_for_vllm(target: Path, block: Path, tmp_path: Path) -> None:
    assemble(target, block, tmp_path / "whole")
    config = models.read_config(tmp_path / "whole")
    assert config["architectures"] == ["MiMoForCausalLM"]
    assert config["num_nextn_predict_layers"] == 1
    assert config["num_hidden_layers"] == 2
    assert "attention_bias" not in config


def test_it_is_made_once_and_whole(
    target: Path, block: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    made = assembled(target, block)
    models.check_folder(made)
    time = (made / "config.json").stat().st_mtime_ns
    assert assembled(target, block) == made
    assert (made / "config.json").stat().st_mtime_ns == time
    assert [path.name for path in made.parent.iterdir()] == [made.name], "no scratch is left"
    weights = block / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert assembled(target, block) != made


@pytest.mark.parametrize(
    ("where", "changes", "sentence"),
    [
        ("target", {"model_type": "qwen2"}, "is no Llama without biases"),
        ("target", {"mlp_bias": True}, "is no Llama without biases"),
        ("target", {"head_dim": 64}, "an MTP block does not fit"),
        ("block", {"hidden_size": 32}, "has hidden_size 32 and the target 64"),
        ("block", {"intermediate_size": 1}, "has intermediate_size 1 and the target 128"),
    ],
)
def test_parts_that_do_not_fit(
    target: Path,
    block: Path,
    tmp_path: Path,
    where: str,
    changes: dict[str, object],
    sentence: str,
) -> None:
    folder = tmp_path / "target"
    shutil.copytree(target, folder)
    check_fit(folder, block)
    config = {"target": folder, "block": block}[where] / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    with pytest.raises(ModelError, match=sentence):
        check_fit(folder, block)


def test_a_folder_without_a_block(target: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no tensors model\.mtp_layers"):
        assemble(target, target, tmp_path / "whole")
