"""Drafts that fill a block of mask tokens in one pass: DFlash and DSpark.

DFlash: arXiv 2602.06036; vllm/model_executor/models/qwen3_dflash.py. DSpark:
vllm/model_executor/models/qwen3_dspark.py and speculators 0.9.0, models/dspark.

Row i has the target's states up to position i and knows the token at i + 1: the anchor. The states
enter as keys and values only, ``hidden_norm(fc(states))`` in every layer; the block is the anchor
and behind it mask tokens, at positions i + 1, i + 2, ..., which see those keys and all of the
block. DFlash reads the tokens off the masks, each at its own position. DSpark reads them off the
anchor and the masks, each at the position before, and adds to a slot's logits a bias that the
token before gives: a low-rank Markov chain.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from paceline.training.corpus import Batch
from paceline.training.layers import MLP, Attention, RMSNorm, Rotary
from paceline.training.target import Shape

KeysValues = tuple[Tensor, Tensor]


class BlockAttention(Attention):
    def across(self, q: Tensor, context: KeysValues, block: KeysValues, rows: Tensor) -> Tensor:
        """Attends from blocks' slots to the context up to the block's row and to the block.

        Args:
            q: Queries of s slots of each block.  # [batch, heads, blocks * s, head_dim]
            context: # [batch, kv_heads, length, head_dim]
            block: Of all n slots.  # [batch, kv_heads, blocks * n, head_dim]
            rows: The last position of the context that each block sees.  # [batch, blocks]

        Returns: [batch, blocks * s, hidden]
        """
        batch, num_blocks = rows.shape
        length = context[0].shape[2]
        kv_heads, group = self.num_kv_heads, self.num_heads // self.num_kv_heads
        # A block's queries beside each other, of all heads that share a key.
        q = (q * self.head_dim**-0.5).view(batch, kv_heads, group, num_blocks, -1, self.head_dim)
        q = q.transpose(2, 3).reshape(batch, kv_heads, num_blocks, -1, self.head_dim)
        keys, values = (x.reshape(batch, kv_heads, num_blocks, -1, self.head_dim) for x in block)
        seen = (q.flatten(2, 3) @ context[0].transpose(-1, -2)).view(*q.shape[:4], length)
        hidden = torch.arange(length, device=q.device) > rows[..., None]  # [batch, blocks, length]
        seen = seen.masked_fill(hidden[:, None, :, None], -torch.inf)
        weights = torch.cat([seen, q @ keys.transpose(-1, -2)], -1).softmax(-1)
        out = (weights[..., :length].flatten(2, 3) @ context[1]).view(q.shape)
        out = out + weights[..., length:] @ values
        out = out.view(batch, kv_heads, num_blocks, group, -1, self.head_dim)
        return self._out(out.permute(0, 1, 3, 2, 4, 5).flatten(3, 4).flatten(1, 2))


class BlockLayer(nn.Module):
    """A layer of Qwen3's kind, whose context comes from outside."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = BlockAttention(shape, shape.hidden_size, qk_norm=True)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = MLP(shape)

    def forward(
        self,
        x: Tensor,  # [batch, blocks, slots, hidden]
        context: KeysValues,
        positions: Tensor,  # [batch, blocks, slots]
        rotary: Rotary,
        rows: Tensor,
        *,
        asked: slice,
    ) -> Tensor:
        """Returns the residual stream of the slots that are asked: others are only seen."""
        inputs = self.input_layernorm(x)
        block = self.self_attn.keys_values(inputs.flatten(1, 2), rotary(positions.flatten(1)))
        asking = positions[..., asked].flatten(1)
        q = self.self_attn.queries(inputs[..., asked, :].flatten(1, 2), rotary(asking))
        x = x[..., asked, :]
        x = x + self.self_attn.across(q, context, block, rows).view(x.shape)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class DFlash(nn.Module):
    """The body; its head is a part of the target's."""

    first_slot = 1
    """The slot that drafts first: the anchor of DFlash drafts nothing."""
    embedding: Tensor  # [vocab, hidden], the target's
    aux_scale: Tensor  # [A * hidden]

    def __init__(
        self, shape: Shape, embedding: Tensor, num_aux: int, mask_token: int, num_layers: int = 1
    ) -> None:
        super().__init__()
        size, eps = shape.hidden_size, shape.rms_norm_eps
        self.shape, self.mask_token = shape, mask_token
        self.rotary = Rotary(shape)
        self.fc = nn.Linear(num_aux * size, size, bias=False)
        self.hidden_norm = RMSNorm(size, eps)
        self.layers = nn.ModuleList(BlockLayer(shape) for _ in range(num_layers))
        self.norm = RMSNorm(size, eps)
        self.register_buffer("embedding", embedding, persistent=False)
        # The states' scales differ by their layers, and Muon's steps are alike in all directions:
        # fc learns behind this factor, and an export multiplies it into fc.
        self.register_buffer("aux_scale", torch.ones(num_aux * size))

    def _layers(self) -> list[BlockLayer]:
        return [cast(BlockLayer, layer) for layer in self.layers]

    def context(self, aux: Tensor) -> Tensor:
        scaled = aux * self.aux_scale.to(aux.dtype)
        out: Tensor = self.hidden_norm(self.fc(scaled))
        return out

    def forward(
        self, batch: Batch, rows: Tensor, num_tokens: int, num_read: int | None = None
    ) -> Tensor:
        """Returns what the head is applied to, for the drafts behind each row's anchor.

        Args:
            rows: # int64 [batch, blocks]
            num_tokens: Drafts that a block has slots for: no more than needed, as when served.
            num_read: Drafts that are read, the first ones; default: all.

        Returns: [batch, blocks, num_read, hidden]
        """
        num_slots = self.first_slot + num_tokens
        read = slice(self.first_slot, self.first_slot + (num_read or num_tokens))
        context = self.context(batch.aux)
        length = context.shape[1]
        rotation = self.rotary(torch.arange(length, device=rows.device).expand(context.shape[:2]))
        tokens = rows.new_full((*rows.shape, num_slots), self.mask_token)
        tokens[..., 0] = batch.tokens.gather(1, rows + 1)
        positions = rows[..., None] + 1 + torch.arange(num_slots, device=rows.device)
        x: Tensor = self.embedding[tokens]
        for index, layer in enumerate(self._layers()):
            asked = slice(None) if index < len(self.layers) - 1 else read
            states = layer.self_attn.keys_values(context, rotation)
            x = layer(x, states, positions, self.rotary, rows, asked=asked)
        out: Tensor = self.norm(x)
        return out


class MarkovHead(nn.Module):
    """The bias that a token gives to the logits behind it: ``markov_w2(markov_w1[token])``."""

    def __init__(self, vocab_size: int, draft_vocab_size: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab_size, bias=False)
        nn.init.normal_(self.markov_w1.weight, std=0.01)


class ConfidenceHead(nn.Module):
    """The logit of the probability that a slot's token is accepted."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(size, 1)


class DSpark(DFlash):
    """DFlash's body, read one slot earlier, with the Markov and the confidence head."""

    first_slot = 0

    def __init__(
        self,
        shape: Shape,
        embedding: Tensor,
        num_aux: int,
        mask_token: int,
        draft_vocab_size: int,
        num_layers: int = 1,
        markov_rank: int = 64,
    ) -> None:
        super().__init__(shape, embedding, num_aux, mask_token, num_layers)
        self.markov_head = MarkovHead(shape.vocab_size, draft_vocab_size, markov_rank)
        self.confidence_head = ConfidenceHead(shape.hidden_size + markov_rank)
