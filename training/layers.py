"""A decoder layer of Llama's kind, for trainings that unroll a draft over its own steps.

Its parameters are named as in published checkpoints. Attention is written out, because the rows of
an unrolled step see the keys of the first step up to their own position, and one key of each later
step: their own (EAGLE-3, arXiv 2503.01840, figure 6).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.training.target import Shape


class Rotary:
    """Rotary position embedding, in Llama's halves."""

    def __init__(self, shape: Shape) -> None:
        exponent = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        self.frequencies = 1.0 / shape.rope_theta**exponent

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns cosine and sine, [..., 1, head_dim] each: one for all heads."""
        angles = positions[..., None].float() * self.frequencies.to(positions.device)
        angles = torch.cat([angles, angles], -1)[..., None, :]
        return angles.cos(), angles.sin()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:  # [..., heads, head_dim]
    cosine, sine = rotation[0].to(x.dtype), rotation[1].to(x.dtype)
    left, right = x.chunk(2, -1)
    return x * cosine + torch.cat([-right, left], -1) * sine


class Memory:
    """The keys and values of one layer that later rows may see."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None  # [batch, kv_heads, length, head_dim], of the first step
        self.values: Tensor | None = None
        self.own: list[tuple[Tensor, Tensor]] = []
        """Of each later step, each row's own: [batch, kv_heads, rows, head_dim]."""


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    def __init__(self, shape: Shape, input_size: int, *, qk_norm: bool = False) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = shape.num_attention_heads, shape.num_key_value_heads
        self.head_dim = shape.head_dim
        width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.q_proj = nn.Linear(input_size, width, bias=False)
        self.k_proj = nn.Linear(input_size, kv_width, bias=False)
        self.v_proj = nn.Linear(input_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, shape.hidden_size, bias=False)
        if qk_norm:
            self.q_norm = RMSNorm(self.head_dim, shape.rms_norm_eps)
            self.k_norm = RMSNorm(self.head_dim, shape.rms_norm_eps)
        self.has_qk_norm = qk_norm

    def _heads(self, x: Tensor, number: int) -> Tensor:
        return x.view(*x.shape[:-1], number, self.head_dim)

    def queries(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        q = self._heads(self.q_proj(x), self.num_heads)
        if self.has_qk_norm:
            q = self.q_norm(q)
        return rotate(q, rotation).transpose(1, 2)  # [batch, heads, rows, head_dim]

    def keys_values(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        k = self._heads(self.k_proj(x), self.num_kv_heads)
        if self.has_qk_norm:
            k = self.k_norm(k)
        v = self._heads(self.v_proj(x), self.num_kv_heads)
        return rotate(k, rotation).transpose(1, 2), v.transpose(1, 2)

    def forward(self, q: Tensor, memory: Memory, rows: Tensor | None) -> Tensor:
        """Attends from rows to the first step's keys up to them, and to their own later keys.

        Args:
            q: Queries.  # [batch, heads, rows, head_dim]
            rows: The position in the sequence that each row began at; None: the rows are all
                positions, in the first step.  # [batch, rows]
        """
        keys, values = memory.keys, memory.values
        assert keys is not None and values is not None
        if rows is None:
            seen = functional.scaled_dot_product_attention(
                q, keys, values, is_causal=True, enable_gqa=True
            )
            return self._out(seen)
        batch, _, num_rows, _ = q.shape
        length = keys.shape[2]
        group = self.num_heads // self.num_kv_heads
        grouped = (batch, self.num_kv_heads, group, num_rows, -1)
        q = q.reshape(grouped) * self.head_dim**-0.5
        scores = (q.flatten(2, 3) @ keys.transpose(-1, -2)).view(grouped)
        hidden = torch.arange(length, device=q.device) > rows[..., None]  # [batch, rows, length]
        scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
        if memory.own:
            own = [(q * key[:, :, None]).sum(-1, keepdim=True) for key, _ in memory.own]
            scores = torch.cat([scores, *own], -1)
        weights = scores.softmax(-1)
        seen = weights[..., :length].flatten(2, 3)
        out = (seen @ values).view(grouped)
        for step, (_, value) in enumerate(memory.own):
            out = out + weights[..., length + step, None] * value[:, :, None]
        return self._out(out.flatten(1, 2))

    def _out(self, seen: Tensor) -> Tensor:  # [batch, heads, rows, head_dim]
        out: Tensor = self.o_proj(seen.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    """``self_attn``, ``mlp`` and their two norms."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape, shape.hidden_size)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = MLP(shape)

    def attention_input(self, x: Tensor, embeds: Tensor | None) -> Tensor:
        del embeds
        out: Tensor = self.input_layernorm(x)
        return out

    def remember(
        self, x: Tensor, embeds: Tensor | None, rotation: tuple[Tensor, Tensor], memory: Memory
    ) -> None:
        """Keeps the keys and values of the first step, for all positions."""
        inputs = self.attention_input(x, embeds)
        memory.keys, memory.values = self.self_attn.keys_values(inputs, rotation)

    def forward(
        self,
        x: Tensor,  # [batch, rows, hidden]
        embeds: Tensor | None,  # [batch, rows, hidden], used by a first layer only
        rotation: tuple[Tensor, Tensor],
        memory: Memory,
        rows: Tensor | None,
        *,
        later: bool,
    ) -> Tensor:
        """Returns the residual stream behind the layer; ``later``: a step behind the first."""
        inputs = self.attention_input(x, embeds)
        if later:
            memory.own.append(self.self_attn.keys_values(inputs, rotation))
        x = x + self.self_attn(self.self_attn.queries(inputs, rotation), memory, rows)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out
