"""What can be said about a drafter before anything heavy is loaded."""

from __future__ import annotations

import os
from pathlib import Path

from paceline import models
from paceline.cards import Card, read_card
from paceline.drafter.config import METHODS, DrafterConfig
from paceline.drafter.scripted import answers_path
from paceline.errors import ConfigError, ModelError


def check_drafter(config: DrafterConfig, target: str, target_dtype: str) -> None:
    """Checks the draft's folder, and its tokenizer against that of the folder ``target``.

    Raises:
        ConfigError: a scripted draft has no answers to follow, or the draft's card says that it
            drafts by another method.
        ModelError: the draft is missing or truncated, or has another tokenizer than the target.
    """
    if config.method == "scripted":
        answers_path(config)
    if config.model is None:
        return
    resolved = models.resolve(config.model, config.dtype or target_dtype)
    card = read_card(resolved)
    if card is not None and card.method != config.method:
        raise ConfigError(
            f"drafter {config.name}: method is {config.method}, but {config.model} is a draft for "
            f"{card.method}; {_advice(card)}"
        )
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


def other_target(config: DrafterConfig, target: str, resolved: str, target_dtype: str) -> str:
    """Returns the target that the draft was trained for, as its card says; "" if it is this one.

    Args:
        target: The configured one's name.
        resolved: Its folder or hub id.
    """
    if config.model is None:
        return ""
    card = read_card(models.resolve(config.model, config.dtype or target_dtype))
    if card is None:
        return ""
    spec = models.ALIASES.get(card.target)
    same = {card.target, spec.hub_id if spec else card.target}
    # A folder tells by its name, or by that of the alias in the cache, which is ALIAS-DTYPE.
    names = {target, Path(resolved).name, Path(resolved).name.removesuffix(f"-{target_dtype}")}
    same |= {name.rpartition("/")[2] for name in same}
    return "" if same & names else card.target


def _advice(card: Card) -> str:
    if card.method in METHODS:
        return f"set method to {card.method}"
    return f"name another one, since {card.method} is no method of drafters yet"
