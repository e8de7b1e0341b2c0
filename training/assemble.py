"""A target with a multi-token-prediction block, made of a Llama and the block.

vLLM takes an MTP block from the checkpoint of the target. A Llama has none, but it is a Qwen2
whose q, k and v have no biases, and MiMo (vllm/model_executor/models/mimo.py) is a Qwen2 with MTP
blocks: the Llama's tensors, biases of zero, and the block make a MiMo that computes what the Llama
does.

Two traps. vLLM's MiMo gives its block the state *before* the last norm in the first step, and the
block's own output *behind* its ``final_layernorm`` in later ones. And position 0 has no embedding.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline import models
from paceline.errors import EnvironmentError_, ModelError

BLOCK = "model.mtp_layers.0."
"""Prefix of the block's tensors."""

_WEIGHTS = "model.safetensors"
"""Of the two parts. In the whole model no file may have this name: transformers would take it for
all of it."""
_TARGET_WEIGHTS = "model-00001-of-00002.safetensors"
_ADDED_WEIGHTS = "model-00002-of-00002.safetensors"
_COPIED = ("generation_config.json", "chat_template.jinja", "tokenizer.json")


def assembled(target: Path, block: Path) -> Path:
    """Returns the folder of the whole model in the model cache, after making it where it is not.

    Args:
        target: A Llama whose weights are one file.
        block: The folder of the MTP block: the shipped draft, or an export of a training.

    Raises:
        ModelError: the two do not fit.
        EnvironmentError_: the cache cannot be written.
    """
    check_fit(target, block)
    digest = hashlib.sha256((block / _WEIGHTS).read_bytes()).hexdigest()[:12]
    folder = models.cache_dir() / "assembled" / f"{target.name}-mtp-{digest}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all, as the models of the cache are.
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / "model"
            assemble(target, block, made)
            if not folder.is_dir():
                made.rename(folder)
    except OSError as error:
        raise EnvironmentError_(
            f"the model cache {folder.parent} cannot be written ({error.strerror or error}): free "
            "space there, or set PACELINE_CACHE to another folder"
        ) from error
    return folder


def assemble(target: Path, block: Path, folder: Path) -> None:
    """Writes the whole model to the new ``folder``; the target's weights are linked, not copied."""
    folder.mkdir(parents=True)
    weights = (target / _WEIGHTS).resolve()
    try:
        os.link(weights, folder / _TARGET_WEIGHTS)
    except OSError:
        # Another file system.
        shutil.copyfile(weights, folder / _TARGET_WEIGHTS)
    for name in (*_COPIED, "tokenizer_config.json"):
        if (target / name).is_file():
            shutil.copyfile(target / name, folder / name)
    config = models.read_config(target)
    added = _zero_biases(config) | _block_tensors(config, block)
    save_file(added, folder / _ADDED_WEIGHTS, metadata={"format": "pt"})
    (folder / _ADDED_WEIGHTS).chmod(0o644)  # it comes out readable by its owner only
    with safe_open(weights, "pt") as file:
        names = list(file.keys())
    index = dict.fromkeys(names, _TARGET_WEIGHTS) | dict.fromkeys(added, _ADDED_WEIGHTS)
    _write(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})
    _write(folder / "config.json", whole_config(config))


def whole_config(target: dict[str, Any]) -> dict[str, Any]:
    """Returns the whole model's config.json.

    The type is Qwen2, which is what transformers knows; vLLM goes by the architecture.
    """
    config = {key: value for key, value in target.items() if key not in ("attention_bias",)}
    return config | {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "num_nextn_predict_layers": 1,
    }


def check_fit(target: Path, block: Path) -> None:
    """Raises ``ModelError`` unless a whole model can be made of the two folders."""
    models.check_folder(target)
    models.check_folder(block)
    ours, theirs = models.read_config(target), models.read_config(block)
    if ours.get("model_type") != "llama" or ours.get("attention_bias") or ours.get("mlp_bias"):
        raise ModelError(f"{target} is no Llama without biases: an MTP block fits no other target")
    heads, size = int(ours["num_attention_heads"]), int(ours["hidden_size"])
    if int(ours.get("head_dim") or size // heads) * heads != size:
        raise ModelError(
            f"{target} has {heads} heads of {ours['head_dim']} beside a hidden size of {size}: a "
            "Qwen2's heads have the hidden size together, so an MTP block does not fit"
        )
    if not (target / _WEIGHTS).is_file():
        raise ModelError(f"{target} has its weights in several files: save them as one")
    for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if ours.get(key) != theirs.get(key):
            raise ModelError(
                f"the MTP block in {block} has {key} {theirs.get(key)} and the target "
                f"{ours.get(key)}: use a block that was trained for this target"
            )


def _block_tensors(config: dict[str, Any], block: Path) -> dict[str, Tensor]:
    tensors = {
        name: tensor
        for name, tensor in load_file(block / _WEIGHTS).items()
        if name.startswith(BLOCK)
    }
    if not tensors:
        raise ModelError(f"{block} holds no tensors {BLOCK}*: use the folder of an MTP block")
    for name, bias in _biases(config, BLOCK):
        tensors.setdefault(name, bias)
    return tensors


def _zero_biases(config: dict[str, Any]) -> dict[str, Tensor]:
    layers = range(int(config["num_hidden_layers"]))
    return {name: bias for i in layers for name, bias in _biases(config, f"model.layers.{i}.")}


def _biases(config: dict[str, Any], prefix: str) -> list[tuple[str, Tensor]]:
    heads, kv_heads = int(config["num_attention_heads"]), int(config["num_key_value_heads"])
    size = int(config.get("head_dim") or config["hidden_size"] // heads)
    sizes = {"q": heads * size, "k": kv_heads * size, "v": kv_heads * size}
    return [
        (f"{prefix}self_attn.{name}_proj.bias", torch.zeros(length, dtype=torch.bfloat16))
        for name, length in sizes.items()
    ]


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n")
