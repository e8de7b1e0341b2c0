"""Trained heads in published layouts: a folder with ``config.json`` and ``model.safetensors``.

EAGLE-3 in SafeAILab's layout (``LlamaForCausalLMEagle3``), whose draft vocabulary is given by
``d2t``: target id minus draft id, by draft id. MTP as the tensors ``model.mtp_layers.0.*`` of MiMo,
without the target's half, which is assembled from the target's own checkpoint.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.training.autoregressive import Autoregressive, Eagle3, Mtp
from paceline.training.objective import Vocabulary
from paceline.training.target import Shape, Target


def export(
    model: Autoregressive,
    vocabulary: Vocabulary,
    target: Target,
    aux_layers: tuple[int, ...],
    folder: Path,
) -> None:
    """Writes the draft in bfloat16."""
    if isinstance(model, Eagle3):
        tensors, config = eagle3(model, vocabulary, target, aux_layers)
    else:
        assert isinstance(model, Mtp)
        tensors, config = mtp(model, target)
    write(folder, tensors, config)


def write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Writes a draft's folder; floating-point tensors as bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {
            name: (value.bfloat16() if value.is_floating_point() else value).contiguous()
            for name, value in tensors.items()
        },
        folder / "model.safetensors",
        {"format": "pt"},
    )
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def eagle3(
    model: Eagle3, vocabulary: Vocabulary, target: Target, aux_layers: tuple[int, ...]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        first, _, rest = name.partition(".")
        if first == "layers" and len(model.layers) == 1:
            name = "midlayer." + rest.partition(".")[2]
        tensors[name] = value
    ids = vocabulary.ids
    tensors["lm_head.weight"] = vocabulary.head
    tensors["d2t"] = ids - torch.arange(len(ids))
    known = torch.zeros(target.shape.vocab_size, dtype=torch.bool)
    known[ids] = True
    tensors["t2d"] = known
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": len(model.layers),
        "draft_vocab_size": len(ids),
        "fc_norm": True,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(aux_layers)},
        **llama_config(target, target.shape),
    }
    return tensors, config


def mtp(model: Mtp, target: Target) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        name = name.removeprefix("layers.0.")
        tensors[f"model.mtp_layers.0.{name}"] = value
    shape = target.shape
    sizes = {"q": shape.num_attention_heads, "k": shape.num_key_value_heads}
    for part in ("q", "k", "v"):
        size = sizes.get(part, shape.num_key_value_heads) * shape.head_dim
        # Qwen2's attention, which MiMo's is, has these.
        tensors[f"model.mtp_layers.0.self_attn.{part}_proj.bias"] = torch.zeros(size)
    config = {
        "architectures": ["MiMoForCausalLM"],
        "num_hidden_layers": target.num_layers,
        "num_nextn_predict_layers": 1,
        **llama_config(target, target.shape),
        "model_type": "qwen2",
    }
    return tensors, config


def llama_config(target: Target, shape: Shape) -> dict[str, Any]:
    """Returns what a draft of this shape for this target has in its ``config.json``."""
    return {
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_parameters": {"rope_theta": shape.rope_theta, "rope_type": "default"},
        "max_position_embeddings": target.config["max_position_embeddings"],
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": target.config.get("bos_token_id"),
        "eos_token_id": target.config.get("eos_token_id"),
        "dtype": "bfloat16",
    }
