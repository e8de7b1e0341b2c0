"""A checkpoint by its headers, and what a drafter borrows of the target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from paceline.drafter.checkpoint import Checkpoint, names_problem
from paceline.drafter.target_parts import load_target_parts, target_names
from paceline.errors import ModelError
from tests.unit.drafter import checkpoints
from tests.unit.drafter.checkpoints import H, L, V


def folder(path: Path, **files: dict[str, torch.Tensor]) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    for name, tensors in files.items():
        save_file(tensors, path / f"{name}.safetensors")
    return path


def index(path: Path, weight_map: dict[str, str]) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_headers_tell_shape_and_dtype_without_a_tensor_read(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", model={"b": torch.zeros(2, 3).half(), "a": torch.arange(4)})
    headers = Checkpoint(path).headers
    assert {name: (header.shape, header.dtype) for name, header in headers.items()} == {
        "a": ((4,), "I64"),
        "b": ((2, 3), "F16"),
    }


def test_tensors_are_read_when_asked_for_in_the_wanted_dtype(tmp_path: Path) -> None:
    ids, values = torch.arange(4), torch.randn(2, 3)
    path = folder(tmp_path / "m", model={"ids": ids, "values": values})
    tensors = Checkpoint(path).tensors(dtype=torch.bfloat16)
    assert set(tensors) == {"ids", "values"} and "other" not in tensors
    assert torch.equal(tensors["values"], values.bfloat16())
    assert torch.equal(tensors["ids"], ids) and tensors["ids"].dtype == torch.int64
    assert torch.equal(Checkpoint(path).tensors()["values"], values)
    (path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        tensors["values"]


def test_an_index_says_which_shard_holds_what(tmp_path: Path) -> None:
    one, two = torch.ones(1), torch.full((2,), 2.0)
    path = folder(tmp_path / "m", s1={"a": one, "unlisted": one + 1}, s2={"b": two}, s3={"a": two})
    index(path, {"a": "s1.safetensors", "b": "s2.safetensors"})
    tensors = Checkpoint(path).tensors()
    assert set(tensors) == {"a", "b"}
    assert torch.equal(tensors["a"], one) and torch.equal(tensors["b"], two)
    index(path, {"a": "s1.safetensors", "gone": "s2.safetensors"})
    with pytest.raises(ModelError, match=r"lacks the tensor gone, as model.safetensors.index.json"):
        Checkpoint(path)


def test_the_same_tensor_twice_is_refused_but_beside_the_usual_file(tmp_path: Path) -> None:
    one = torch.ones(1)
    path = folder(tmp_path / "m", a={"x": one}, b={"x": one})
    with pytest.raises(ModelError, match=r"tensor x in a\.safetensors and in b\.safetensors"):
        Checkpoint(path)
    path = folder(tmp_path / "n", consolidated={"x": one, "y": one + 1}, model={"x": 2 * one})
    assert torch.equal(Checkpoint(path).tensors()["x"], 2 * one)


def test_pickles_are_refused_in_a_sentence(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    (path / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(ModelError, match=r"holds pytorch_model\.bin .* convert them to safetens"):
        Checkpoint(path)
    path = folder(tmp_path / "n", model={"fc.weight": torch.ones(1)})
    (path / "mask_embedding.pt").write_bytes(b"anything")
    with pytest.raises(ModelError, match=r"mask_embedding\.pt is a pickle, .* save its tensor as"):
        Checkpoint(path)
    save_file({"mask_embedding": torch.ones(1)}, path / "mask.safetensors")
    assert "mask_embedding" in Checkpoint(path).headers


def test_a_cut_off_file_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", model={"a": torch.ones(8)})
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ModelError, match="bytes where its header says"):
        Checkpoint(path)


def test_at_most_ten_names_are_listed() -> None:
    assert names_problem(["a", "b"], ["a"], ["b"]) == ""
    assert names_problem(["a"], ["b"]) == (
        "lacks the tensor b and has the tensor a, which it should not have"
    )
    many = [f"t{number:02}" for number in range(12)]
    assert names_problem([], many) == f"lacks the tensors {', '.join(many[:10])} and 2 more"


@pytest.mark.parametrize("prefix", ["model.", "model.language_model.", "language_model.model."])
@pytest.mark.parametrize("head", ["lm_head.weight", "language_model.lm_head.weight", ""])
def test_the_borrowed_parts_are_found_by_name(tmp_path: Path, prefix: str, head: str) -> None:
    path = checkpoints.target(tmp_path / "t", prefix=prefix, head=head)
    parts = load_target_parts(Checkpoint(path), "cpu", torch.float32)
    assert (parts.num_layers, parts.hidden_size, parts.vocab_size) == (L, H, V)
    assert parts.embedding.shape == parts.lm_head.shape == (V, H) and parts.norm.shape == (H,)
    assert parts.rms_norm_eps == 1e-6 and parts.embedding.dtype == torch.float32
    assert (parts.lm_head is parts.embedding) == (head == ""), "tied weights are read once"


def test_sizes_of_a_multimodal_target_stand_one_level_down(tmp_path: Path) -> None:
    path = checkpoints.target(tmp_path / "t", prefix="model.language_model.")
    file = path / "config.json"
    file.write_text(json.dumps({"model_type": "vl", "text_config": json.loads(file.read_text())}))
    assert load_target_parts(Checkpoint(path), "cpu", torch.bfloat16).num_layers == L


def test_a_tied_target_s_own_head_is_not_read(tmp_path: Path) -> None:
    path = checkpoints.change(checkpoints.target(tmp_path / "t"), tie_word_embeddings=True)
    assert target_names(Checkpoint(path)).lm_head == "model.embed_tokens.weight"


def test_a_target_without_the_parts_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "gpt", model={"transformer.wte.weight": torch.zeros(V, H)})
    with pytest.raises(ModelError, match="has no embedding by a known name"):
        target_names(Checkpoint(path))
    path = checkpoints.change(
        checkpoints.target(tmp_path / "t", head=""), tie_word_embeddings=False
    )
    with pytest.raises(ModelError, match="has no head, and its config says"):
        target_names(Checkpoint(path))
    path = checkpoints.change(checkpoints.target(tmp_path / "u"), hidden_size=H + 1)
    with pytest.raises(ModelError, match=rf"shape \[{V}, {H}\], but its config says"):
        target_names(Checkpoint(path))


def test_a_quantized_head_is_refused(tmp_path: Path) -> None:
    names = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    tensors = {name: torch.zeros(V, H) for name in names} | {"model.norm.weight": torch.zeros(H)}
    tensors["lm_head.weight"] = torch.zeros(V, H, dtype=torch.int8)
    path = checkpoints.change(folder(tmp_path / "q", model=tensors), hidden_size=H)
    with pytest.raises(ModelError, match=r"lm_head\.weight is quantized \(I8\)"):
        target_names(Checkpoint(path))
