"""A small language model of its own as the draft: it sees tokens only, never the target's states.

Leviathan et al., arXiv 2211.17192; trained on the target's distributions over text that the target
wrote, as in DistillSpec, arXiv 2310.08461.

Its layout is a plain Llama's. Only tokens of a draft vocabulary have a row in its head; the rows of
all others are 0, so they have the logit 0, and what they add to a softmax is their number.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.training.corpus import Batch
from paceline.training.head_loss import head_loss
from paceline.training.layers import DecoderLayer, Memory, RMSNorm, Rotary
from paceline.training.objective import Loss, Vocabulary, distributions
from paceline.training.target import Shape


class CausalLM(nn.Module):
    """Parameters are named as in a ``LlamaModel``, but for the head, which is cut."""

    def __init__(self, shape: Shape, num_layers: int, num_drafted: int) -> None:
        """``num_drafted`` is the size of the draft vocabulary."""
        super().__init__()
        self.shape = shape
        self.rotary = Rotary(shape)
        size = shape.hidden_size
        self.embed_tokens = nn.Embedding(shape.vocab_size, size)
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(num_layers))
        self.norm = RMSNorm(size, shape.rms_norm_eps)
        self.lm_head = nn.Parameter(torch.zeros(num_drafted, size))

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns what the head is applied to.

        Args:
            tokens: Padded on the right.  # int64 [batch, length]

        Returns: [batch, length, hidden]
        """
        x: Tensor = self.embed_tokens(tokens)
        rotation = self.rotary(torch.arange(tokens.shape[1], device=tokens.device)[None])
        for layer in (cast(DecoderLayer, one) for one in self.layers):
            memory = Memory()
            layer.remember(x, None, rotation, memory)
            x = layer(x, None, rotation, memory, None, later=False)
        out: Tensor = self.norm(x)
        return out


class CausalLMObjective:
    """Cross-entropy to the target's distribution at an answer's positions and some of its prompt's.

    The distribution is the target's over the draft vocabulary; positions whose text goes on with
    another token are left out.
    """

    def __init__(
        self, model: CausalLM, vocabulary: Vocabulary, *, prompt_share: float = 0.5, seed: int = 0
    ) -> None:
        """
        Args:
            prompt_share: Share of the prompts' positions that take part, a new choice each time.
        """
        self.model = model
        self.vocabulary = vocabulary
        self.num_zeros = model.shape.vocab_size - len(vocabulary.ids)
        self.prompt_share = prompt_share
        self.generator = torch.Generator().manual_seed(seed)

    def loss(self, batch: Batch) -> Loss:
        labels = self._labels(batch)
        answers = self._answers(batch)
        chosen = torch.rand(labels.shape, generator=self.generator).to(labels.device)
        taken = (labels >= 0) & (answers | (chosen < self.prompt_share))
        output = self.model(batch.tokens)[taken]
        head = self.vocabulary.head
        number = len(output)
        total, hits, _ = head_loss(
            output.to(head.dtype),
            self.model.lm_head,
            distributions(batch.final[taken], head),
            torch.arange(number, device=output.device),
            torch.full((number,), 1.0 / max(1, number), device=output.device),
            labels[taken],
            num_zeros=self.num_zeros,
        )
        in_answers = answers[taken]
        right = (hits & in_answers).sum() / batch.valid.sum().clamp(min=1)
        return Loss(total, [right])

    @torch.no_grad()
    def right(self, batch: Batch, num_steps: int) -> Tensor:
        output = self.model(batch.tokens)
        head = self.model.lm_head.to(self.vocabulary.head.dtype)
        best = [(row.to(head.dtype) @ head.T).max(-1) for row in output]
        drafted = torch.stack([one.indices for one in best])  # [batch, length]
        # At 0 or below, a token without a row in the head is drafted.
        is_one = torch.stack([one.values for one in best]) > 0.0
        hits = (drafted == self._labels(batch)) & is_one
        at = batch.rows[..., None] + 1 + torch.arange(num_steps, device=batch.rows.device)
        inside = at < batch.lengths[:, None, None] - 1
        at = at.clamp(max=hits.shape[1] - 1)
        found = hits.gather(1, at.flatten(1)).view(at.shape) & inside
        return torch.cumprod(found, -1).bool()

    def _labels(self, batch: Batch) -> Tensor:
        """The token behind each position, in the draft vocabulary, or -1.  # [batch, length]"""
        places = self.vocabulary.places.to(batch.tokens.device)
        following = functional.pad(batch.tokens[:, 1:], (0, 1))
        at = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        has_one = at < batch.lengths[:, None] - 1
        return torch.where(has_one, places[following], -1)

    def _answers(self, batch: Batch) -> Tensor:
        """Which positions hold a token that the target wrote.  # bool [batch, length]"""
        at = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        return at > batch.rows[:, :1]
