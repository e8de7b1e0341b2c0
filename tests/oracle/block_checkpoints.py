"""Small DFlash and DSpark drafts with random weights in the published layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from paceline.drafter.block import BlockDrafter
from paceline.drafter.checkpoint import MASK_EMBEDDING, Checkpoint
from paceline.drafter.dflash import DFlashDrafter
from paceline.drafter.dspark import DSparkDrafter
from paceline.drafter.target_parts import load_target_parts
from tests.oracle.eagle3_checkpoints import HIDDEN_SIZE, VOCAB_SIZE

DRAFT_VOCAB_SIZE, MASK_TOKEN, RANK, BLOCK_SIZE = 96, 250, 16, 6
AUX_LAYERS = (1, 4, 6)
"""The layers whose inputs they take."""

_SLIDING = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 12,
    "use_sliding_window": True,
    "max_window_layers": 0,
}
_WINDOWED = {**_SLIDING, "layer_types": ["sliding_attention", "sliding_attention"]}
_HEADS = {
    "markov_rank": RANK,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}

KINDS: dict[str, dict[str, Any]] = {
    "dflash-z-lab": {},
    "dflash-z-lab-own": {
        "draft_vocab_size": DRAFT_VOCAB_SIZE,
        "attention_bias": True,
        "own_embedding": True,
        "mask_embedding": True,
        "dflash_config": {"attention_value_scale": 0.7},
        "logit_scale": 0.5,
    },
    "dflash-z-lab-mixed": _SLIDING,
    "dflash-z-lab-windowed": {"dflash_config": {"use_swa": True, "swa_window_size": 4}},
    "dflash-speculators": {"draft_vocab_size": DRAFT_VOCAB_SIZE},
    "dflash-speculators-causal": {**_WINDOWED, "sliding_window_non_causal": False},
    "dspark-deepspec": _HEADS,
    "dspark-deepspec-reduced": {
        **_HEADS,
        **_SLIDING,
        "draft_vocab_size": DRAFT_VOCAB_SIZE,
        "confidence_head_with_markov": False,
        "dspark_draft_topk": 8,
        "logit_scale": 0.5,
    },
    "dspark-speculators": {**_HEADS, "draft_vocab_size": DRAFT_VOCAB_SIZE},
    "dspark-speculators-anchor": {
        **_HEADS,
        "sample_from_anchor": True,
        "enable_confidence_head": False,
    },
}
"""What each one has besides the usual."""

_OUTER = ("sliding_window_non_causal", "sample_from_anchor", "draft_vocab_size", *_HEADS)


def num_tokens(kind: str) -> int:
    """The most tokens that a block of ``kind`` drafts."""
    from_anchor = "deepspec" in kind or KINDS[kind].get("sample_from_anchor", False)
    return BLOCK_SIZE if from_anchor else BLOCK_SIZE - 1


def make_block_draft(folder: Path, kind: str, target: str, **changes: Any) -> Path:
    """Saves the draft ``kind`` in ``folder``, its config with ``changes``; returns it."""
    torch.manual_seed(hash_of(kind))
    folder.mkdir(parents=True, exist_ok=True)
    options = {**KINDS[kind], **changes}
    tensors = _tensors(kind, options)
    if options.pop("mask_embedding", False):
        mask = torch.randn(HIDDEN_SIZE)
        tensors[MASK_EMBEDDING] = mask
        # As published, for vLLM.
        torch.save({"mask_token_id": MASK_TOKEN, "embedding": mask}, folder / "mask_embedding.pt")
    options.pop("own_embedding", None)
    config: dict[str, Any] = {
        "model_type": "qwen3",
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": VOCAB_SIZE,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        "max_position_embeddings": 256,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": "float32",
    }
    outer: dict[str, Any] = {"block_size": BLOCK_SIZE}
    if "speculators" in kind:
        method = kind.split("-")[0]
        outer |= {name: options.pop(name) for name in _OUTER if name in options}
        outer |= {
            "architectures": ["DFlashDraftModel" if method == "dflash" else "Qwen3DSparkModel"],
            "speculators_model_type": method,
            "speculators_version": "0.9.0",
            "aux_hidden_state_layer_ids": list(AUX_LAYERS),
            "mask_token_id": MASK_TOKEN,
            "transformer_layer_config": config | options,
            "speculators_config": {
                "algorithm": method,
                "default_proposal_method": "greedy",
                "proposal_methods": [
                    {"proposal_type": "greedy", "speculative_tokens": num_tokens(kind)}
                ],
                "verifier": {"name_or_path": target, "architectures": ["LlamaForCausalLM"]},
            },
        }
    else:
        after = {
            "mask_token_id": MASK_TOKEN,
            "target_layer_ids": [layer - 1 for layer in AUX_LAYERS],
        }
        if "dflash" in kind:
            outer["architectures"] = ["DFlashDraftModel"]
            outer["dflash_config"] = after | options.pop("dflash_config", {})
        else:
            outer |= {"architectures": ["Qwen3DSparkModel"], **after}
        outer = config | outer | options
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(outer, indent=2))
    return folder


def hash_of(kind: str) -> int:
    """A seed of each kind's own."""
    return list(KINDS).index(kind) + 1


