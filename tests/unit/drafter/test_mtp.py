"""MTP blocks: where they stand, what is refused, and what the first position is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.drafter.model import Draft, DraftRequest
from paceline.drafter.mtp import MtpDrafter
from paceline.drafter.rows import RowBuffer
from paceline.errors import ModelError
from paceline.messages import RowNeeds
from tests.oracle.mtp_checkpoints import HIDDEN_SIZE, KINDS, VOCAB_SIZE, load_mtp, make_mtp

K = 3
Tensors = dict[str, torch.Tensor]
BLOCK = {
    "mimo": "model.mtp_layers.0.",
    "deepseek": "model.layers.2.",
    "glm": "model.layers.2.",
    "qwen3-next": "mtp.layers.0.",
    "qwen3.5": "mtp.layers.0.",
}


def drafts(drafter: MtpDrafter, length: int = 30, begin: int = 0, piece: int = 300) -> Draft:
    """Drafts behind a random text whose rows come ``piece`` at a time."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(VOCAB_SIZE, (400,), generator=generator).tolist()[:length]
    rows = torch.randn(400, HIDDEN_SIZE, generator=generator)
    buffer = RowBuffer(begin)
    request = DraftRequest(tokens=tokens, rows=buffer)
    drafter.open(request)
    for first in range(begin, length - 1, piece):
        buffer.insert(first, {"final": rows[first : min(first + piece, length - 1)]})
        while drafter.has_work(request):
            drafter.prepare(request)
    assert drafter.is_ready(request)
    [draft] = drafter.draft([request], K, VOCAB_SIZE)
    drafter.close(request)
    return draft


def assert_same(found: Draft, wanted: Draft) -> None:
    assert found.tokens == wanted.tokens and len(found.tokens) == K
    assert found.confidence == pytest.approx(wanted.confidence, abs=1e-4)


