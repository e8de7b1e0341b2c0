"""Prompts that a draft is measured on must not be among those that it is trained on.

Texts are compared as words, without case and punctuation: two that have a run of 13 words in common
are taken to be the same, as is usual for language models' evaluation sets since GPT-3. What many
held-out texts have in common ("reason step by step, and …") is how they ask, not what: it is left
out of the comparison.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

RUN = 13
"""Words in a row that nobody writes twice by chance."""

_PHRASE = 8
"""Words in a row that make a way of asking ..."""
_COMMON = 20
"""... if so many different held-out texts have them."""

_WORD = re.compile(r"\w+")


class HeldOut:
    """The texts that are held out."""

    def __init__(self, texts: Iterable[str]) -> None:
        every = {tuple(_WORD.findall(text.lower())) for text in texts}
        counts = Counter(phrase for words in every for phrase in set(_runs(words, _PHRASE)))
        self._phrases = {phrase for phrase, count in counts.items() if count >= _COMMON}
        self._runs = {run for words in every for run in _runs(self._strip(words), RUN)}

    def shares(self, text: str) -> bool:
        """Whether a run of the text's words is in a held-out text; one that is shorter than a run
        counts as a whole."""
        words = self._strip(tuple(_WORD.findall(text.lower())))
        return any(run in self._runs for run in _runs(words, RUN))

    def _strip(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the words that are in no common phrase."""
        if not self._phrases:
            return words
        asking = {
            position
            for start, phrase in enumerate(_runs(words, _PHRASE))
            if phrase in self._phrases
            for position in range(start, start + _PHRASE)
        }
        return tuple(word for position, word in enumerate(words) if position not in asking)


def _runs(words: tuple[str, ...], length: int) -> Iterator[tuple[str, ...]]:
    """Yields every run of that length; of fewer words, all of them."""
    if words:
        for start in range(max(1, len(words) - length + 1)):
            yield words[start : start + length]
