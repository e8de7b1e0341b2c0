"""What a draft's model card says of it: for which target it is, and how it drafts.

A card is the README.md of a model folder, as on the Hugging Face hub: YAML between two lines of
dashes, then text for people. What Paceline needs to know stands in the YAML under ``paceline``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from paceline.errors import ModelError

CARD_FILE = "README.md"

Method = Literal["dflash", "draft_model", "dspark", "eagle3", "mtp"]


class Card(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The block ``paceline`` of a draft's card."""

    name: str
    """The draft's, and of its folder: its alias where it is shipped."""
    target: str
    """The model that it was trained for: an alias or a hub id."""
    method: Method
    """How it drafts, in vLLM's and Paceline's words."""
    num_speculative_tokens: int
    """K that it was trained for."""
    mean_acceptance_length: float | None = None
    """Greedy, over all held-out prompts, at that K, the bonus token included."""


def read_card(folder: str | Path) -> Card | None:
    """Reads the card of a model folder; None where it has none, or one that is no draft's of ours.

    Raises:
        ModelError: there is a block ``paceline``, but it is not what it should be.
    """
    file = Path(folder) / CARD_FILE
    try:
        values = yaml.safe_load(_front_matter(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return None  # somebody else's README may be anything
    if not isinstance(values, dict) or "paceline" not in values:
        return None
    try:
        return msgspec.convert(values["paceline"], Card)
    except msgspec.ValidationError as error:
        raise ModelError(
            f"the block 'paceline' of {file} is wrong ({error}): copy the draft's folder again"
        ) from None


def card_text(front_matter: dict[str, Any], card: Card, text: str) -> str:
    """Returns a whole card: the front matter, the block ``paceline`` in it, and the text."""
    values = {**front_matter, "paceline": msgspec.to_builtins(card)}
    return f"---\n{yaml.safe_dump(values, sort_keys=False, allow_unicode=True)}---\n\n{text}"


def _front_matter(text: str) -> str:
    lines = text.splitlines()
    if not lines or lines[0].strip() != "---":
        return ""
    end = next((i for i, line in enumerate(lines[1:], start=1) if line.strip() == "---"), 0)
    return "\n".join(lines[1:end])
