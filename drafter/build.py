"""From a drafter's configuration to its draft model."""

from __future__ import annotations

from paceline.drafter.config import ROW_METHODS, DrafterConfig
from paceline.drafter.model import DraftModel
from paceline.drafter.ngram import NgramDrafter
from paceline.drafter.scripted import ScriptedDrafter
from paceline.drafter.suffix import SuffixDrafter


def build_draft_model(config: DrafterConfig, target_dtype: str, target: str = "") -> DraftModel:
    """Returns the loaded draft model that ``config`` names.

    Args:
        target: The target's folder or hub id, for methods that work from its states.

    Raises:
        UserError: it cannot be loaded as configured.
    """
    if config.method == "ngram":
        return NgramDrafter(config.prompt_lookup_min, config.prompt_lookup_max)
    if config.method == "suffix":
        return SuffixDrafter(config)
    if config.method == "scripted":
        return ScriptedDrafter(config)
    if config.method in ROW_METHODS:
        # Only now: a drafter without a model needs no torch.
        from paceline.drafter.build_rows import build_row_drafter

        return build_row_drafter(config, target, target_dtype)
    assert config.method == "draft_model", "checked by DrafterConfig"
    from paceline.drafter.draft_model import CausalLMDrafter

    model = CausalLMDrafter(config, config.dtype or target_dtype)
    model.load()
    return model
