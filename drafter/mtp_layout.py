"""How a native MTP block is written down and wired, by model family.

| layout        | concatenated  | position 0 | takes the target's state | feeds back its state    |
|---------------|---------------|------------|--------------------------|-------------------------|
| `deepseek-v3` | token, hidden | no token   | behind the last norm     | behind the block's norm |
| `glm-4.5`     | token, hidden | no token   | behind the last norm     | before the block's norm |
| `qwen3-next`  | token, hidden | as others  | behind the last norm     | behind the block's norm |
| `mimo`        | hidden, token | no token   | before the last norm     | behind the block's norm |

"No token" means an embedding of zeros. The rules are those of vLLM's deepseek_mtp.py,
glm4_moe_mtp.py, qwen3_next_mtp.py, qwen3_5_mtp.py and mimo_mtp.py, and of what its target models
return (mimo.py leaves out the last norm). Of several blocks the first one makes all drafts, as on
vLLM's V1 runner.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from paceline.drafter.checkpoint import FLOATS, Checkpoint, names_problem
from paceline.drafter.draft_kind import DraftKind, draft_config
from paceline.drafter.draft_tensors import mtp_prefix
from paceline.drafter.layers import LayerShape
from paceline.errors import ModelError

_LAYER = "layer."
"""What a tensor of the decoder layer is called in the block."""
_UNREAD = ("embed_tokens.weight", "shared_head.head.weight")
"""Copies of the target's, which vLLM replaces by the target's as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A layout's names and wiring."""

    model_types: tuple[str, ...]
    """Of the configs that are wired in this way."""
    parts: Mapping[str, str]
    """Names of the block's own parts: those in the block to those in the checkpoint."""
    layer: str = ""
    """Prefix of the decoder layer's tensors."""
    hidden_first: bool = False
    """Whether the hidden state is concatenated before the token's embedding."""
    blanks_position_0: bool = True
    before_norm: bool = False
    """Whether the target's state is taken from before its last norm."""
    feeds_back_normed: bool = True
    is_qwen3_next: bool = False
    """Whether attention has a gate, and norms multiply by 1 + their weight."""


_DEEPSEEK = {
    "token_norm": "enorm",
    "hidden_norm": "hnorm",
    "projection": "eh_proj",
    "norm": "shared_head.norm",
}

FAMILIES = {
    "deepseek-v3": Family(model_types=("deepseek_v3",), parts=_DEEPSEEK),
    "glm-4.5": Family(model_types=("glm4_moe",), parts=_DEEPSEEK, feeds_back_normed=False),
    "qwen3-next": Family(
        model_types=(
            "qwen3_next",
            "qwen3_5",
            "qwen3_5_text",
            "qwen3_5_moe",
            "qwen3_5_moe_text",
        ),
        parts={
            "token_norm": "pre_fc_norm_embedding",
            "hidden_norm": "pre_fc_norm_hidden",
            "projection": "fc",
            "norm": "norm",
        },
        layer="layers.0.",
        blanks_position_0=False,
        is_qwen3_next=True,
    ),
    "mimo": Family(
        # Qwen2 is what transformers takes a MiMo for.
        model_types=("mimo", "qwen2"),
        parts={
            "token_norm": "token_layernorm",
            "hidden_norm": "hidden_layernorm",
            "projection": "input_proj",
            "norm": "final_layernorm",
        },
        hidden_first=True,
        before_norm=True,
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MtpLayout:
    """One checkpoint's block."""

    family: Family
    config: Mapping[str, Any]
    shape: LayerShape
    names: Mapping[str, str]
    """The checkpoint's names of the block's tensors, by the block's own."""
    max_length: int
    """Tokens of a text."""


def read_layout(kind: DraftKind, draft: Checkpoint) -> MtpLayout:
    """Reads the config and the headers.

    Raises:
        ModelError: the family is not known, or the block is of a kind that is not supported.
    """
    family = FAMILIES[kind.layout]
    config = draft_config(draft)
    model_type = str(config.get("model_type", "unknown"))
    if model_type not in family.model_types:
        raise ModelError(
            f"the model family {model_type} has an MTP block with the names of {kind.layout}, but "
            f"how it is wired is known for {', '.join(family.model_types)} only: use another "
            "method for this target"
        )
    names = _own_names(family, draft)
    _check_supported(model_type, names, draft)
    if kind.layout == "glm-4.5":
        config = {"partial_rotary_factor": 0.5, **config}  # vLLM's default for the family
    attention = f"{_LAYER}self_attn."
    shape = dataclasses.replace(
        LayerShape.from_config(config),
        qk_norm=f"{attention}q_norm.weight" in names,
        qkv_bias=f"{attention}q_proj.bias" in names,
        o_bias=f"{attention}o_proj.bias" in names,
        mlp_bias=f"{_LAYER}mlp.gate_proj.bias" in names,
    )
    return MtpLayout(
        family=family,
        config=config,
        shape=shape,
        names=names,
        max_length=int(config.get("max_position_embeddings") or 1 << 20),
    )


def block_tensors(
    layout: MtpLayout, draft: Checkpoint, tensors: Mapping[str, Tensor], wanted: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Reads the block's tensors, by its own names.

    Args:
        wanted: Tensors of the right shapes by the block's names.

    Raises:
        ModelError: some are missing, not known, or of another shape.
    """
    required = [_published(layout.family, mtp_prefix(draft), name) for name in wanted]
    if problem := names_problem(layout.names.values(), required):
        raise ModelError(f"the MTP block in {draft.folder} {problem}: copy its folder again")
    for name, tensor in wanted.items():
        shape = draft.headers[layout.names[name]].shape
        if shape != tensor.shape:
            raise ModelError(
                f"the tensor {layout.names[name]} in {draft.folder} has the shape {list(shape)}, "
                f"but by the config it is {list(tensor.shape)}: copy the folder again, or use the "
                "block of this target"
            )
    return {name: tensors[layout.names[name]] for name in wanted}


def _published(family: Family, prefix: str, own: str) -> str:
    part, _, kind = own.rpartition(".")
    if part in family.parts:
        return f"{prefix}{family.parts[part]}.{kind}"
    return prefix + family.layer + own.removeprefix(_LAYER)


def _own_names(family: Family, draft: Checkpoint) -> dict[str, str]:
    prefix = mtp_prefix(draft)
    parts = {published: own for own, published in family.parts.items()}
    names = {}
    for name in draft.headers:
        inner = name.removeprefix(prefix)
        if inner == name or inner in _UNREAD or inner.endswith("rotary_emb.inv_freq"):
            continue
        part, _, kind = inner.rpartition(".")
        if part in parts:
            names[f"{parts[part]}.{kind}"] = name
        elif inner.startswith(family.layer):
            names[_LAYER + inner.removeprefix(family.layer)] = name
        elif not inner.startswith("layers."):  # of a further block
            names[inner] = name
    return names


def _check_supported(model_type: str, names: Mapping[str, str], draft: Checkpoint) -> None:
    def refuse(what: str) -> None:
        raise ModelError(
            f"the MTP block of the model family {model_type} in {draft.folder} has {what}, which "
            "is not supported: use another method for this target"
        )

    if any(name.startswith(f"{_LAYER}self_attn.kv_") for name in names):
        refuse("multi-head latent attention (MLA)")
    if any(name.startswith((f"{_LAYER}mlp.experts.", f"{_LAYER}mlp.gate.")) for name in names):
        refuse("a mixture of experts (MoE)")
    for name in names.values():
        if draft.headers[name].dtype not in FLOATS:
            refuse(f"quantized weights ({name} is {draft.headers[name].dtype})")
