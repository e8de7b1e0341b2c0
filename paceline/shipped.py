"""The drafts that come with Paceline: the folders of ``models/`` beside the code.

What is there is found there: each folder is a draft, named by its folder, described by its card.
A wheel carries none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.cards import CARD_FILE, Card, read_card
from paceline.errors import ModelError
from paceline.model_folder import check_folder

FOLDER = Path(__file__).resolve().parents[1] / "models"

NO_FOLDER = (
    "this installation has no shipped drafts, which only a checkout of the repository carries: "
    "install Paceline from one (pip install -e .), or name a draft's folder"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShippedDraft:
    """One of them, whole or not."""

    alias: str
    folder: Path
    card: Card | None
    """None: the card cannot be read."""
    problem: str
    """Why it cannot be used, in one sentence; "" if it can."""

    @property
    def size_mb(self) -> float:
        """Of all its files, in millions of bytes."""
        return sum(file.stat().st_size for file in self.folder.iterdir() if file.is_file()) / 1e6


def have_folder() -> bool:
    """Whether this installation carries drafts at all.

    In a wheel's surroundings a folder of this name would be another project's: a checkout has our
    pyproject.toml beside it.
    """
    return FOLDER.is_dir() and (FOLDER.parent / "pyproject.toml").is_file()


def list_drafts() -> list[ShippedDraft]:
    """Every shipped draft, by name; a damaged one with its problem."""
    if not have_folder():
        return []
    folders = sorted(path for path in FOLDER.iterdir() if path.is_dir())
    return [_look_at(path) for path in folders if not path.name.startswith(".")]


def find(alias: str) -> ShippedDraft | None:
    """The shipped draft of that alias, whole or not; None if there is none."""
    return next((draft for draft in list_drafts() if draft.alias == alias), None)


def usable_folder(draft: ShippedDraft) -> Path:
    """Raises ModelError unless the draft is whole."""
    if draft.problem:
        raise ModelError(f"the shipped draft {draft.alias} cannot be used: {draft.problem}")
    return draft.folder


def _look_at(folder: Path) -> ShippedDraft:
    card, problem = None, ""
    try:
        card = read_card(folder)
        check_folder(folder)
        if card is None:
            problem = (
                f"{folder / CARD_FILE} is no model card with a block 'paceline': restore it, for "
                "example with git checkout"
            )
        elif card.name != folder.name:
            problem = f"its folder is {folder}, but its card is that of {card.name}: rename it"
    except ModelError as error:
        problem = str(error)
    return ShippedDraft(alias=folder.name, folder=folder, card=card, problem=problem)
