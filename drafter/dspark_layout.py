"""DSpark's configs: DeepSpec's (``Qwen3DSparkModel``) and that of ``speculators`` (``dspark``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.drafter.block_layout import BlockLayout, ConfigReader, common, mask_token


@dataclass(frozen=True, slots=True, kw_only=True)
class DSparkLayout(BlockLayout):
    """DFlash's stack and two heads."""

    markov_rank: int
    has_confidence: bool
    confidence_sees_token: bool
    """Whether the confidence head sees the Markov embedding of the token before the slot."""
    num_candidates: int | None
    """The Markov head chooses among so many, the most probable ones without it; None: all."""


def dspark_layout(config: Mapping[str, Any]) -> DSparkLayout:
    """Reads ``config.json``.

    Raises:
        ModelError: a field is missing, or says something that is not supported.
    """
    reader = ConfigReader(config, "DSpark")
    kind = config.get("markov_head_type", "vanilla")
    reader.refuse({f"a Markov head of kind {kind}": kind != "vanilla"})
    from_anchor = config.get("sample_from_anchor", not reader.is_speculators)
    candidates = config.get("dspark_draft_topk")
    return DSparkLayout(
        **common(
            reader,
            mask_token=mask_token(reader),
            block_size=reader.checked("block_size", config.get("block_size")),
            first_slot=0 if from_anchor else 1,
            causal=reader.nested.get("causal"),
        ),
        markov_rank=reader.checked("markov_rank", config.get("markov_rank")),
        has_confidence=bool(config.get("enable_confidence_head", False)),
        confidence_sees_token=bool(config.get("confidence_head_with_markov", False)),
        num_candidates=candidates and reader.checked("dspark_draft_topk", candidates),
    )
