"""The layers of block drafts, of Qwen3's kind: vllm/model_executor/models/qwen3_dflash.py.

Shape legend: N rows of context, R requests, B slots of a block, L cells that a block may see, H
hidden size, A auxiliary layers, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from paceline.drafter.block_layout import BlockLayout, Sight
from paceline.errors import ModelError

Store = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""Keeps keys and values [*, heads, *, D] of a layer and returns those that may be seen."""


class Weights:
    """A draft's tensors, each checked as it is taken."""

    def __init__(self, tensors: Mapping[str, Tensor], method: str) -> None:
        self._tensors = tensors
        self._method = method

    def take(self, name: str, *shape: int) -> Tensor:
        """Returns a tensor.

        Raises:
            ModelError: it is missing or has another shape.
        """
        if name not in self._tensors:
            raise ModelError(f"this {self._method} draft has no tensor {name}: fetch it again")
        tensor = self._tensors[name]
        if tensor.shape != shape:
            raise ModelError(
                f"the tensor {name} of this {self._method} draft has the shape "
                f"{list(tensor.shape)} and not {list(shape)}, which its config.json means: fetch "
                "it again"
            )
        return tensor

    def has(self, name: str) -> bool:
        return name in self._tensors


class BlockStack:
    """From the target's rows to keys and values, and from a block's tokens to hidden states."""

    def __init__(self, layout: BlockLayout, weights: Weights) -> None:
        hidden = layout.hidden_size
        self._eps = layout.rms_norm_eps
        self._fc = weights.take(
            "fc.weight", hidden, len(layout.aux_layers) * layout.target_hidden_size
        )
        self._hidden_norm = weights.take("hidden_norm.weight", hidden)
        self._norm = weights.take("norm.weight", hidden)
        self._layers = [_Layer(layout, weights, index) for index in range(len(layout.sights))]
        self._sights = layout.sights
        exponents = torch.arange(0, layout.head_dim, 2, dtype=torch.float32) / layout.head_dim
        self._frequencies = (layout.rope_theta**-exponents).to(self._fc.device)

    @property
    def dtype(self) -> torch.dtype:
        return self._fc.dtype

    def project(self, aux: Tensor) -> Tensor:
        """Returns the part of a row that may be made where the rows are: [N, A * H] to [N, H]."""
        return functional.linear(aux.to(self.dtype), self._fc)

    def remember(self, projected: Tensor, positions: Tensor, store: Store) -> None:
        """Stores the keys and values of context rows, each [N, heads, 1, D].

        Args:
            projected: # [N, H]
            positions: # [N]
        """
        context = _norm(projected.to(self.dtype), self._hidden_norm, self._eps)[:, None]
        rotation = self._rotation(positions[:, None])
        for index, layer in enumerate(self._layers):
            store(*layer.keys_values(context, rotation), index)

    def fill(self, x: Tensor, positions: Tensor, num_cells: Tensor, store: Store) -> Tensor:
        """Runs blocks through the layers; returns [R, B, H], normed.

        Args:
            x: The embeddings of the blocks' tokens.  # [R, B, H]
            positions: # [R, B]
            num_cells: Of the context in front of each block, whose own cells follow.  # [R]
        """
        rotation = self._rotation(positions)
        masks: dict[Sight, Tensor] = {}
        for index, (layer, sight) in enumerate(zip(self._layers, self._sights, strict=True)):
            inputs = _norm(x, layer.input_norm, self._eps)
            keys, values = store(*layer.keys_values(inputs, rotation), index)
            if sight not in masks:
                masks[sight] = _mask(sight, num_cells, x.shape[1], keys.shape[2])
            seen = functional.scaled_dot_product_attention(
                layer.queries(inputs, rotation), keys, values, masks[sight], enable_gqa=True
            )
            x = x + layer.output(seen)
            x = x + layer.mlp(_norm(x, layer.mlp_norm, self._eps))
        return _norm(x, self._norm, self._eps)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns cosine and sine [*, 1, B, D] of positions [*, B]."""
        angles = positions[..., None].float() * self._frequencies
        angles = torch.cat([angles, angles], -1)[..., None, :, :]
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


class _Layer:
    """One decoder layer."""

    def __init__(self, layout: BlockLayout, weights: Weights, index: int) -> None:
        hidden, inner, size = layout.hidden_size, layout.intermediate_size, layout.head_dim
        prefix = f"layers.{index}."
        self._size, self._eps = size, layout.rms_norm_eps
        self._value_scale = layout.value_scale
        width, kv_width = layout.num_heads * size, layout.num_kv_heads * size

        def projection(part: str, num_out: int, num_in: int) -> tuple[Tensor, Tensor | None]:
            name = f"{prefix}self_attn.{part}_proj"
            bias = weights.take(f"{name}.bias", num_out) if layout.has_bias else None
            return weights.take(f"{name}.weight", num_out, num_in), bias

        self._q = projection("q", width, hidden)
        self._k = projection("k", kv_width, hidden)
        self._v = projection("v", kv_width, hidden)
        self._o = projection("o", hidden, width)
        self._q_norm = weights.take(f"{prefix}self_attn.q_norm.weight", size)
        self._k_norm = weights.take(f"{prefix}self_attn.k_norm.weight", size)
        self._gate = weights.take(f"{prefix}mlp.gate_proj.weight", inner, hidden)
        self._up = weights.take(f"{prefix}mlp.up_proj.weight", inner, hidden)
        self._down = weights.take(f"{prefix}mlp.down_proj.weight", hidden, inner)
        self.input_norm = weights.take(f"{prefix}input_layernorm.weight", hidden)
        self.mlp_norm = weights.take(f"{prefix}post_attention_layernorm.weight", hidden)

    def _heads(self, x: Tensor) -> Tensor:
        """From [*, B, heads * D] to [*, heads, B, D]."""
        return x.unflatten(-1, (-1, self._size)).transpose(-2, -3)

    def queries(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        heads = self._heads(functional.linear(x, *self._q))
        return _rotate(_norm(heads, self._q_norm, self._eps), rotation)

    def keys_values(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        keys = _norm(self._heads(functional.linear(x, *self._k)), self._k_norm, self._eps)
        values = self._heads(functional.linear(x, *self._v))
        return _rotate(keys, rotation), values * self._value_scale

    def output(self, seen: Tensor) -> Tensor:  # [R, heads, B, D] to [R, B, H]
        return functional.linear(seen.transpose(1, 2).flatten(2), *self._o)

    def mlp(self, x: Tensor) -> Tensor:
        gated = functional.silu(functional.linear(x, self._gate)) * functional.linear(x, self._up)
        return functional.linear(gated, self._down)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], weight, eps)


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * rotation[0] + torch.cat([-right, left], -1) * rotation[1]


def _mask(sight: Sight, num_cells: Tensor, num_slots: int, length: int) -> Tensor:
    """Returns which cells each slot sees, [R, 1, B, L]; a slot's own one is among them."""
    cells = torch.arange(length, device=num_cells.device)
    first = num_cells[:, None, None]
    own = first + torch.arange(num_slots, device=num_cells.device)[:, None]  # [R, B, 1]
    seen = cells <= own if sight.causal else cells < first + num_slots  # [R, B, L]
    if sight.window is not None:
        seen = seen & ((cells - own).abs() < sight.window)
    return seen[:, None]
