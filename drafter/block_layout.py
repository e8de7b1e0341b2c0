"""What the configs of block drafts, DFlash and DSpark, have in common.

Both come in two layouts. In that of their authors (z-lab, DeepSpec) the stack's sizes stand on top,
in that of ``speculators`` in ``transformer_layer_config``. The rules, defaults included, are those
of vllm/model_executor/models/qwen3_dflash.py and
vllm/transformers_utils/configs/speculators/algos.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.drafter.draft_kind import DraftKind
from paceline.drafter.layers import LayerShape
from paceline.drafter.row_needs import stated_layers
from paceline.errors import ModelError

_QWEN3_HEAD_DIM = 128
_QWEN3_THETA = 1_000_000.0
_SLIDING = "sliding_attention"


@dataclass(frozen=True, slots=True)
class Sight:
    """What a layer's slots see besides the context in front of them."""

    window: int | None
    """Only positions nearer than this; None: all."""
    causal: bool
    """Whether a slot sees the slots in front of it only, or all of its block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLayout:
    """A block draft, whatever its layout."""

    method: str
    """In messages: ``DFlash`` or ``DSpark``."""
    shape: LayerShape
    rope: Mapping[str, Any]
    """What ``Rotary`` reads."""
    sights: tuple[Sight, ...]
    """Of each layer."""
    vocab_size: int
    """Rows of the embedding."""
    draft_vocab_size: int
    """Rows of the head."""
    max_positions: int
    mask_token: int
    block_size: int
    first_slot: int
    """The slot that drafts first: 0, the anchor, or 1, the first mask."""
    aux_layers: tuple[int, ...]
    """The target's layers whose inputs it works from."""
    target_hidden_size: int
    value_scale: float
    logit_scale: float

    @property
    def max_tokens(self) -> int:
        """The most tokens that a block drafts."""
        return self.block_size - self.first_slot


class ConfigReader:
    """A draft's config, read key by key; what is missing or of another type is an error."""

    def __init__(self, config: Mapping[str, Any], method: str) -> None:
        self.method = method
        self.is_speculators = "speculators_model_type" in config
        self.outer = config
        self.inner: Mapping[str, Any] = (
            config.get("transformer_layer_config") or {} if self.is_speculators else config
        )
        """Sizes of the stack."""
        # In this order, each over the one before, as vLLM merges them.
        self.nested: dict[str, Any] = {
            **(self.inner.get("eagle_config") or {}),
            **(self.inner.get("dflash_config") or {}),
        }

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer above 0 of the stack's config."""
        return self.checked(name, self.inner.get(name), default)

    def checked(self, name: str, value: object, default: int | None = None) -> int:
        value = default if value is None else value
        if not isinstance(value, int) or value < 1:
            raise self.error(f"{name} is {value}, but it is a number above 0")
        return value

    def error(self, what: str) -> ModelError:
        return ModelError(
            f"the config.json of this {self.method} draft cannot be used: {what}; take another "
            "draft, or correct it if this is a slip"
        )

    def refuse(self, kinds: Mapping[str, object]) -> None:
        """Raises an error that names the first of ``kinds`` that is set."""
        for kind, value in kinds.items():
            if value:
                raise self.error(f"it has {kind}, which is not supported")


