"""Decoder layers of Llama's and Qwen3's kind for draft heads, over a cache of slots.

Parameters are named as in published checkpoints. Their semantics are those of
vllm/model_executor/models/llama.py and qwen3.py; the rotary embedding is that of
transformers/modeling_rope_utils.py.

Shape legend: R rows of a forward (requests), Q tokens of the widest one, L cells that the forward
may see, H hidden size, I an attention's input size, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.drafter.kv_slots import KVSlots
from paceline.errors import ModelError


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerShape:
    """Sizes and options that the layers of a head have in common."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    qk_norm: bool = False
    """Whether queries and keys are normed per head before they are rotated, as in Qwen3."""
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, qk_norm: bool = False) -> LayerShape:
        """Reads a decoder's ``config.json``.

        Raises:
            ModelError: a size is missing, sizes do not fit each other, or the activation is not
                SiLU.
        """
        activation = config.get("hidden_act", "silu")
        if activation != "silu":
            raise ModelError(f"the draft's hidden_act is {activation}, only silu is known")
        try:
            hidden_size, num_heads = int(config["hidden_size"]), int(config["num_attention_heads"])
            shape = cls(
                hidden_size=hidden_size,
                intermediate_size=int(config["intermediate_size"]),
                num_heads=num_heads,
                num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
                head_dim=int(config.get("head_dim") or hidden_size // num_heads),
                eps=float(config.get("rms_norm_eps", 1e-6)),
                qk_norm=qk_norm,
                qkv_bias=bool(config.get("attention_bias", False)),
                o_bias=bool(config.get("attention_bias", False)),
                mlp_bias=bool(config.get("mlp_bias", False)),
            )
        except KeyError as error:
            raise ModelError(f"the draft's config.json has no {error.args[0]}") from error
        if shape.num_heads % shape.num_kv_heads:
            raise ModelError(
                f"the draft's num_attention_heads ({shape.num_heads}) is no multiple of its "
                f"num_key_value_heads ({shape.num_kv_heads})"
            )
        return shape


@dataclass(slots=True)
class View:
    """What the attention of one forward works with, besides its input."""

    cache: KVSlots
    """Told by ``begin`` which cells are written and seen."""
    rotation: tuple[Tensor, Tensor]
    """Cosine and sine of each token's position, from ``Rotary``."""
    masks: Mapping[int | None, Tensor]
    """[R, 1, Q, L], true: is seen; per window of the layers' attention, None: all before it."""


class Rotary:
    """Rotary position embedding, in halves; the first part of a head where it is partial."""

    def __init__(self, config: Mapping[str, Any], head_dim: int, device: torch.device) -> None:
        """Reads ``rope_parameters``, or ``rope_theta`` and ``rope_scaling`` of older configs.

        Raises:
            ModelError: it is scaled in another way than Llama-3's or linearly.
        """
        rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
        theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
        partial = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
        size = int(head_dim * float(partial))
        exponents = torch.arange(0, size, 2, dtype=torch.float32) / size
        frequencies = 1.0 / theta**exponents
        kind = rope.get("rope_type") or rope.get("type") or "default"
        try:
            if kind == "llama3":
                frequencies = _as_llama3(frequencies, rope)
            elif kind == "linear":
                frequencies = frequencies / float(rope["factor"])
            elif kind != "default":
                raise ModelError(
                    f"the draft's rope_type is {kind}; known are default, linear and llama3"
                )
        except KeyError as error:
            raise ModelError(
                f"the draft's rope_type is {kind}, but its config has no {error.args[0]}"
            ) from error
        self._frequencies = frequencies.to(device)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns cosine and sine, float32, [R, 1, Q, D] each, for ``positions`` [R, Q]."""
        angles = positions[:, None, :, None].float() * self._frequencies
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()


def _as_llama3(frequencies: Tensor, rope: Mapping[str, Any]) -> Tensor:
    """Slows what turns less than ``low_freq_factor`` times in the original context.

    Frequencies that turn more than ``high_freq_factor`` times stay; between them the change is
    linear in the number of turns.
    """
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    turns = float(rope["original_max_position_embeddings"]) * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return kept * frequencies + (1.0 - kept) * frequencies / float(rope["factor"])


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates the first part of each head of ``x`` [R, heads, Q, D]."""
    cosine, sine = (part.to(x.dtype) for part in rotation)
    size = cosine.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    left, right = turned.chunk(2, dim=-1)
    turned = turned * cosine + torch.cat([-right, left], dim=-1) * sine
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned


class RMSNorm(nn.Module):
    """Root mean square norm, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        normed = functional.rms_norm(x.float(), x.shape[-1:], eps=self._eps)
        return normed.to(x.dtype) * self.weight


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        hidden_size, inner = shape.hidden_size, shape.intermediate_size
        self.gate_proj = nn.Linear(hidden_size, inner, bias=shape.mlp_bias)
        self.up_proj = nn.Linear(hidden_size, inner, bias=shape.mlp_bias)
        self.down_proj = nn.Linear(inner, hidden_size, bias=shape.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Attention(nn.Module):
    """Grouped-query attention over the cells of the rows' slots."""

    def __init__(
        self,
        shape: LayerShape,
        index: int,
        *,
        input_size: int | None = None,
        window: int | None = None,
    ) -> None:
        """Args:
        index: Which of the cache's layers it is.
        input_size: I; default: the hidden size.
        window: How many positions back it sees, its own included; None: all.
        """
        super().__init__()
        self._index, self._window = index, window
        self._heads, self._kv_heads = shape.num_heads, shape.num_kv_heads
        self._head_dim = shape.head_dim
        size = input_size or shape.hidden_size
        width, kv_width = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = nn.Linear(size, width, bias=shape.qkv_bias)
        self.k_proj = nn.Linear(size, kv_width, bias=shape.qkv_bias)
        self.v_proj = nn.Linear(size, kv_width, bias=shape.qkv_bias)
        self.o_proj = nn.Linear(width, shape.hidden_size, bias=shape.o_bias)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if shape.qk_norm:
            self.q_norm = RMSNorm(shape.head_dim, shape.eps)
            self.k_norm = RMSNorm(shape.head_dim, shape.eps)

    def forward(self, x: Tensor, view: View) -> Tensor:  # [R, Q, I] -> [R, Q, H]
        queries = self.q_norm(self._split(self.q_proj(x), self._heads)).transpose(1, 2)
        queries = rotate(queries, view.rotation)  # [R, heads, Q, D]
        keys, values = view.cache.update(*self.keys_values(x, view.rotation), self._index)
        seen = functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=view.masks[self._window],
            enable_gqa=self._heads != self._kv_heads,
        )
        out: Tensor = self.o_proj(seen.transpose(1, 2).flatten(2))
        return out

    def keys_values(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns what goes into the cache for ``x`` [R, Q, I]: [R, KV heads, Q, D] each."""
        keys = self.k_norm(self._split(self.k_proj(x), self._kv_heads)).transpose(1, 2)
        values = self._split(self.v_proj(x), self._kv_heads).transpose(1, 2)
        return rotate(keys, rotation), values

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(*x.shape[:-1], heads, self._head_dim)


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and beside the residual stream."""

    def __init__(
        self,
        shape: LayerShape,
        index: int,
        *,
        input_size: int | None = None,
        window: int | None = None,
    ) -> None:
        """Args: as of ``Attention``."""
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.eps)
        self.self_attn = Attention(shape, index, input_size=input_size, window=window)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.eps)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, view: View) -> Tensor:  # [R, Q, H]
        return self.behind_attention(x + self.self_attn(self.input_layernorm(x), view))

    def behind_attention(self, x: Tensor) -> Tensor:
        """Adds what the MLP makes of the residual stream [R, Q, H]."""
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out