def rewrite(folder: Path, change: Callable[[Tensors], None]) -> Path:
    """Changes the checkpoint's tensors in place; returns ``folder``."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def reconfigure(folder: Path, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_in_pieces_drafts_as_at_once(tmp_path: Path, kind: str) -> None:
    torch.set_num_threads(1)
    drafter = load_mtp(make_mtp(tmp_path, kind))
    assert drafter.needs == RowNeeds(final=True)
    assert (drafter.hidden_size, drafter.vocab_size) == (HIDDEN_SIZE, VOCAB_SIZE)
    drafter.warm_up()
    wanted = drafts(drafter, 400)
    assert_same(drafts(drafter, 400, piece=90), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_alone_in_its_folder_drafts_as_in_the_targets(tmp_path: Path, kind: str) -> None:
    whole = make_mtp(tmp_path / "whole", kind)
    alone = make_mtp(tmp_path / "alone", kind, with_target=False)
    assert "lm_head.weight" not in load_file(alone / "model.safetensors")
    assert_same(drafts(load_mtp(alone, whole)), drafts(load_mtp(whole)))


def test_biases_of_zero_may_be_left_out(tmp_path: Path) -> None:
    """As in the checkpoint of a Llama with an MTP block."""

    def zeroed(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("_proj.bias")]:
            tensors[name].zero_()

    def left_out(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("_proj.bias")]:
            del tensors[name]

    whole = rewrite(make_mtp(tmp_path / "whole", "mimo"), zeroed)
    less = rewrite(make_mtp(tmp_path / "less", "mimo"), left_out)
    assert_same(drafts(load_mtp(less)), drafts(load_mtp(whole)))


@pytest.mark.parametrize(("kind", "is_blank"), [("mimo", True), ("qwen3.5", False)])
def test_the_token_behind_position_0_is_not_embedded(
    tmp_path: Path, kind: str, is_blank: bool
) -> None:
    drafter = load_mtp(make_mtp(tmp_path, kind))
    confidences = []
    for token in (3, 4):
        buffer = RowBuffer()
        buffer.insert(0, {"final": torch.ones(1, HIDDEN_SIZE)})
        request = DraftRequest(tokens=[7, token], rows=buffer)
        drafter.open(request)
        [draft] = drafter.draft([request], 1, VOCAB_SIZE)
        confidences.append(draft.confidence)
    assert (confidences[0] == confidences[1]) is is_blank


def test_only_the_first_of_several_blocks_is_read(tmp_path: Path) -> None:
    folder = make_mtp(tmp_path, "mimo")
    wanted = drafts(load_mtp(folder))

    def add(tensors: Tensors) -> None:
        for name in [name for name in tensors if "mtp_layers.0." in name]:
            tensors[name.replace("layers.0.", "layers.1.")] = torch.randn_like(tensors[name])

    assert_same(drafts(load_mtp(rewrite(folder, add))), wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("added", "says"),
    [
        ("mlp.experts.0.gate_proj.weight", "a mixture of experts"),
        ("self_attn.kv_a_proj_with_mqa.weight", "multi-head latent attention"),
    ],
)
def test_experts_and_latent_attention_are_refused(
    tmp_path: Path, kind: str, added: str, says: str
) -> None:
    def add(tensors: Tensors) -> None:
        tensors[BLOCK[kind] + added] = torch.ones(2, 2)

    folder = make_mtp(tmp_path, kind)
    family = json.loads((folder / "config.json").read_text())["model_type"]
    with pytest.raises(ModelError, match=f"family {family} .* has {says}.* not supported"):
        load_mtp(rewrite(folder, add))


def test_quantized_weights_are_refused(tmp_path: Path) -> None:
    def quantize(tensors: Tensors) -> None:
        name = "model.mtp_layers.0.input_proj.weight"
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)

    folder = rewrite(make_mtp(tmp_path, "mimo"), quantize)
    with pytest.raises(ModelError, match=r"quantized weights \(.*input_proj.weight is F8_E4M3\)"):
        load_mtp(folder)


def test_a_family_that_is_wired_otherwise_is_refused(tmp_path: Path) -> None:
    folder = reconfigure(make_mtp(tmp_path, "qwen3-next"), model_type="exaone_moe")
    with pytest.raises(ModelError, match="family exaone_moe has an MTP block with the names of"):
        load_mtp(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_missing_and_unknown_tensors_are_named(tmp_path: Path, kind: str) -> None:
    def change(tensors: Tensors) -> None:
        del tensors[f"{BLOCK[kind]}self_attn.o_proj.weight"]
        tensors[f"{BLOCK[kind]}attn_layer_scale"] = torch.ones(1)

    folder = rewrite(make_mtp(tmp_path, kind), change)
    with pytest.raises(ModelError) as caught:
        load_mtp(folder)
    prefix = BLOCK[kind]
    assert f"lacks the tensor {prefix}self_attn.o_proj.weight" in str(caught.value)
    assert f"has the tensor {prefix}attn_layer_scale" in str(caught.value)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    folder = reconfigure(make_mtp(tmp_path, "glm"), intermediate_size=96)
    with pytest.raises(ModelError, match=r"mlp.* has the shape .*128.*by the config it is .*96"):
        load_mtp(folder)


def test_a_block_of_another_target_is_refused(tmp_path: Path) -> None:
    target = make_mtp(tmp_path / "target", "mimo")
    block = reconfigure(make_mtp(tmp_path / "block", "mimo", with_target=False), hidden_size=32)
    with pytest.raises(ModelError, match=r"has hidden size 32, but the target's is 64"):
        load_mtp(block, target)


def test_a_norm_that_cannot_be_undone_is_refused(tmp_path: Path) -> None:
    def blank(tensors: Tensors) -> None:
        tensors["model.norm.weight"][9] = 0.0

    folder = rewrite(make_mtp(tmp_path, "mimo"), blank)
    with pytest.raises(ModelError, match="the norm has weights of 0"):
        load_mtp(folder)
