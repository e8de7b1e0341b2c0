"""What can be said about a drafter before anything heavy is loaded."""

from __future__ import annotations

import os
from pathlib import Path

from paceline import models
from paceline.cards import Card, read_card
from paceline.drafter.checkpoint import Checkpoint
from paceline.drafter.config import METHODS, ROW_METHODS, DrafterConfig
from paceline.drafter.draft_checks import Remark, check_pair
from paceline.drafter.draft_kind import DraftKind, kind_of, kinds_of
from paceline.drafter.draft_pair import Pair
from paceline.drafter.scripted import answers_path
from paceline.errors import ConfigError, ModelError


def check_drafter(
    config: DrafterConfig, target: str, target_dtype: str, max_model_len: int | None = None
) -> None:
    """Checks the draft's folder, and its tokenizer against that of the folder ``target``.

    Args:
        max_model_len: Tokens that a request may hold; None: as many as the target's config says.

    Raises:
        ConfigError: a scripted draft has no answers to follow, or the draft's card or its
            checkpoint says that it drafts by another method.
        ModelError: the draft is missing or truncated, or is not one for this target.
    """
    if config.method == "scripted":
        answers_path(config)
    if config.method in ROW_METHODS:
        for remark in draft_remarks(config, target, target_dtype, max_model_len):
            if remark.level == "fail":
                raise ModelError(f"drafter {config.name}: {remark.text}")
        return
    if config.model is None:
        return
    resolved = _resolved(config, target, target_dtype)
    if not (os.path.isdir(resolved) and os.path.isdir(target)):
        return  # a hub id: the handshake compares what was loaded
    _check_kind(config, resolved)
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


def draft_remarks(
    config: DrafterConfig, target: str, target_dtype: str, max_model_len: int | None = None
) -> list[Remark]:
    """Returns what the headers tell of a draft with rows and its target, the wrong things too.

    Raises:
        ConfigError: the draft's card or its checkpoint says that it drafts by another method.
        ModelError: a folder is missing or truncated, or is no draft's.
    """
    assert config.method in ROW_METHODS
    resolved = _resolved(config, target, target_dtype)
    if not (os.path.isdir(resolved) and os.path.isdir(target)):
        hub_id = target if os.path.isdir(resolved) else resolved
        return [Remark("warn", "model", f"{hub_id} is a hub id: it is looked at when it is loaded")]
    draft = Checkpoint(resolved)
    pair = Pair(
        kind=_kind(config, draft),
        draft=draft,
        target=Checkpoint(target),
        num_tokens=config.num_speculative_tokens,
        dtype=config.dtype or target_dtype,
        target_dtype=target_dtype,
        max_model_len=max_model_len,
        max_requests=config.max_requests,
        device=config.device,
    )
    return list(check_pair(pair))


def other_target(config: DrafterConfig, target: str, resolved: str, target_dtype: str) -> str:
    """Returns the target that the draft was trained for, as its card says, or else its config in
    speculators' format; "" if it is this one, or not told.

    Args:
        target: The configured one's name.
        resolved: Its folder or hub id.
    """
    if config.model is None:
        return ""
    trained_for = _trained_for(models.resolve(config.model, config.dtype or target_dtype))
    if not trained_for:
        return ""
    spec = models.ALIASES.get(trained_for)
    same = {trained_for, spec.hub_id if spec else trained_for}
    # A folder tells by its name, or by that of the alias in the cache, which is ALIAS-DTYPE.
    names = {target, Path(resolved).name, Path(resolved).name.removesuffix(f"-{target_dtype}")}
    same |= {name.rpartition("/")[2] for name in same}
    return "" if same & names else trained_for


def _trained_for(resolved: str) -> str:
    card = read_card(resolved)
    if card is not None:
        return card.target
    if not os.path.isdir(resolved):
        return ""
    written = models.read_config(resolved).get("speculators_config")
    verifier = written.get("verifier") if isinstance(written, dict) else None
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    # A path of the machine that it was trained on says nothing here.
    return name if isinstance(name, str) and name.count("/") == 1 and name[0] not in "./~" else ""


def _resolved(config: DrafterConfig, target: str, target_dtype: str) -> str:
    """The draft's folder or hub id; its card must not name another method."""
    if config.model is None:
        return target
    resolved = models.resolve(config.model, config.dtype or target_dtype)
    card = read_card(resolved)
    if card is not None and card.method != config.method:
        raise ConfigError(
            f"drafter {config.name}: method is {config.method}, but {config.model} is a draft for "
            f"{card.method}; {_advice(card)}"
        )
    return resolved


def _check_kind(config: DrafterConfig, resolved: str) -> None:
    """A causal model tells nothing in particular; a draft of another kind does."""
    draft = Checkpoint(resolved)
    if kinds_of(draft):
        _kind(config, draft)


def _kind(config: DrafterConfig, draft: Checkpoint) -> DraftKind:
    try:
        return kind_of(draft, config.method)
    except ConfigError as error:
        raise ConfigError(f"drafter {config.name}: {error}") from None


def _advice(card: Card) -> str:
    if card.method in METHODS:
        return f"set method to {card.method}"
    return f"name another one, since {card.method} is no method of drafters yet"
