"""Tiny checkpoints in the published layouts, of a target and of drafts for it; zeros throughout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from paceline.drafter.checkpoint import Checkpoint
from paceline.drafter.draft_kind import kind_of
from paceline.drafter.draft_pair import Pair

H, V, DRAFT_V, L, F = 64, 200, 80, 6, 96
"""Hidden size, vocabulary, draft vocabulary, the target's layers, the MLP's inner size."""

SIZES: dict[str, Any] = {
    "hidden_size": H,
    "intermediate_size": F,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": V,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
}

SHAPES: dict[str, tuple[int, ...]] = {
    "self_attn.q_proj.weight": (64, H),
    "self_attn.k_proj.weight": (32, H),
    "self_attn.v_proj.weight": (32, H),
    "self_attn.o_proj.weight": (H, 64),
    "mlp.gate_proj.weight": (F, H),
    "mlp.up_proj.weight": (F, H),
    "mlp.down_proj.weight": (H, F),
    "input_layernorm.weight": (H,),
    "post_attention_layernorm.weight": (H,),
}
"""Of a decoder layer."""

QK_NORMS: dict[str, tuple[int, ...]] = {
    "self_attn.q_norm.weight": (16,),
    "self_attn.k_norm.weight": (16,),
}

Shapes = dict[str, tuple[int, ...]]


def write(
    folder: Path,
    config: Mapping[str, Any],
    shapes: Shapes,
    more: Mapping[str, torch.Tensor] | None = None,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    save_file({**tensors, **(more or {})}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def change(folder: Path, **values: Any) -> Path:
    """Changes the config of a checkpoint."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    return folder


def layer(prefix: str, shapes: Shapes = SHAPES) -> Shapes:
    return {f"{prefix}{name}": shape for name, shape in shapes.items()}


def target(folder: Path, *, prefix: str = "model.", head: str = "lm_head.weight") -> Path:
    shapes: Shapes = {f"{prefix}embed_tokens.weight": (V, H), f"{prefix}norm.weight": (H,)}
    if head:
        shapes[head] = (V, H)
    shapes |= layer(f"{prefix}layers.0.")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": L,
        "tie_word_embeddings": not head,
        **SIZES,
    }
    return write(folder, config, shapes)


def offsets() -> torch.Tensor:
    """``d2t`` of a draft whose token i is the target's token 2 i."""
    return torch.arange(DRAFT_V)


def eagle3(folder: Path, layout: str = "safeailab") -> Path:
    first = "midlayer." if layout == "safeailab" else "layers.0."
    shapes: Shapes = {"fc.weight": (H, 3 * H), "norm.weight": (H,), "lm_head.weight": (DRAFT_V, H)}
    shapes |= layer(first, {**SHAPES, "hidden_norm.weight": (H,)})
    for part, size in (("q", 64), ("k", 32), ("v", 32)):
        shapes[f"{first}self_attn.{part}_proj.weight"] = (size, 2 * H)
    sizes = {"num_hidden_layers": 1, "model_type": "llama", **SIZES}
    config: dict[str, Any] = {"architectures": ["LlamaForCausalLMEagle3"], **sizes}
    if layout == "speculators":
        config = speculators("eagle3", "Eagle3DraftModel", sizes)
        config["eagle_aux_hidden_state_layer_ids"] = [1, 3, 5]
    config["draft_vocab_size"] = DRAFT_V
    return write(folder, config, shapes, {"d2t": offsets(), "t2d": torch.zeros(V).bool()})


def speculators(method: str, architecture: str, sizes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "speculators_model_type": method,
        "speculators_config": {"verifier": {"name_or_path": "somebody/Target-1B"}},
        "transformer_layer_config": dict(sizes),
    }


def block(folder: Path, method: str, layout: str) -> Path:
    """DFlash and DSpark; of two layers, on three of the target's."""
    shapes: Shapes = {"fc.weight": (H, 3 * H), "hidden_norm.weight": (H,), "norm.weight": (H,)}
    for index in range(2):
        shapes |= layer(f"layers.{index}.", {**SHAPES, **QK_NORMS})
    ids = {"mask_token_id": 7, "target_layer_ids": [0, 2, 4]}
    sizes = {"num_hidden_layers": 2, "model_type": "qwen3", **SIZES}
    heads = {"markov_rank": 4, "markov_head_type": "vanilla", "enable_confidence_head": True}
    more: dict[str, torch.Tensor] = {}
    draft_vocab_size = V
    if layout == "speculators":
        draft_vocab_size = DRAFT_V
        more["d2t"] = offsets()
        shapes["lm_head.weight"] = (DRAFT_V, H)
        config = speculators(method, method, sizes)
        config |= {"aux_hidden_state_layer_ids": [1, 3, 5], "mask_token_id": 7}
        config["draft_vocab_size"] = DRAFT_V
    elif method == "dflash":
        config = {"architectures": ["DFlashDraftModel"], "dflash_config": ids, **sizes}
    else:
        config = {"architectures": ["Qwen3DSparkModel"], **ids, **sizes}
    if method == "dspark":
        config |= heads
        shapes["markov_head.markov_w1.weight"] = (V, 4)
        shapes["markov_head.markov_w2.weight"] = (draft_vocab_size, 4)
        shapes |= {"confidence_head.proj.weight": (1, H + 4), "confidence_head.proj.bias": (1,)}
    config["block_size"] = 8
    return write(folder, config, shapes, more)


