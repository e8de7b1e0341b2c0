"""EAGLE-3 and 3.1: a head of one or a few layers on the states of three or so of the target's.

Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time
Test" (arXiv 2503.01840). vLLM has it in vllm/model_executor/models/llama_eagle3.py and
qwen3_eagle3.py.

Shape legend: N rows of the target, A auxiliary states, T the target's hidden size, H the draft's,
R requests, Q entries of a request, V rows of the head.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.drafter.checkpoint import Checkpoint, names_problem
from paceline.drafter.draft_kind import DraftKind, draft_config
from paceline.drafter.eagle3_layout import Eagle3Layout, head_tensors, read_layout
from paceline.drafter.layers import DecoderLayer, LayerShape, RMSNorm, Rotary, View
from paceline.drafter.row_needs import stated_layers
from paceline.drafter.sequential import Piece, SequentialDrafter
from paceline.drafter.target_parts import TargetParts
from paceline.errors import ModelError

logger = logging.getLogger("paceline.drafter")


class FirstLayer(DecoderLayer):
    """The layer whose attention sees the token's embedding beside the hidden state."""

    def __init__(
        self, shape: LayerShape, *, window: int | None, norm_before_residual: bool
    ) -> None:
        super().__init__(shape, 0, input_size=2 * shape.hidden_size, window=window)
        self.hidden_norm = RMSNorm(shape.hidden_size, shape.eps)
        self._norm_before_residual = norm_before_residual

    def begin(self, hidden: Tensor, embeds: Tensor, view: View) -> Tensor:  # [R, Q, H]
        normed = self.hidden_norm(hidden)
        both = torch.cat([self.input_layernorm(embeds), normed], dim=-1)
        x = normed if self._norm_before_residual else hidden
        return self.behind_attention(x + self.self_attn(both, view))


class Eagle3Head(nn.Module):
    """The head's weights, named as in its checkpoint."""

    def __init__(self, layout: Eagle3Layout) -> None:
        super().__init__()
        shape = layout.shape
        size, taken, num_aux = shape.hidden_size, layout.target_hidden_size, 0
        self.has_fc, self.norm_output = layout.has_fc, layout.norm_output
        if layout.has_fc:
            num_aux = len(layout.needs.aux_layers)
            self.fc = nn.Linear(num_aux * taken, size, bias=False)
        self.input_norm: nn.Module = nn.Identity()
        if layout.norm_before_fc and num_aux:
            self.input_norm = RMSNorm(num_aux * taken, shape.eps)
        self.fc_norm = nn.ModuleList(
            RMSNorm(taken, shape.eps) for _ in range(num_aux if layout.fc_norm else 0)
        )
        first, *others = layout.windows
        self.layers = nn.ModuleList(
            [
                FirstLayer(shape, window=first, norm_before_residual=layout.norm_before_residual),
                *(DecoderLayer(shape, index, window=w) for index, w in enumerate(others, 1)),
            ]
        )
        self.norm = RMSNorm(size, shape.eps)
        self.lm_head = nn.Linear(size, layout.num_rows, bias=False)

    def project(self, aux: Tensor) -> Tensor:
        """Returns what the first step gets of the auxiliary states [N, A * T]: [N, H]."""
        aux = self.input_norm(aux)
        if self.fc_norm:
            parts = aux.chunk(len(self.fc_norm), dim=-1)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            aux = torch.cat(normed, dim=-1)
        out: Tensor = self.fc(aux)
        return out

    def run_layers(self, hidden: Tensor, embeds: Tensor, view: View) -> Tensor:
        first, *others = self.layers
        x = cast(FirstLayer, first).begin(hidden, embeds, view)
        for layer in others:
            x = layer(x, view)
        return x


