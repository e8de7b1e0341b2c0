"""Texts of finished requests that later ones may draft from: bounded, least recently used out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice

from paceline.drafter.suffix_automaton import SuffixAutomaton

ANCHOR = 4
"""Tokens that a text must have in common with a request's ending: shorter ones meet by chance."""

MAX_CANDIDATES = 4
"""Texts that are searched for one draft, the latest ones first."""


class SuffixStore:
    """Finds texts by any ``ANCHOR`` tokens in a row that occur in them."""

    def __init__(self, max_texts: int, max_tokens: int) -> None:
        self._max_texts = max_texts
        self._max_tokens = max_tokens
        self.num_tokens = 0
        """Of all texts together."""
        self._texts: OrderedDict[int, tuple[Sequence[int], SuffixAutomaton]] = OrderedDict()
        """By number; the least recently used one first."""
        self._having: dict[tuple[int, ...], dict[int, None]] = {}
        """Anchor -> numbers of the texts that have it, ascending; a dict as an ordered set."""
        self._next_number = 0

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, tokens: Sequence[int], automaton: SuffixAutomaton) -> None:
        """Keeps a text that no longer changes, with its automaton.

        One that nobody could find, or that alone is too much, is not kept.
        """
        if not ANCHOR <= len(tokens) <= self._max_tokens:
            return
        self._texts[self._next_number] = (tokens, automaton)
        for anchor in _anchors(tokens):
            self._having.setdefault(anchor, {})[self._next_number] = None
        self._next_number += 1
        self.num_tokens += len(tokens)
        while len(self._texts) > self._max_texts or self.num_tokens > self._max_tokens:
            self._drop_oldest()

    def candidates(self, tokens: Sequence[int]) -> list[SuffixAutomaton]:
        """Returns automata of texts that have the last ``ANCHOR`` of ``tokens``; that is a use."""
        having = self._having.get(tuple(tokens[-ANCHOR:]), {})
        numbers = list(islice(reversed(having), MAX_CANDIDATES))
        for number in numbers:
            self._texts.move_to_end(number)
        return [self._texts[number][1] for number in numbers]

    def _drop_oldest(self) -> None:
        number, (tokens, _) = self._texts.popitem(last=False)
        self.num_tokens -= len(tokens)
        for anchor in _anchors(tokens):
            having = self._having.get(anchor, {})
            having.pop(number, None)
            if not having:
                self._having.pop(anchor, None)


def _anchors(tokens: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return (tuple(tokens[i : i + ANCHOR]) for i in range(len(tokens) - ANCHOR + 1))
