"""Native multi-token prediction: a block that was trained with its target drafts for it.

DeepSeek-V3 Technical Report (arXiv 2412.19437). vLLM has it in
vllm/model_executor/models/deepseek_mtp.py, glm4_moe_mtp.py, qwen3_next_mtp.py, qwen3_5_mtp.py and
mimo_mtp.py; how they differ is in mtp_layout.py. Embedding and head are always the target's.

Shape legend: N rows of the target, H hidden size, R requests, Q entries of a request, V rows of the
head, D head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.drafter.checkpoint import Checkpoint
from paceline.drafter.draft_kind import DraftKind
from paceline.drafter.layers import Attention, DecoderLayer, LayerShape, RMSNorm, Rotary, View
from paceline.drafter.mtp_layout import MtpLayout, block_tensors, read_layout
from paceline.drafter.row_needs import row_needs
from paceline.drafter.sequential import Piece, SequentialDrafter
from paceline.drafter.target_parts import TargetParts
from paceline.errors import ModelError


class OffsetRMSNorm(RMSNorm):
    """Multiplies by 1 + its weight, as Qwen3-Next's norms do."""

    def forward(self, x: Tensor) -> Tensor:
        normed = functional.rms_norm(x.float(), x.shape[-1:], eps=self._eps)
        # Added in float32: 1 + a small weight is not the same in 16 bits.
        return (normed * (1.0 + self.weight.float())).to(x.dtype)


class GatedAttention(Attention):
    """Attention as in Qwen3-Next: each head's output has a gate beside its query."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape, 0)
        width = 2 * shape.num_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, width, bias=shape.qkv_bias)
        self.q_norm = OffsetRMSNorm(shape.head_dim, shape.eps)
        self.k_norm = OffsetRMSNorm(shape.head_dim, shape.eps)

    def forward(self, x: Tensor, view: View) -> Tensor:  # [R, Q, H]
        both = self.q_proj(x).unflatten(-1, (self._heads, 2 * self._head_dim))
        queries, gates = both.chunk(2, dim=-1)  # [R, Q, heads, D] each
        out: Tensor = self.o_proj(self.attend(queries, x, view) * gates.flatten(2).sigmoid())
        return out


class GatedLayer(DecoderLayer):
    """A full-attention layer of Qwen3-Next or Qwen3.5."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape, 0)
        self.input_layernorm = OffsetRMSNorm(shape.hidden_size, shape.eps)
        self.self_attn = GatedAttention(shape)
        self.post_attention_layernorm = OffsetRMSNorm(shape.hidden_size, shape.eps)


class MtpBlock(nn.Module):
    """The block's weights."""

    def __init__(self, layout: MtpLayout) -> None:
        super().__init__()
        shape, family = layout.shape, layout.family
        size, norm = shape.hidden_size, OffsetRMSNorm if family.is_qwen3_next else RMSNorm
        self._hidden_first = family.hidden_first
        self.token_norm = norm(size, shape.eps)
        self.hidden_norm = norm(size, shape.eps)
        self.projection = nn.Linear(2 * size, size, bias=False)
        self.layer = GatedLayer(shape) if family.is_qwen3_next else DecoderLayer(shape, 0)
        self.norm = norm(size, shape.eps)

    def forward(self, hidden: Tensor, embeds: Tensor, view: View) -> Tensor:  # [R, Q, H]
        """Args:
        hidden: Behind ``hidden_norm``.
        """
        parts = [self.token_norm(embeds), hidden]
        if self._hidden_first:
            parts.reverse()
        out: Tensor = self.layer(self.projection(torch.cat(parts, dim=-1)), view)
        return out


class MtpDrafter(SequentialDrafter):
    """Drafts with an MTP block, which stands in the target's checkpoint or alone in a folder."""

    def __init__(
        self,
        kind: DraftKind,
        draft: Checkpoint,
        target: TargetParts,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Loads the block.

        Args:
            draft: The target's own checkpoint, or a folder with the block and a config.
            target: On ``device``, in ``dtype``.

        Raises:
            ModelError: the block is of a kind that is not supported, or of another target.
        """
        layout = read_layout(kind, draft)
        if layout.shape.hidden_size != target.hidden_size:
            raise ModelError(
                f"the MTP block in {draft.folder} has hidden size {layout.shape.hidden_size}, but "
                f"the target's is {target.hidden_size}: use the block of this target"
            )
        with torch.device("meta"):
            block = MtpBlock(layout)
        weights = block_tensors(layout, draft, draft.tensors(device, dtype), block.state_dict())
        block.load_state_dict(weights, assign=True)
        self._block = block.eval().requires_grad_(False)
        self._family, self._target, self._dtype = layout.family, target, dtype
        self._first_scale = None
        if layout.family.before_norm:
            self._first_scale = _first_scale(self._block.hidden_norm.weight, target, draft)
        super().__init__(
            Rotary(layout.config, layout.shape.head_dim, device),
            device=device,
            max_length=layout.max_length,
        )
        self.needs = row_needs(kind, draft, target.config)
        self.hidden_size = target.hidden_size
        self.vocab_size = target.vocab_size

    def first_hidden(self, pieces: Sequence[Piece]) -> Tensor:
        """Behind ``hidden_norm``, as everything that goes into the block's hidden side is here."""
        final = torch.cat([piece.get("final") for piece in pieces])
        if self._first_scale is not None:
            return (final.float() * self._first_scale).to(self._dtype)
        out: Tensor = self._block.hidden_norm(final.to(self._dtype))
        return out

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        embeds = functional.embedding(tokens, self._target.embedding)
        if self._family.blanks_position_0:
            embeds = embeds.masked_fill(positions[..., None] == 0, 0.0)
        return embeds

    def run_layers(self, hidden: Tensor, embeds: Tensor, view: View) -> Tensor:
        out: Tensor = self._block(hidden, embeds, view)
        return out

    def finish(self, x: Tensor) -> tuple[Tensor, Tensor]:
        normed = self._block.norm(x)
        return self._block.hidden_norm(normed if self._family.feeds_back_normed else x), normed

    def logits(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._target.lm_head)

    def blank_rows(self, num_rows: int) -> Mapping[str, Tensor]:
        return {"final": torch.zeros(num_rows, self.hidden_size)}


def _first_scale(hidden_norm: Tensor, target: TargetParts, draft: Checkpoint) -> Tensor:
    """Returns what turns a row into what ``hidden_norm`` makes of the state before the last norm.

    The rows come from behind the last norm. Without its weights they are the state divided by its
    root mean square, which is what ``hidden_norm`` begins with, too; both have the same epsilon.
    float32, [H].
    """
    if (target.norm == 0).any():
        raise ModelError(
            f"the MTP block in {draft.folder} takes the target's state from before its last norm, "
            "which cannot be had from behind it, because the norm has weights of 0: use another "
            "method for this target"
        )
    return hidden_norm.float() / target.norm.float()