def mtp(folder: Path, layout: str) -> Path:
    """The MTP block alone, as a draft's folder."""
    config = {"num_hidden_layers": L, "num_nextn_predict_layers": 1, **SIZES}
    own: Shapes
    if layout == "mimo":
        config |= {"architectures": ["MiMoForCausalLM"], "model_type": "mimo"}
        prefix = inner = "model.mtp_layers.0."
        own = {"token_layernorm": (H,), "hidden_layernorm": (H,), "final_layernorm": (H,)}
        own["input_proj"] = (H, 2 * H)
    elif layout == "qwen3-next":
        config |= {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next"}
        prefix, inner = "mtp.", "mtp.layers.0."
        own = {"pre_fc_norm_embedding": (H,), "pre_fc_norm_hidden": (H,), "norm": (H,)}
        own["fc"] = (H, 2 * H)
    else:
        family = "deepseek_v3" if layout == "deepseek-v3" else "glm4_moe"
        config |= {"architectures": ["DecoderForCausalLM"], "model_type": family}
        prefix = inner = f"model.layers.{L}."
        own = {"enorm": (H,), "hnorm": (H,), "eh_proj": (H, 2 * H), "shared_head.norm": (H,)}
    shapes = {f"{prefix}{name}.weight": shape for name, shape in own.items()}
    of_layer = dict(SHAPES)
    if layout == "deepseek-v3":  # latent attention: no keys and values of their own
        for part in "qkv":
            del of_layer[f"self_attn.{part}_proj.weight"]
        of_layer["self_attn.kv_a_proj_with_mqa.weight"] = (24, H)
    return write(folder, config, {**shapes, **layer(inner, of_layer)})


def gemma4(folder: Path, model_type: str = "gemma4_assistant") -> Path:
    small = 32
    shapes: Shapes = {
        "pre_projection.weight": (small, 2 * H),
        "post_projection.weight": (H, small),
        "model.embed_tokens.weight": (V, small),
        "model.norm.weight": (small,),
    }
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    for index in range(2):
        prefix = f"model.layers.{index}."
        shapes |= {
            f"{prefix}self_attn.q_proj.weight": (64, small),
            f"{prefix}self_attn.o_proj.weight": (small, 64),
            f"{prefix}self_attn.q_norm.weight": (16,),
            f"{prefix}mlp.gate_proj.weight": (F, small),
            f"{prefix}mlp.up_proj.weight": (F, small),
            f"{prefix}mlp.down_proj.weight": (small, F),
            f"{prefix}layer_scalar": (1,),
        }
        for norm in norms:
            name = f"{norm}_layernorm"
            shapes[f"{prefix}{name}.weight"] = (small,)
    text = {
        **SIZES,
        "hidden_size": small,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    config = {"model_type": model_type, "backbone_hidden_size": H, "text_config": text}
    return write(folder, config, shapes)


LAYOUTS = {
    ("eagle3", "safeailab"): lambda folder: eagle3(folder),
    ("eagle3", "speculators"): lambda folder: eagle3(folder, "speculators"),
    ("dflash", "z-lab"): lambda folder: block(folder, "dflash", "z-lab"),
    ("dflash", "speculators"): lambda folder: block(folder, "dflash", "speculators"),
    ("dspark", "deepspec"): lambda folder: block(folder, "dspark", "deepspec"),
    ("dspark", "speculators"): lambda folder: block(folder, "dspark", "speculators"),
    ("mtp", "mimo"): lambda folder: mtp(folder, "mimo"),
    ("mtp", "qwen3-next"): lambda folder: mtp(folder, "qwen3-next"),
    ("mtp", "deepseek-v3"): lambda folder: mtp(folder, "deepseek-v3"),
    ("mtp", "glm-4.5"): lambda folder: mtp(folder, "glm-4.5"),
    ("gemma4_mtp", "gemma4-assistant"): lambda folder: gemma4(folder),
}
"""What writes a draft of each method and layout."""


def gemma_target(folder: Path) -> Path:
    """A target whose last two layers read the keys of earlier ones."""
    kinds = ["sliding_attention", "full_attention"] * (L // 2)
    return change(target(folder), layer_types=kinds, num_kv_shared_layers=2, global_head_dim=32)


def pair(draft: Path, goal: Path, method: str, **changes: Any) -> Pair:
    checkpoint = Checkpoint(draft)
    values: dict[str, Any] = {
        "num_tokens": 4,
        "dtype": "bfloat16",
        "target_dtype": "bfloat16",
        "max_model_len": 256,
        "max_requests": 8,
        "device": "cpu",
    }
    return Pair(
        kind=kind_of(checkpoint, method),
        draft=checkpoint,
        target=Checkpoint(goal),
        **values | changes,
    )
