"""What can be said about a drafter before anything heavy is loaded."""

from __future__ import annotations

import os

from paceline import models
from paceline.drafter.config import DrafterConfig
from paceline.drafter.scripted import answers_path
from paceline.errors import ModelError


def check_drafter(config: DrafterConfig, target: str, target_dtype: str) -> None:
    """Checks the draft's folder, and its tokenizer against that of the folder ``target``.

    Raises:
        ConfigError: a scripted draft has no answers to follow.
        ModelError: the draft is missing or truncated, or has another tokenizer than the target.
    """
    if config.method == "scripted":
        answers_path(config)
    if config.model is None:
        return
    resolved = models.resolve(config.model, config.dtype or target_dtype)
    if not (os.path.isdir(resolved) and os.path.isdir(target)):
        return  # a hub id: the handshake compares what was loaded
    draft, wanted = models.tokenizer_fingerprint(resolved), models.tokenizer_fingerprint(target)
    if draft and wanted and draft != wanted:
        raise ModelError(
            f"drafter {config.name}: the draft {config.model} has another tokenizer than the "
            "target; use a draft trained with the target's tokenizer"
        )
    if draft and wanted:
        return  # equal tokenizers: sizes may differ by padding rows
    sizes = [models.read_config(path).get("vocab_size") for path in (resolved, target)]
    if sizes[0] != sizes[1]:
        raise ModelError(
            f"drafter {config.name}: the draft {config.model} has a vocabulary of {sizes[0]} "
            f"tokens and the target one of {sizes[1]}; use a draft with the target's vocabulary"
        )
