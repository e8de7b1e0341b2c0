"""Prompts that a draft is measured on must not be among those that it is trained on.

Texts are compared as words, without case and punctuation: two that have a run of 13 words in common
are taken to be the same, as is usual for language models' evaluation sets since GPT-3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

RUN = 13
"""Words in a row that nobody writes twice by chance."""

_WORD = re.compile(r"\w+")


class HeldOut:
    """The texts that are held out."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._runs: set[tuple[str, ...]] = set()
        for text in texts:
            self._runs.update(_runs(text))

    def shares(self, text: str) -> bool:
        """Whether a run of the text's words is in a held-out text; one that is shorter than a run
        counts as a whole."""
        return any(run in self._runs for run in _runs(text))


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    if words:
        for start in range(max(1, len(words) - RUN + 1)):
            yield tuple(words[start : start + RUN])
