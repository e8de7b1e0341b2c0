"""What an EAGLE-3 checkpoint says of its head, in SafeAILab's layout and in that of speculators.

Both have the same tensors, but for the first layer's name: ``midlayer`` in SafeAILab's. Options are
read as vLLM reads them (llama_eagle3.py; transformers_utils/configs/speculators/algos.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from paceline.drafter.checkpoint import Checkpoint
from paceline.drafter.draft_kind import DraftKind, draft_config
from paceline.drafter.layers import LayerShape
from paceline.drafter.row_needs import row_needs, takes_aux
from paceline.drafter.target_parts import TargetParts
from paceline.messages import RowNeeds

_FIRST, _PUBLISHED = "layers.0.", "midlayer."


@dataclass(frozen=True, kw_only=True, slots=True)
class Eagle3Layout:
    """A head's sizes and options."""

    config: Mapping[str, Any]
    """Of the draft, its layers' part on top."""
    shape: LayerShape
    windows: tuple[int | None, ...]
    """Of each layer's attention: how many positions it sees; None: all."""
    needs: RowNeeds
    target_hidden_size: int
    num_rows: int
    """Of the head: the draft's vocabulary."""
    has_fc: bool
    """Whether it takes auxiliary states, projected by ``fc``; else the target's final state."""
    norm_before_fc: bool
    """Whether one norm goes over the auxiliary states side by side, before ``fc``."""
    fc_norm: bool
    """Whether each of them has a norm of its own (EAGLE-3.1)."""
    norm_before_residual: bool
    """Whether the first layer's residual stream begins behind ``hidden_norm``."""
    norm_output: bool
    """Whether the next step gets the state behind the last norm (EAGLE-3.1), or before it."""
    has_embedding: bool
    """Its own; else the target's."""
    has_lm_head: bool
    logit_scale: float
    max_length: int
    """Tokens of a text."""


def read_layout(kind: DraftKind, draft: Checkpoint, target: TargetParts) -> Eagle3Layout:
    """Reads the config and the headers, which ``draft_checks`` has found to be sound.

    Raises:
        ModelError: a size is missing, or something is not known.
    """
    config = draft_config(draft)
    eagle = config.get("eagle_config") or {}
    names = {published_to_own(name): header for name, header in draft.headers.items()}
    shape = LayerShape.from_config(config)
    shape = dataclasses.replace(
        shape,
        qk_norm=f"{_FIRST}self_attn.q_norm.weight" in names,
        qkv_bias=f"{_FIRST}self_attn.q_proj.bias" in names,
        o_bias=f"{_FIRST}self_attn.o_proj.bias" in names,
        mlp_bias=f"{_FIRST}mlp.gate_proj.bias" in names,
    )
    layer_types = config.get("layer_types") or []
    num_layers = int(config["num_hidden_layers"])
    head = names.get("lm_head.weight")
    return Eagle3Layout(
        config=config,
        shape=shape,
        windows=tuple(
            config.get("sliding_window") if kind_of_layer == "sliding_attention" else None
            for kind_of_layer in [*layer_types, *[""] * num_layers][:num_layers]
        ),
        needs=row_needs(kind, draft, target.config),
        target_hidden_size=int(config.get("target_hidden_size") or shape.hidden_size),
        num_rows=head.shape[0] if head is not None else target.vocab_size,
        has_fc=takes_aux(config),
        norm_before_fc=bool(eagle.get("norm_before_fc", config.get("norm_before_fc", False))),
        fc_norm=bool(config.get("fc_norm", False)),
        # Where a config of speculators' says nothing, vLLM takes it for true.
        norm_before_residual=bool(config.get("norm_before_residual", kind.layout == "speculators")),
        norm_output=bool(config.get("norm_output", False)),
        has_embedding="embed_tokens.weight" in names,
        has_lm_head=head is not None,
        logit_scale=float(config.get("logit_scale", 1.0)),
        max_length=int(config.get("max_position_embeddings") or 1 << 20),
    )


def published_to_own(name: str) -> str:
    """Returns a tensor's name in the head."""
    return _FIRST + name.removeprefix(_PUBLISHED) if name.startswith(_PUBLISHED) else name


def head_tensors(tensors: Mapping[str, Tensor], wanted: Collection[str]) -> dict[str, Tensor]:
    """Reads the tensors that the head wants, by its names."""
    by_own = {published_to_own(name): name for name in tensors}
    return {own: tensors[by_own[own]] for own in wanted if own in by_own}
