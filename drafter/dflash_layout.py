"""DFlash's configs: z-lab's (``DFlashDraftModel``) and that of ``speculators`` (``dflash``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.drafter.block_layout import BlockLayout, ConfigReader, common, mask_token


def dflash_layout(config: Mapping[str, Any]) -> BlockLayout:
    """Reads ``config.json``.

    Raises:
        ModelError: a field is missing, or says something that is not supported.
    """
    reader = ConfigReader(config, "DFlash")
    anchor = config.get("sample_from_anchor", reader.nested.get("sample_from_anchor"))
    reader.refuse({"sample_from_anchor true": anchor})
    causal = reader.nested.get("causal")
    if reader.is_speculators:
        # As vLLM 0.32 reads it: of all layers, where it is said at all.
        causal = not config.get("sliding_window_non_causal", True)
    return BlockLayout(
        **common(
            reader,
            mask_token=mask_token(reader),
            block_size=reader.checked("block_size", config.get("block_size")),
            first_slot=1,
            causal=causal,
        )
    )
