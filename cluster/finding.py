"""One line of what ``paceline doctor`` has found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from paceline.errors import UserError

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``ok``; ``warn``: runs, perhaps not as meant; ``fail``: does not run."""

    level: Level
    subject: str
    """A word or two."""
    text: str
    """What was found, and what to do where it is not ok."""

    def __str__(self) -> str:
        return f"{self.level:<5} {self.subject}: {self.text}"


def tried(subject: str, check: Callable[[], str]) -> Finding:
    """Returns what ``check`` says, or the ``UserError`` that it raises as a failure."""
    try:
        return Finding("ok", subject, check())
    except UserError as error:
        return Finding("fail", subject, str(error))
