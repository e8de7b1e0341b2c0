"""An exported block draft has the tensors and the settings that vLLM and speculators read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from paceline.training.block import DSpark
from paceline.training.corpus import Batch, collate
from paceline.training.export_block import export
from paceline.training.objective import Vocabulary
from paceline.training.target import Target
from tests.unit.training.test_block import IDS, MASK, make
from tests.unit.training.tiny_states import LAYERS, tiny_states, tiny_target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def batch(target: Target) -> Batch:
    return collate(tiny_states(target, 3))


@pytest.mark.parametrize("kind", ["dflash", "dspark, 2 layers"])
def test_the_folder(kind: str, target: Target, batch: Batch, tmp_path: Path) -> None:
    model = make(kind, target)
    export(model, Vocabulary(IDS, target.head), target, LAYERS, 5, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    assert not any("aux_scale" in name or "embed" in name for name in tensors)
    assert torch.equal(torch.arange(len(IDS)) + tensors["d2t"], IDS)
    # What a reader makes of the raw states is what was trained on the scaled ones.
    read = torch.nn.functional.linear(batch.aux, tensors["fc.weight"].float())
    with torch.no_grad():
        trained = model.fc(batch.aux * model.aux_scale)
    torch.testing.assert_close(read, trained, rtol=0.02, atol=0.02 * float(trained.abs().max()))
    assert config["draft_vocab_size"] == len(IDS)
    if isinstance(model, DSpark):
        assert config["architectures"] == ["Qwen3DSparkModel"]
        assert (config["block_size"], config["markov_rank"]) == (5, 4)
        where = config
    else:
        assert config["architectures"] == ["DFlashDraftModel"]
        assert config["block_size"] == 6
        where = config["dflash_config"]
    assert where["mask_token_id"] == MASK
    assert where["target_layer_ids"] == [layer - 1 for layer in LAYERS]
