"""Small MTP blocks with random weights in the published layouts, with what they share of a target.

The targets have an embedding, a head and a last norm, and no layers: nothing else is read of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from paceline.drafter.checkpoint import Checkpoint
from paceline.drafter.draft_kind import kind_of
from paceline.drafter.mtp import MtpDrafter
from paceline.drafter.target_parts import load_target_parts

VOCAB_SIZE = 256
HIDDEN_SIZE = 64
MAX_LENGTH = 512
_DEEPSEEK = {
    "token": "enorm",
    "hidden": "hnorm",
    "projection": "eh_proj",
    "norm": "shared_head.norm",
    "prefix": "model.layers.2.",
}
_QWEN = {
    "token": "pre_fc_norm_embedding",
    "hidden": "pre_fc_norm_hidden",
    "projection": "fc",
    "norm": "norm",
    "prefix": "mtp.",
    "layer": "layers.0.",
    "gated": True,
}
_EXPERTS = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    # The block's layer stands before the first one with experts.
    "first_k_dense_replace": 8,
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}

NAMES: dict[str, dict[str, Any]] = {
    "mimo": {
        "token": "token_layernorm",
        "hidden": "hidden_layernorm",
        "projection": "input_proj",
        "norm": "final_layernorm",
        "prefix": "model.mtp_layers.0.",
        "qkv_bias": True,
    },
    "deepseek": _DEEPSEEK,
    "glm": {**_DEEPSEEK, "qkv_bias": True, "qk_norm": True},
    "qwen3-next": _QWEN,
    "qwen3.5": _QWEN,
}
"""How each one is written down."""

CONFIGS: dict[str, dict[str, Any]] = {
    "mimo": {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "num_nextn_predict_layers": 1,
    },
    "deepseek": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_nextn_predict_layers": 1,
        # None of multi-head latent attention's sizes: plain attention.
        "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0,
        "v_head_dim": 0,
        "kv_lora_rank": 0,
        "q_lora_rank": None,
        **_EXPERTS,
    },
    "glm": {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "num_nextn_predict_layers": 1,
        "attention_bias": True,
        "use_qk_norm": True,
        "partial_rotary_factor": 0.5,
        **_EXPERTS,
    },
    "qwen3-next": {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_nextn_predict_layers": 1,
        "num_experts": 4,
        "mlp_only_layers": [0],
        "partial_rotary_factor": 0.25,
    },
    "qwen3.5": {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": 1,
        "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.25},
        "layer_types": ["linear_attention", "full_attention"],
    },
}
KINDS = list(CONFIGS)


def config_of(kind: str) -> dict[str, Any]:
    return {
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": MAX_LENGTH,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_parameters": _ROPE,
        "tie_word_embeddings": False,
        "dtype": "float32",
        **CONFIGS[kind],
    }


def make_mtp(folder: Path, kind: str, *, with_target: bool = True) -> Path:
    """Saves the float32 checkpoint ``kind`` of ``KINDS`` in ``folder``; returns it.

    Args:
        with_target: Whether the target's tensors are there, too; else the block alone.
    """
    torch.manual_seed(KINDS.index(kind))
    tensors = _shared(gated=bool(NAMES[kind].get("gated")))
    block = block_of(kind)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({**tensors, **block} if with_target else block, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_of(kind), indent=2))
    return folder


def block_of(kind: str) -> dict[str, torch.Tensor]:
    names, config = NAMES[kind], config_of(kind)
    prefix, gated = names["prefix"], bool(names.get("gated"))
    layer = prefix + names.get("layer", "")
    size, inner, head = HIDDEN_SIZE, config["intermediate_size"], config["head_dim"]
    width, kv_width = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    tensors: dict[str, torch.Tensor] = {}

    def weight(name: str, *shape: int) -> None:
        tensors[name] = torch.randn(shape) * shape[-1] ** -0.5

    def norm(name: str, length: int) -> None:
        tensors[f"{name}.weight"] = _norm(length, gated)

    for part in ("token", "hidden", "norm"):
        norm(prefix + names[part], size)
    weight(f"{prefix}{names['projection']}.weight", size, 2 * size)
    for part, length in (("q", width * (2 if gated else 1)), ("k", kv_width), ("v", kv_width)):
        weight(f"{layer}self_attn.{part}_proj.weight", length, size)
        if names.get("qkv_bias"):
            weight(f"{layer}self_attn.{part}_proj.bias", length)
    weight(f"{layer}self_attn.o_proj.weight", size, width)
    if gated or names.get("qk_norm"):
        norm(f"{layer}self_attn.q_norm", head)
        norm(f"{layer}self_attn.k_norm", head)
    weight(f"{layer}mlp.gate_proj.weight", inner, size)
    weight(f"{layer}mlp.up_proj.weight", inner, size)
    weight(f"{layer}mlp.down_proj.weight", size, inner)
    norm(f"{layer}input_layernorm", size)
    norm(f"{layer}post_attention_layernorm", size)
    if names["projection"] == "eh_proj":
        # Not the target's, whose are used nevertheless.
        weight(f"{prefix}embed_tokens.weight", VOCAB_SIZE, size)
        weight(f"{prefix}shared_head.head.weight", VOCAB_SIZE, size)
    return tensors


def _shared(*, gated: bool) -> dict[str, torch.Tensor]:
    return {
        "model.embed_tokens.weight": torch.randn(VOCAB_SIZE, HIDDEN_SIZE),
        "model.norm.weight": _norm(HIDDEN_SIZE, gated),
        # Logits far enough apart that no choice is a tie.
        "lm_head.weight": 0.5 * torch.randn(VOCAB_SIZE, HIDDEN_SIZE),
    }


def _norm(length: int, gated: bool) -> torch.Tensor:
    return (0.0 if gated else 1.0) + 0.3 * torch.rand(length)


def load_mtp(folder: Path, target: Path | None = None) -> MtpDrafter:
    """Returns the drafter with the block in ``folder``, in float32.

    Args:
        target: Default: the same folder.
    """
    device, dtype = torch.device("cpu"), torch.float32
    draft = Checkpoint(folder)
    parts = load_target_parts(Checkpoint(target or folder), device, dtype)
    return MtpDrafter(kind_of(draft, "mtp"), draft, parts, device, dtype)
