"""Small EAGLE-3 heads with random weights in the published layouts, and their target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from paceline.drafter.checkpoint import Checkpoint
from paceline.drafter.draft_kind import kind_of
from paceline.drafter.eagle3 import Eagle3Drafter
from paceline.drafter.target_parts import load_target_parts

VOCAB_SIZE, DRAFT_VOCAB_SIZE = 256, 96
HIDDEN_SIZE = 64
NUM_TARGET_LAYERS = 8

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}

KINDS: dict[str, dict[str, Any]] = {
    "safeailab": {},
    "safeailab-3.1": {
        "fc_norm": True,
        "norm_output": True,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5]},
        "rope_parameters": _LLAMA3,
        "draft_vocab_size": VOCAB_SIZE,
        "own_embedding": True,
    },
    "safeailab-norm-before-fc": {
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [0, 2, 5, 7, 8],
            "norm_before_fc": True,
        },
        "attention_bias": True,
    },
    "safeailab-final-state": {"eagle_config": {"use_aux_hidden_state": False}},
    "speculators-llama": {
        "layout": "speculators",
        "norm_before_residual": True,
        "norm_before_fc": True,
        "num_hidden_layers": 2,
        "own_embedding": True,
        "target_hidden_size": HIDDEN_SIZE,
        "hidden_size": 96,
    },
    "speculators-qwen3": {
        "layout": "speculators",
        "model_type": "qwen3",
        "norm_before_residual": False,
        "fc_norm": True,
        "norm_output": True,
        "num_hidden_layers": 2,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 6],
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 12,
        "use_sliding_window": True,
        "max_window_layers": 0,
    },
}
"""What each one has besides the usual."""

_TOP = (
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
    "target_hidden_size",
    "eagle_aux_hidden_state_layer_ids",
)
"""What stands outside ``transformer_layer_config`` in speculators' layout."""


def make_eagle3(folder: Path, kind: str, verifier: str = "") -> Path:
    """Saves the float32 head ``kind`` of ``KINDS`` in ``folder``; returns it."""
    options = {
        "model_type": "llama",
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": VOCAB_SIZE,
        "draft_vocab_size": DRAFT_VOCAB_SIZE,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_parameters": _DEFAULT,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "dtype": "float32",
        **KINDS[kind],
    }
    layout = options.pop("layout", "safeailab")
    own_embedding = options.pop("own_embedding", False)
    torch.manual_seed(sorted(KINDS).index(kind))
    tensors = _tensors(
        options, "midlayer." if layout == "safeailab" else "layers.0.", num_row_values(kind)
    )
    if own_embedding:
        tensors["embed_tokens.weight"] = torch.randn(VOCAB_SIZE, options["hidden_size"])
    if layout == "safeailab":
        config = {"architectures": ["LlamaForCausalLMEagle3"], **options}
    else:
        inner = {name: value for name, value in options.items() if name not in _TOP}
        del inner["draft_vocab_size"]
        config = {
            "architectures": ["Eagle3DraftModel"],
            "speculators_model_type": "eagle3",
            "draft_vocab_size": options["draft_vocab_size"],
            "transformer_layer_config": inner,
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 4}],
                "verifier": {"name_or_path": verifier, "architectures": ["LlamaForCausalLM"]},
            },
            **{name: options[name] for name in _TOP if name in options},
        }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def _tensors(options: dict[str, Any], first: str, taken_values: int) -> dict[str, torch.Tensor]:
    size, inner = options["hidden_size"], options["intermediate_size"]
    width, kv_width = 4 * 32, 2 * 32
    eagle = options.get("eagle_config", {})
    tensors: dict[str, torch.Tensor] = {}

    def weight(name: str, *shape: int) -> None:
        tensors[name] = torch.randn(shape) * shape[-1] ** -0.5

    def norm(name: str, length: int) -> None:
        tensors[f"{name}.weight"] = 1.0 + 0.3 * torch.randn(length)

    if eagle.get("use_aux_hidden_state", True):
        weight("fc.weight", size, taken_values)
    for index in range(options["num_hidden_layers"]):
        prefix = f"layers.{index}." if index else first
        taken = size if index else 2 * size
        for part, length in (("q", width), ("k", kv_width), ("v", kv_width)):
            weight(f"{prefix}self_attn.{part}_proj.weight", length, taken)
            if options["attention_bias"]:
                weight(f"{prefix}self_attn.{part}_proj.bias", length)
        weight(f"{prefix}self_attn.o_proj.weight", size, width)
        if options["attention_bias"]:
            weight(f"{prefix}self_attn.o_proj.bias", size)
        if options["model_type"] == "qwen3":
            norm(f"{prefix}self_attn.q_norm", 32)
            norm(f"{prefix}self_attn.k_norm", 32)
        weight(f"{prefix}mlp.gate_proj.weight", inner, size)
        weight(f"{prefix}mlp.up_proj.weight", inner, size)
        weight(f"{prefix}mlp.down_proj.weight", size, inner)
        norm(f"{prefix}input_layernorm", size)
        norm(f"{prefix}post_attention_layernorm", size)
        if not index:
            norm(f"{prefix}hidden_norm", size)
    norm("norm", size)
    if options.get("norm_before_fc") or eagle.get("norm_before_fc"):
        norm("input_norm", taken_values)
    if options.get("fc_norm"):
        for index in range(taken_values // HIDDEN_SIZE):
            norm(f"fc_norm.{index}", HIDDEN_SIZE)
    number = options["draft_vocab_size"]
    weight("lm_head.weight", number, size)
    tensors["lm_head.weight"] *= 4  # far enough apart that no choice is a tie
    if number != VOCAB_SIZE:
        known = torch.randperm(VOCAB_SIZE)[:number].sort().values
        tensors["d2t"] = known - torch.arange(number)
        tensors["t2d"] = torch.zeros(VOCAB_SIZE, dtype=torch.bool).index_fill(0, known, True)
    return tensors


def make_target(folder: Path) -> Path:
    """Saves a float32 Llama with enough layers for each head; returns ``folder``."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=128,
        num_hidden_layers=NUM_TARGET_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        initializer_range=0.3,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def num_row_values(kind: str) -> int:
    """Values of one of the target's rows, as the head ``kind`` takes them."""
    options = KINDS[kind]
    eagle = options.get("eagle_config", {})
    layers = options.get("eagle_aux_hidden_state_layer_ids") or eagle.get(
        "eagle_aux_hidden_state_layer_ids", [2, 4, 5]
    )
    return HIDDEN_SIZE * (len(layers) if eagle.get("use_aux_hidden_state", True) else 1)


def load_eagle3(folder: Path, target: Path) -> Eagle3Drafter:
    """Returns the drafter with the head in ``folder``, in float32."""
    device, dtype = torch.device("cpu"), torch.float32
    draft = Checkpoint(folder)
    parts = load_target_parts(Checkpoint(target), device, dtype)
    return Eagle3Drafter(kind_of(draft, "eagle3"), draft, parts, device, dtype)
