"""Heads that draft one token after the other from the target's states: EAGLE-3 and MTP.

EAGLE-3: Li et al., arXiv 2503.01840; vllm/model_executor/models/llama_eagle3.py. MTP: DeepSeek-V3,
arXiv 2412.19437, in the layout of MiMo; vllm/model_executor/models/mimo_mtp.py.

Row i takes the target's states at position i and the token at i + 1, and drafts the token at i + 2.
The next step takes its own hidden state and the token at i + 2, at position i + 1. In training the
later steps get the tokens of the text (the draft has to be right so far, else nothing of it is
used) but the draft's own hidden states and keys: EAGLE-3's training-time test.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import cast

import msgspec
import torch
from torch import Tensor, nn

from paceline.training.corpus import Batch
from paceline.training.head_start import constant_direction, own_row, regress, unit
from paceline.training.layers import DecoderLayer, Memory, RMSNorm, Rotary
from paceline.training.target import Shape, Target

SMALL = 0.1
"""What the outputs of layers are multiplied with that start as the target's, in another place."""
NUM_OWN_ROW = 2
"""Heads through which the embedding comes in: each has ``head_dim`` of its directions."""


class Step(msgspec.Struct, frozen=True):
    """One step of some rows."""

    index: int
    columns: Tensor  # int64 [batch, rows]: which of the batch's rows these are
    rows: Tensor  # int64 [batch, rows]: the position at which each row began
    valid: Tensor  # bool [batch, rows]: whether the text has the token that is drafted
    output: Tensor  # [batch, rows, hidden]: what the head is applied to


