"""DSpark: a block draft whose tokens are chosen left to right.

DeepSpec (deepseek-ai); vllm/model_executor/models/qwen3_dspark.py and
vllm/v1/worker/gpu/spec_decode/dspark/speculator.py.

The block is DFlash's. To the logits of a slot a low-rank Markov head adds a bias that the token
before gives: one forward, then K small steps. DeepSpec's drafts read the anchor's slot, too, so
that a slot drafts the token behind its own position. A confidence head tells the probability that
a slot's token is accepted if those before it are.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from paceline.drafter.block import BlockDrafter, best
from paceline.drafter.checkpoint import Checkpoint
from paceline.drafter.dspark_layout import dspark_layout
from paceline.drafter.target_parts import TargetParts


class DSparkDrafter(BlockDrafter):
    """A DSpark draft in DeepSpec's or speculators' layout.

    The confidence of a draft is the probability that it and all before it are accepted; without a
    confidence head, its probability.
    """

    def __init__(
        self, draft: Checkpoint, target: TargetParts, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Loads the draft; arguments and errors are those of ``BlockDrafter``."""
        layout = dspark_layout(draft.config)
        super().__init__(layout, draft, target, device, dtype)
        weights, rank = self._weights, layout.markov_rank
        self._num_candidates = layout.num_candidates
        # Of each token of the target, and of each row of the head.
        self._before = weights.take("markov_head.markov_w1.weight", layout.vocab_size, rank)
        self._behind = weights.take("markov_head.markov_w2.weight", len(self._head), rank)
        self._confidence: tuple[Tensor, Tensor] | None = None
        self._confidence_sees_token = layout.confidence_sees_token
        if layout.has_confidence and "confidence_head.proj.weight" in weights:
            size = layout.shape.hidden_size + (rank if layout.confidence_sees_token else 0)
            self._confidence = (
                weights.take("confidence_head.proj.weight", 1, size).float(),
                weights.take("confidence_head.proj.bias", 1).float(),
            )

    def _choose(
        self, hidden: Tensor, anchors: Tensor, allowed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        logits = self._logits(hidden)  # [R, K, V]
        may_be = torch.ones_like(logits, dtype=torch.bool) if allowed is None else allowed
        if self._num_candidates is not None:
            candidates = logits.topk(self._num_candidates, dim=-1).indices
            may_be = may_be & torch.zeros_like(logits, dtype=torch.bool).scatter_(
                -1, candidates, True
            )
        may_be = may_be.expand_as(logits)
        token, found, known = anchors, [], []
        for step in range(hidden.shape[1]):
            known.append(functional.embedding(token, self._before))  # [R, rank]
            bias = functional.linear(known[-1], self._behind) * self._layout.logit_scale
            index, probability, finite = best(logits[:, step] + bias, may_be[:, step])
            token = self._token_ids[index]
            found.append((token, probability, finite))
        tokens, probabilities, finite = (
            torch.stack(columns, dim=1) for columns in zip(*found, strict=True)
        )
        if self._confidence is not None:
            probabilities = self._survival(hidden, torch.stack(known, dim=1))
            finite = finite & probabilities.isfinite()
        return tokens, probabilities, finite

    def _survival(self, hidden: Tensor, known: Tensor) -> Tensor:
        """Returns the probability that each draft is reached and accepted, [R, K]."""
        assert self._confidence is not None
        features = torch.cat([hidden, known], -1) if self._confidence_sees_token else hidden
        accepted = functional.linear(features.float(), *self._confidence)[..., 0].sigmoid()
        return accepted.cumprod(-1)