def _tensors(kind: str, options: dict[str, Any]) -> dict[str, torch.Tensor]:
    size, width, kv_width, inner = HIDDEN_SIZE, 4 * 32, 2 * 32, 128
    tensors: dict[str, torch.Tensor] = {}

    def weight(name: str, *shape: int) -> None:
        tensors[name] = torch.randn(shape) * shape[-1] ** -0.5

    def norm(name: str, length: int) -> None:
        tensors[f"{name}.weight"] = 1.0 + 0.3 * torch.randn(length)

    weight("fc.weight", size, len(AUX_LAYERS) * size)
    norm("hidden_norm", size)
    norm("norm", size)
    for index in range(2):
        prefix = f"layers.{index}."
        shapes = {"q": (width, size), "k": (kv_width, size), "v": (kv_width, size)}
        for part, shape in {**shapes, "o": (size, width)}.items():
            weight(f"{prefix}self_attn.{part}_proj.weight", *shape)
            if options.get("attention_bias"):
                weight(f"{prefix}self_attn.{part}_proj.bias", shape[0])
        norm(f"{prefix}self_attn.q_norm", 32)
        norm(f"{prefix}self_attn.k_norm", 32)
        weight(f"{prefix}mlp.gate_proj.weight", inner, size)
        weight(f"{prefix}mlp.up_proj.weight", inner, size)
        weight(f"{prefix}mlp.down_proj.weight", size, inner)
        norm(f"{prefix}input_layernorm", size)
        norm(f"{prefix}post_attention_layernorm", size)
    number = options.get("draft_vocab_size", VOCAB_SIZE)
    if options.get("own_embedding"):
        weight("embed_tokens.weight", VOCAB_SIZE, size)
    if number != VOCAB_SIZE:
        weight("lm_head.weight", number, size)
        tensors["lm_head.weight"] *= 4  # far enough apart that no choice is a tie
        known = torch.randperm(VOCAB_SIZE)[:number].sort().values
        tensors["d2t"] = known - torch.arange(number)
        tensors["t2d"] = torch.zeros(VOCAB_SIZE, dtype=torch.bool).index_fill(0, known, True)
    if "dspark" in kind:
        tensors["markov_head.markov_w1.weight"] = torch.randn(VOCAB_SIZE, RANK)
        tensors["markov_head.markov_w2.weight"] = 2 * torch.randn(number, RANK)
        if options["enable_confidence_head"]:
            sees_token = options["confidence_head_with_markov"]
            weight("confidence_head.proj.weight", 1, size + (RANK if sees_token else 0))
            weight("confidence_head.proj.bias", 1)
    return tensors


def load_block_draft(folder: Path, target: Path) -> BlockDrafter:
    """Returns the drafter with the draft in ``folder``, in float32."""
    device, dtype = torch.device("cpu"), torch.float32
    draft = Checkpoint(folder)
    parts = load_target_parts(Checkpoint(target), device, dtype)
    is_dspark = any(name.startswith("markov_head.") for name in draft.headers)
    return (DSparkDrafter if is_dspark else DFlashDrafter)(draft, parts, device, dtype)