class Autoregressive(nn.Module):
    """What both have in common: the unrolling."""

    embedding: Tensor  # [vocab, hidden], the target's

    def __init__(self, shape: Shape, embedding: Tensor) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList()
        self.rotary = Rotary(shape)
        self.register_buffer("embedding", embedding, persistent=False)

    @abstractmethod
    def conditions(self, batch: Batch) -> Tensor:
        """Returns what the first step gets of the target.  # [batch, length, hidden]"""

    @abstractmethod
    def begin(self, hidden: Tensor, embeds: Tensor) -> Tensor:
        """Returns the residual stream before the first layer."""

    @abstractmethod
    def end(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what the next step gets, and what the head is applied to."""

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding[tokens]

    def first_embeds(self, tokens: Tensor) -> Tensor:
        """Returns what the first step gets of the tokens.  # [batch, length, hidden]"""
        return self.embed(tokens.roll(-1, 1))

    def unroll(
        self,
        batch: Batch,
        num_steps: int,
        share: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Iterator[Step]:
        """Yields the steps.

        Args:
            share: How many of the rows take part in the steps behind the first: they are
                independent of each other, so a sample of them teaches as well as all.
        """
        length = batch.tokens.shape[1]
        rows, valid = batch.rows, batch.valid
        columns = torch.arange(rows.shape[1], device=rows.device).expand_as(rows)

        hidden = self.conditions(batch)
        embeds = self.first_embeds(batch.tokens)
        x = self.begin(hidden, embeds)
        rotation = self.rotary(torch.arange(length, device=x.device).expand(batch.tokens.shape))
        *lower, last = [(cast(DecoderLayer, layer), Memory()) for layer in self.layers]
        for layer, memory in lower:
            layer.remember(x, embeds, rotation, memory)
            x = layer(x, embeds, rotation, memory, None, later=False)
        top, memory = last
        top.remember(x, embeds, rotation, memory)
        x = top(take(x, rows), take(embeds, rows), self.rotary(rows), memory, rows, later=False)
        hidden, output = self.end(x)
        yield Step(0, columns, rows, valid, output)

        if num_steps > 1 and share < 1.0:
            columns = sample(valid, share, generator)
            rows, valid = rows.gather(1, columns), valid.gather(1, columns)
            hidden = take(hidden, columns)
        ends = batch.lengths[:, None]
        for index in range(1, num_steps):
            at = (rows + 1 + index).clamp(max=length - 1)
            embeds = self.embed(batch.tokens.gather(1, at))
            rotation = self.rotary(rows + index)
            x = self.begin(hidden, embeds)
            for layer, memory in (*lower, last):
                x = layer(x, embeds, rotation, memory, rows, later=True)
            hidden, output = self.end(x)
            yield Step(index, columns, rows, valid & (rows + 2 + index < ends), output)


def take(x: Tensor, rows: Tensor) -> Tensor:
    """Returns the given rows of each sequence.  # [batch, rows, hidden]"""
    return x.gather(1, rows[..., None].expand(-1, -1, x.shape[-1]))


def sample(valid: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    """Returns the columns of a random sample of each sequence's valid rows."""
    score = torch.rand(valid.shape, generator=generator).to(valid.device)
    size = max(1, round(valid.shape[1] * share))
    return torch.where(valid, score, 2.0).argsort(1)[:, :size].sort(1).values


class FirstLayer(DecoderLayer):
    """EAGLE-3's layer, whose attention sees the embedding beside the hidden state."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        attention = type(self.self_attn)(shape, 2 * shape.hidden_size)
        self.self_attn = attention
        self.hidden_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def attention_input(self, x: Tensor, embeds: Tensor | None) -> Tensor:
        assert embeds is not None
        return torch.cat([self.input_layernorm(embeds), self.hidden_norm(x)], -1)


class Eagle3(Autoregressive):
    """EAGLE-3 with a norm for each auxiliary state (``fc_norm``, from EAGLE-3.1)."""

    def __init__(self, shape: Shape, embedding: Tensor, num_aux: int, num_layers: int = 1) -> None:
        super().__init__(shape, embedding)
        size = shape.hidden_size
        self.fc_norm = nn.ModuleList(RMSNorm(size, shape.rms_norm_eps) for _ in range(num_aux))
        self.fc = nn.Linear(num_aux * size, size, bias=False)
        self.layers = nn.ModuleList(
            DecoderLayer(shape) if index else FirstLayer(shape) for index in range(num_layers)
        )
        self.norm = RMSNorm(size, shape.rms_norm_eps)

    def conditions(self, batch: Batch) -> Tensor:
        parts = batch.aux.chunk(len(self.fc_norm), -1)
        normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
        out: Tensor = self.fc(torch.cat(normed, -1))
        return out

    def begin(self, hidden: Tensor, embeds: Tensor) -> Tensor:
        return hidden

    def end(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.norm(x)

    @torch.no_grad()
    def start_from(self, target: Target, samples: Iterable[Batch]) -> None:
        """Starts as the linear regression of the target's next state, see ``head_start``.

        The auxiliary states come in through ``fc``; the embedding through the first layer's
        attention, of which some heads see their own row only. All other parts are the target's last
        layers, whose outputs are made small.
        """
        size, width = self.shape.hidden_size, self.shape.head_dim
        samples = list(samples)

        def features(batch: Batch) -> Tensor:
            aux = take(batch.aux, batch.rows)
            parts = torch.cat([unit(part) for part in aux.chunk(len(self.fc_norm), -1)], -1)
            return torch.cat([parts, unit(self.embed(batch.tokens.gather(1, batch.rows + 1)))], -1)

        best = regress(samples, features, lambda batch: take(batch.final, batch.rows + 1))
        # The last norm multiplies by its weight; the length before it is free.
        best = best / target.norm.float()
        inputs = torch.cat([features(batch)[batch.valid] for batch in samples[:4]])
        best = best / (inputs @ best).pow(2).mean().sqrt()
        start = len(best) - size
        self.fc.weight.copy_(best[:start].T)

        first = target.num_layers - len(self.layers)
        for index, layer in enumerate(cast(DecoderLayer, one) for one in self.layers):
            tensors = {name: value.float() for name, value in target.layer(first + index).items()}
            if index == 0:
                tensors["hidden_norm.weight"] = tensors.pop("input_layernorm.weight")
                for name in ("q_proj", "k_proj", "v_proj"):
                    weight = tensors[f"self_attn.{name}.weight"]
                    beside = torch.randn_like(weight) * 0.02
                    tensors[f"self_attn.{name}.weight"] = torch.cat([beside, weight], -1)
                tensors["input_layernorm.weight"] = torch.ones(size)
            _start_layer(layer, tensors)
            layer.self_attn.o_proj.weight.mul_(SMALL)
            layer.mlp.down_proj.weight.mul_(SMALL)
        attention = cast(DecoderLayer, self.layers[0]).self_attn
        group = attention.num_heads // attention.num_kv_heads
        heads = [index * group for index in range(attention.num_kv_heads)][:NUM_OWN_ROW]
        norm = cast(FirstLayer, self.layers[0]).hidden_norm.weight
        hidden = unit(inputs[:, :start] @ best[:start]) * norm
        seen = torch.cat([inputs[:, start:], hidden], -1)
        own_row(attention, self.rotary.frequencies, heads, constant_direction(seen))
        left, strength, right = torch.linalg.svd(best[start:], full_matrices=False)
        for number, head in enumerate(heads):
            part = slice(number * width, (number + 1) * width)
            values = slice(head // group * width, (head // group + 1) * width)
            attention.v_proj.weight[values] = 0.0
            attention.v_proj.weight[values, :size] = (left[:, part] * strength[part].sqrt()).T
            out = right[part] * strength[part].sqrt()[:, None]
            attention.o_proj.weight[:, head * width : (head + 1) * width] = out.T
        self.norm.weight.copy_(target.norm)


class Mtp(Autoregressive):
    """One multi-token-prediction block behind the target's last layer, as in MiMo.

    Two things are as vLLM does them (``mimo_mtp.py``): the embedding is 0 at position 0, and the
    next step gets the hidden state behind ``final_layernorm``.
    """

    target_norm: Tensor  # [hidden]

    def __init__(self, shape: Shape, embedding: Tensor, target_norm: Tensor) -> None:
        super().__init__(shape, embedding)
        self.register_buffer("target_norm", target_norm, persistent=False)
        size, eps = shape.hidden_size, shape.rms_norm_eps
        self.token_layernorm = RMSNorm(size, eps)
        self.hidden_layernorm = RMSNorm(size, eps)
        self.input_proj = nn.Linear(2 * size, size, bias=False)
        self.layers = nn.ModuleList([DecoderLayer(shape)])
        self.final_layernorm = RMSNorm(size, eps)

    def conditions(self, batch: Batch) -> Tensor:
        # vLLM hands over the state before the target's last norm (mimo.py). ``hidden_layernorm``
        # comes next, to which a state without its length is the same.
        return batch.final / self.target_norm

    def begin(self, hidden: Tensor, embeds: Tensor) -> Tensor:
        both = torch.cat([self.hidden_layernorm(hidden), self.token_layernorm(embeds)], -1)
        out: Tensor = self.input_proj(both)
        return out

    def end(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.final_layernorm(x)
        return out, out

    def first_embeds(self, tokens: Tensor) -> Tensor:
        embeds = super().first_embeds(tokens)
        embeds[:, 0] = 0.0
        return embeds

    @torch.no_grad()
    def start_from(self, target: Target, samples: Iterable[Batch]) -> None:
        """Starts as the linear regression of the target's next state, see ``head_start``, with the
        target's last layer behind it, whose outputs are made small."""

        def features(batch: Batch) -> Tensor:
            state = unit(take(self.conditions(batch), batch.rows))
            return torch.cat([state, unit(self.embed(batch.tokens.gather(1, batch.rows + 1)))], -1)

        samples = list(samples)
        best = regress(samples, features, lambda batch: take(batch.final, batch.rows + 1))
        best = best / target.norm.float()
        inputs = torch.cat([features(batch)[batch.valid] for batch in samples[:4]])
        best = best / (inputs @ best).pow(2).mean().sqrt()
        self.input_proj.weight.copy_(best.T)
        layer = cast(DecoderLayer, self.layers[0])
        tensors = target.layer(target.num_layers - 1)
        _start_layer(layer, tensors)
        layer.self_attn.o_proj.weight.mul_(SMALL)
        layer.mlp.down_proj.weight.mul_(SMALL)
        self.final_layernorm.weight.copy_(target.norm)


def _start_layer(layer: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Loads a target's layer. What it has beside a Llama's, like Qwen3's norms of queries and keys,
    is left out: it is only a start."""
    known = layer.state_dict().keys()
    layer.load_state_dict({name: value.float() for name, value in tensors.items() if name in known})
