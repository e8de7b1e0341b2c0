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

from paceline.training import lookup_start
from paceline.training.corpus import Batch
from paceline.training.head_start import (
    CODE_SIZE,
    GAIN,
    constant_direction,
    next_state,
    spare_directions,
    start_layer,
    take,
    through,
    unit,
    with_ridge,
)
from paceline.training.layers import DecoderLayer, Memory, RMSNorm, Rotary
from paceline.training.target import Shape, Target

NUM_CODED = 10
"""Batches from which codes are computed."""
EAGLE3_COPY = 12.0
"""Logit that the look-ups add together for what they found."""
MTP_COPY = 6.0
"""Less: the final state knows its own token less well."""
COPY_ROOM = 80.0
"""Of a value's room, what copying a token gets against the regression."""


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

    def normed(self, batch: Batch) -> Tensor:
        """Returns what ``fc`` gets before its norms have learned.  # [batch, length, A * hidden]"""
        return torch.cat([unit(part) for part in batch.aux.chunk(len(self.fc_norm), -1)], -1)

    @torch.no_grad()
    def start_from(self, target: Target, samples: Iterable[Batch]) -> None:
        """Starts as the linear regression of the target's next state, with a look-up beside it.

        The auxiliary states come in through ``fc``, and so does the code of their token, in
        directions that are spared for it. The embedding comes in through the first layer's
        attention, as far as its values have room.
        """
        size, attention = self.shape.hidden_size, cast(FirstLayer, self.layers[0]).self_attn
        samples = list(samples)

        def features(batch: Batch) -> Tensor:
            embeds = self.embed(batch.tokens.gather(1, batch.rows + 1))
            return torch.cat([take(self.normed(batch), batch.rows), unit(embeds)], -1)

        best, inputs = next_state(target, samples, features)
        of_states, of_embedding = best[:-size], best[-size:]
        states, embeds = inputs[:, :-size], inputs[:, -size:]
        code = lookup_start.codes(
            samples[:NUM_CODED], self.normed, target.embedding, attention.head_dim
        )
        spare = spare_directions(target, inputs @ best, attention.head_dim)
        fc = of_states - of_states @ spare @ spare.T + CODE_SIZE * code.of_state @ spare.T
        self.fc.weight.copy_(fc.T)
        for index, layer in enumerate(cast(DecoderLayer, one) for one in self.layers):
            start_layer(layer, target, target.num_layers - len(self.layers) + index)
        nn.init.ones_(cast(DecoderLayer, self.layers[0]).input_layernorm.weight)
        hidden = states @ fc
        length = hidden.pow(2).mean().sqrt()
        constant = constant_direction(torch.cat([embeds, unit(hidden)], -1))
        none = torch.zeros(size, attention.head_dim)
        copying = lookup_start.copying(target, samples)
        found = EAGLE3_COPY / GAIN * copying
        own = of_embedding - found
        # Values whose usual size is 1 hold most of what both need.
        square = torch.linalg.cholesky(with_ridge(embeds.T @ embeds / len(embeds), 1e-3)).T
        both = torch.cat([of_embedding, COPY_ROOM * copying], -1)
        num_values = attention.num_kv_heads * attention.head_dim
        left = torch.linalg.svd(square @ both, full_matrices=False)[0][:, :num_values]
        values = torch.linalg.solve(square, left)
        parts = (attention.num_kv_heads, attention.head_dim, size)
        lookup_start.look_up(
            attention,
            query=torch.cat([code.of_embedding, none]) - constant[:, None] * code.mean,
            key=torch.cat([none, spare * length / CODE_SIZE]),
            constant=constant,
            values=torch.cat([values, torch.zeros_like(values)]).T.reshape(*parts[:2], -1).mT,
            own=through(values, embeds, own).view(parts),
            found=through(values, embeds, found).view(parts),
            generator=torch.Generator().manual_seed(0),
        )
        self.norm.weight.copy_(target.norm * GAIN)


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
        """Starts as the linear regression of the target's next state, with a look-up beside it.

        Both are in ``input_proj``, and so are the codes of the state's and the embedding's token,
        in directions that are spared for them.
        """
        size, attention = self.shape.hidden_size, cast(DecoderLayer, self.layers[0]).self_attn
        samples = list(samples)

        def states(batch: Batch) -> Tensor:
            return unit(self.conditions(batch))

        def features(batch: Batch) -> Tensor:
            embeds = self.embed(batch.tokens.gather(1, batch.rows + 1))
            return torch.cat([take(states(batch), batch.rows), unit(embeds)], -1)

        best, inputs = next_state(target, samples, features)
        embeds = inputs[:, size:]
        width = attention.head_dim
        code = lookup_start.codes(samples[:NUM_CODED], states, target.embedding, width)
        spare = spare_directions(target, inputs @ best, 2 * width)
        of_state, of_embedding = spare[:, :width], spare[:, width:]
        found = MTP_COPY / GAIN * lookup_start.copying(target, samples)
        found = through(code.of_embedding, embeds, found)
        best[size:] -= code.of_embedding @ found
        best -= best @ spare @ spare.T
        best[:size] += CODE_SIZE * code.of_state @ of_state.T
        best[size:] += CODE_SIZE * code.of_embedding @ of_embedding.T
        self.input_proj.weight.copy_(best.T)
        layer = cast(DecoderLayer, self.layers[0])
        start_layer(layer, target, target.num_layers - 1)
        nn.init.ones_(layer.input_layernorm.weight)
        x = inputs @ best
        scale = x.pow(2).mean().sqrt() / CODE_SIZE
        constant = constant_direction(unit(x))
        parts = (attention.num_kv_heads, -1, -1)
        lookup_start.look_up(
            attention,
            query=of_embedding * scale - constant[:, None] * code.mean,
            key=of_state * scale,
            constant=constant,
            values=(of_embedding * scale).expand(parts),
            own=torch.zeros_like(found).expand(parts),
            found=(found / attention.num_kv_heads).expand(parts),
            generator=torch.Generator().manual_seed(0),
        )
        self.final_layernorm.weight.copy_(target.norm * GAIN)