class Eagle3Drafter(SequentialDrafter):
    """Drafts with a trained EAGLE-3 head."""

    def __init__(
        self,
        kind: DraftKind,
        draft: Checkpoint,
        target: TargetParts,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Loads the head.

        Args:
            target: On ``device``, in ``dtype``.

        Raises:
            ModelError: the checkpoint is not as its config says, or of another target.
        """
        layout = read_layout(kind, draft, target)
        if layout.has_fc and not stated_layers(kind, draft_config(draft)):
            logger.info(
                "the draft in %s does not say which layers' inputs it takes: they are %s, "
                "EAGLE-3's default",
                draft.folder,
                layout.needs.aux_layers,
            )
        self._head = _load_head(layout, draft, target, device, dtype)
        self._dtype, self._layout = dtype, layout
        tensors = draft.tensors(device, dtype)
        self._embedding = (
            tensors["embed_tokens.weight"] if layout.has_embedding else target.embedding
        )
        if self._embedding.shape[1] != layout.shape.hidden_size:
            raise ModelError(
                f"the draft in {draft.folder} computes with hidden size "
                f"{layout.shape.hidden_size}, but its embedding, its own or the target's, is of "
                f"size {self._embedding.shape[1]}: use a draft for this target"
            )
        token_ids = None
        # As in vLLM: a head with a row for each of the target's tokens needs no map.
        if "d2t" in tensors and layout.num_rows != target.vocab_size:
            token_ids = tensors["d2t"].long() + torch.arange(layout.num_rows, device=device)
        super().__init__(
            Rotary(layout.config, layout.shape.head_dim, device),
            device=device,
            max_length=layout.max_length,
            windows=set(layout.windows),
            token_ids=token_ids,
        )
        self.needs = layout.needs
        self.hidden_size = layout.target_hidden_size
        self.vocab_size = target.vocab_size
        """The target's: what the head does not have is never drafted."""

    def first_hidden(self, pieces: Sequence[Piece]) -> Tensor:
        if not self._layout.has_fc:
            return torch.cat([piece.get("final") for piece in pieces]).to(self._dtype)
        # The rows of a target that projects have no ``aux``. One multiplication for all others.
        is_raw = ["projected" not in piece.rows.names for piece in pieces]
        raw = [piece.get("aux") for piece, raw in zip(pieces, is_raw, strict=True) if raw]
        if raw:
            sizes = [len(part) for part in raw]
            projected = self._head.project(torch.cat(raw).to(self._dtype))
            made = iter(torch.split(projected, sizes))
        parts = [
            next(made) if raw_one else piece.get("projected").to(self._dtype)
            for piece, raw_one in zip(pieces, is_raw, strict=True)
        ]
        return torch.cat(parts)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return functional.embedding(tokens, self._embedding)

    def run_layers(self, hidden: Tensor, embeds: Tensor, view: View) -> Tensor:
        return self._head.run_layers(hidden, embeds, view)

    def finish(self, x: Tensor) -> tuple[Tensor, Tensor]:
        normed = self._head.norm(x)
        return (normed if self._head.norm_output else x), normed

    def logits(self, x: Tensor) -> Tensor:
        out: Tensor = self._head.lm_head(x) * self._layout.logit_scale
        return out

    def blank_rows(self, num_rows: int) -> Mapping[str, Tensor]:
        layout = self._layout
        if not layout.has_fc:
            return {"final": torch.zeros(num_rows, layout.target_hidden_size)}
        width = len(layout.needs.aux_layers) * layout.target_hidden_size
        return {"aux": torch.zeros(num_rows, width)}


def _load_head(
    layout: Eagle3Layout,
    draft: Checkpoint,
    target: TargetParts,
    device: torch.device,
    dtype: torch.dtype,
) -> Eagle3Head:
    with torch.device("meta"):
        head = Eagle3Head(layout)
    wanted: dict[str, Any] = head.state_dict()
    weights = head_tensors(draft.tensors(device, dtype), wanted)
    if not layout.has_lm_head:
        weights["lm_head.weight"] = target.lm_head
    if problem := names_problem(weights, wanted):
        raise ModelError(f"the draft in {draft.folder} {problem}: copy its folder again")
    for name, tensor in wanted.items():
        if tensor.shape != weights[name].shape:
            raise ModelError(
                f"the tensor {name} of the draft in {draft.folder} has the shape "
                f"{list(weights[name].shape)}, but by its config it is {list(tensor.shape)}: copy "
                "its folder again, or use a draft for this target"
            )
    head.load_state_dict(weights, assign=True)
    return head.eval().requires_grad_(False)
