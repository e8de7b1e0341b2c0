"""Which layers a draft takes, held against Hugging Face's hidden states; and their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.drafter.checkpoint import Checkpoint
from paceline.drafter.draft_kind import kind_of
from paceline.drafter.row_needs import aux_layers, row_bytes, row_needs
from paceline.errors import ModelError
from tests.unit.drafter import checkpoints
from tests.unit.drafter.checkpoints import LAYOUTS, H, L

BEFORE = [("eagle3", "safeailab"), ("eagle3", "speculators"), ("dflash", "speculators")]
BEFORE += [("dspark", "speculators")]
AFTER = [("dflash", "z-lab"), ("dspark", "deepspec")]


@pytest.fixture(scope="module")
def states() -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """A Llama's ``hidden_states``, and what went into and came out of each of its layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=L,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).eval()
    entering: list[torch.Tensor] = []
    leaving: list[torch.Tensor] = []
    for decoder in model.model.layers:
        decoder.register_forward_pre_hook(lambda _, inputs: entering.append(inputs[0]))
        decoder.register_forward_hook(lambda _, inputs, output: leaving.append(output))
    with torch.no_grad():
        output = model(torch.arange(5)[None], output_hidden_states=True, use_cache=False)
    return list(output.hidden_states), entering, leaving


def layers_of(folder: Path, method: str, ids: list[int]) -> list[int]:
    """What a draft takes whose config names ``ids``, in the words of its layout."""
    configs: dict[str, dict[str, Any]] = {
        "eagle3": {"eagle_aux_hidden_state_layer_ids": ids},
        "dflash": {"dflash_config": {"target_layer_ids": ids}, "aux_hidden_state_layer_ids": ids},
        "dspark": {"target_layer_ids": ids, "aux_hidden_state_layer_ids": ids},
    }
    draft = Checkpoint(checkpoints.change(folder, **configs[method]))
    return aux_layers(kind_of(draft, method), draft, L)


@pytest.fixture
def drafts(tmp_path: Path) -> Iterator[dict[tuple[str, str], Path]]:
    keys = [*BEFORE, *AFTER]
    yield {key: LAYOUTS[key](tmp_path / "-".join(key)) for key in keys}


@pytest.mark.parametrize("number", range(L))
def test_ids_of_eagle_and_speculators_name_the_layer_that_is_entered(
    states: tuple[list[torch.Tensor], ...], drafts: dict[tuple[str, str], Path], number: int
) -> None:
    hidden_states, entering, _ = states
    for method, layout in BEFORE:
        (layer,) = layers_of(drafts[method, layout], method, [number])
        assert torch.equal(hidden_states[layer], entering[number]), f"{method} in {layout}"


@pytest.mark.parametrize("number", range(L - 1))
def test_ids_of_z_lab_and_deepspec_name_the_layer_that_is_left(
    states: tuple[list[torch.Tensor], ...], drafts: dict[tuple[str, str], Path], number: int
) -> None:
    hidden_states, _, leaving = states
    for method, layout in AFTER:
        (layer,) = layers_of(drafts[method, layout], method, [number])
        assert torch.equal(hidden_states[layer], leaving[number]), f"{method} in {layout}"


def test_the_last_layer_s_output_is_taken_before_the_norm(
    states: tuple[list[torch.Tensor], ...], drafts: dict[tuple[str, str], Path]
) -> None:
    hidden_states, _, leaving = states
    # Where Hugging Face has the state behind the norm: this number is not its index.
    assert not torch.equal(hidden_states[L], leaving[L - 1])
    for method, layout in AFTER:
        assert layers_of(drafts[method, layout], method, [L - 1]) == [L]
    for method, layout in BEFORE:
        assert layers_of(drafts[method, layout], method, [L]) == [L]


def test_layers_beyond_either_end_are_refused(drafts: dict[tuple[str, str], Path]) -> None:
    for (method, layout), beyond in [(key, L + 1) for key in BEFORE] + [(key, L) for key in AFTER]:
        with pytest.raises(ModelError, match=f"has {L} layers, so that {L + 1} cannot be had"):
            layers_of(drafts[method, layout], method, [1, beyond])
    with pytest.raises(ModelError, match=r"so that -1 cannot be had"):
        layers_of(drafts["eagle3", "safeailab"], "eagle3", [-1, 1])


def test_layers_lie_in_a_row_in_their_own_order(drafts: dict[tuple[str, str], Path]) -> None:
    path = drafts["eagle3", "safeailab"]
    assert layers_of(path, "eagle3", [5, 1, 3]) == [1, 3, 5]
    with pytest.raises(ModelError, match=r"takes a layer twice \(1, 1, 3\)"):
        layers_of(path, "eagle3", [1, 1, 3])


def test_only_eagle_has_layers_where_its_config_names_none(
    drafts: dict[tuple[str, str], Path],
) -> None:
    draft = Checkpoint(drafts["eagle3", "safeailab"])
    assert aux_layers(kind_of(draft, "eagle3"), draft, 32) == [2, 16, 29]
    for method, layout in AFTER:
        with pytest.raises(ModelError, match="does not say which of the target's layers"):
            layers_of(drafts[method, layout], method, [])


def test_eagle_s_configs_may_name_them_one_level_down(tmp_path: Path) -> None:
    path = checkpoints.eagle3(tmp_path / "d")
    checkpoints.change(path, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 4, 5]})
    draft = Checkpoint(path)
    assert aux_layers(kind_of(draft, "eagle3"), draft, L) == [1, 4, 5]


def test_bytes_of_a_token_s_rows(tmp_path: Path) -> None:
    target = Checkpoint(checkpoints.target(tmp_path / "t")).config
    draft = Checkpoint(checkpoints.block(tmp_path / "d", "dflash", "z-lab"))
    needs = row_needs(kind_of(draft, "dflash"), draft, target)
    assert needs.aux_layers == [1, 3, 5] and not needs.final
    assert row_bytes(needs, target, "bfloat16") == 3 * H * 2
    draft = Checkpoint(checkpoints.mtp(tmp_path / "m", "mimo"))
    needs = row_needs(kind_of(draft, "mtp"), draft, target)
    assert needs.final and row_bytes(needs, target, "float32") == H * 4


def test_gemma_mirrors_the_last_layer_of_each_kind_that_has_keys_of_its_own(
    tmp_path: Path,
) -> None:
    target = Checkpoint(checkpoints.gemma_target(tmp_path / "t")).config
    draft = Checkpoint(checkpoints.gemma4(tmp_path / "d"))
    needs = row_needs(kind_of(draft, "gemma4_mtp"), draft, target)
    assert needs.kv_layers == [2, 3] and needs.final
    sliding, full = 2 * 2 * 16, 2 * 2 * 32  # keys and values of two heads
    assert row_bytes(needs, target, "bfloat16") == (H + sliding + full) * 2
    plain = Checkpoint(checkpoints.target(tmp_path / "p")).config
    with pytest.raises(ModelError, match="reads keys of sliding_attention layers, of which"):
        row_needs(kind_of(draft, "gemma4_mtp"), draft, plain)