def common(
    config: ConfigReader, mask_token: int, block_size: int, first_slot: int, causal: bool | None
) -> dict[str, Any]:
    """Returns the fields of ``BlockLayout``.

    Args:
        causal: What the layout says of all layers; None: each kind of layer has its default.

    Raises:
        ModelError: a field is missing, or says something that is not supported.
    """
    inner, nested = config.inner, config.nested
    config.refuse(
        {
            "interleaved rotary embeddings": inner.get("is_neox_style") is False,
            "attention_sink_bias": nested.get(
                "attention_sink_bias", inner.get("add_swa_attention_sink_bias")
            ),
            "quantized weights": inner.get("quantization_config")
            or config.outer.get("quantization_config"),
            "use_aux_hidden_state false": nested.get(
                "use_aux_hidden_state", inner.get("use_aux_hidden_state")
            )
            is False,
        }
    )
    vocab_size = config.integer("vocab_size")
    if not 0 <= mask_token < vocab_size:
        raise config.error(f"mask_token_id is {mask_token}, but vocab_size {vocab_size}")
    # The class of Qwen3's config has a default of its own; that of speculators has none.
    is_qwen3 = not config.is_speculators and inner.get("model_type") == "qwen3"
    head_dim = {"head_dim": _QWEN3_HEAD_DIM} if is_qwen3 else {}
    shape = LayerShape.from_config({**head_dim, **inner}, qk_norm=True)
    rope = dict(inner)
    if not (inner.get("rope_parameters") or {}).get("rope_theta"):
        rope["rope_theta"] = inner.get("rope_theta") or _QWEN3_THETA
    draft_vocab_size = config.outer.get("draft_vocab_size")
    return {
        "method": config.method,
        "shape": dataclasses.replace(shape, mlp_bias=False),
        "rope": rope,
        "sights": _sights(config, causal),
        "vocab_size": vocab_size,
        "draft_vocab_size": config.checked("draft_vocab_size", draft_vocab_size, vocab_size),
        "max_positions": config.integer("max_position_embeddings"),
        "mask_token": mask_token,
        "block_size": block_size,
        "first_slot": first_slot,
        "aux_layers": _aux_layers(config),
        "target_hidden_size": config.checked(
            "target_hidden_size", config.outer.get("target_hidden_size"), shape.hidden_size
        ),
        "value_scale": float(nested.get("attention_value_scale") or 1.0),
        "logit_scale": float(inner.get("logit_scale", 1.0)),
    }


def mask_token(config: ConfigReader) -> int:
    """The token that stands for what is to be drafted."""
    value = config.nested.get("mask_token_id", config.outer.get("mask_token_id"))
    if not isinstance(value, int):
        raise config.error("it has no mask_token_id")
    return value


def _aux_layers(config: ConfigReader) -> tuple[int, ...]:
    """The layers whose inputs lie in a row, in the order of the layers."""
    layers = stated_layers(
        DraftKind(config.method.lower(), "speculators" if config.is_speculators else ""),
        {**config.outer, **config.inner},
    )
    if not layers:
        raise config.error("it does not name the layers of the target that the draft works from")
    return tuple(sorted(layers))


def _sights(config: ConfigReader, causal: bool | None) -> tuple[Sight, ...]:
    inner = config.inner
    num_layers = config.integer("num_hidden_layers")
    kinds = inner.get("layer_types") or _qwen3_kinds(config, num_layers)
    use_swa = bool((inner.get("dflash_config") or {}).get("use_swa", False))
    if kinds is not None:
        unknown = sorted(set(kinds) - {_SLIDING, "full_attention"})
        config.refuse({f"layers of kind {', '.join(unknown)}": unknown})
        if len(kinds) < num_layers:
            raise config.error(f"layer_types has {len(kinds)} kinds for {num_layers} layers")
    override = inner.get("is_causal")
    override = causal if override is None else bool(override)
    sights = []
    for index in range(num_layers):
        slides = kinds is not None and kinds[index] == _SLIDING
        is_windowed = slides or (use_swa and _SLIDING not in (kinds or ()))
        window = config.nested.get("swa_window_size", inner.get("sliding_window"))
        sights.append(
            Sight(
                window=config.checked("sliding_window", window) if is_windowed else None,
                causal=slides if override is None else override,
            )
        )
    return tuple(sights)


def _qwen3_kinds(config: ConfigReader, num_layers: int) -> list[str] | None:
    """What Qwen3's config class fills in where no layer_types are given."""
    inner = config.inner
    if config.is_speculators or inner.get("model_type") != "qwen3":
        return None
    slides = inner.get("use_sliding_window") and inner.get("sliding_window")
    first = int(inner.get("max_window_layers", 28)) if slides else num_layers
    return [_SLIDING if index >= first else "full_attention" for index in range(num_layers)]
