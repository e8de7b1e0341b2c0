"""Prompt lookup: the text's own past as the draft.

Saxena, "Prompt Lookup Decoding" (2023); vLLM has it in vllm/v1/spec_decode/ngram_proposer.py.
Unlike there, the index grows with the text (a look-up costs no scan), the most recent occurrence
wins, and a continuation that reaches the end of the text goes on in its own drafts, so that a
repetition with a period below K is drafted in full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from paceline.drafter.model import Draft, DraftModel, DraftRequest, Path
from paceline.scheduler.branching import Ranking

DECAY = 0.5
"""Each next choice of a ranking counts half of the one before. A look-up knows no probabilities;
the longest match is right more often than a shorter one, which is all that a ranking needs."""

NOTHING: Mapping[tuple[int, ...], int] = MappingProxyType({})


class _Index:
    """Where each n-gram of one request was last followed by a token."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._sizes = range(shortest, longest + 1)
        self._next: dict[tuple[int, ...], int] = {}
        """n-gram → position of the token behind its latest occurrence."""
        self._num_indexed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Indexes what came since the last call: every n-gram that now has a token behind it."""
        self._next.update(self.entries(tokens, self._num_indexed))
        self._num_indexed = len(tokens)

    def entries(self, tokens: Sequence[int], start: int) -> dict[tuple[int, ...], int]:
        """Returns what is to be indexed of ``tokens`` from position ``start`` on."""
        return {
            tuple(tokens[position - size : position]): position
            for position in range(max(start, 1), len(tokens))
            for size in self._sizes
            if size <= position
        }

    def find(
        self, tokens: Sequence[int], more: Mapping[tuple[int, ...], int] = NOTHING
    ) -> Iterator[int]:
        """Yields the positions of tokens that followed an ending of ``tokens``, longest ending
        first; ``more`` are entries that count before the index's own."""
        for size in reversed(self._sizes):
            if size < len(tokens):
                ending = tuple(tokens[-size:])
                position = more.get(ending, self._next.get(ending))
                if position is not None:
                    yield position


class NgramDrafter(DraftModel):
    """Needs no model, no GPU and no prefill."""

    is_stepwise = False

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._longest = longest
        self._indexes: dict[DraftRequest, _Index] = {}

    def open(self, request: DraftRequest) -> None:
        self._indexes[request] = _Index(self._shortest, self._longest)

    def close(self, request: DraftRequest) -> None:
        self._indexes.pop(request, None)

    def is_ready(self, request: DraftRequest) -> bool:
        return True

    def prepare(self, request: DraftRequest) -> None:
        self._indexes[request].extend(request.tokens)

    def draft(
        self, requests: Sequence[DraftRequest], num_tokens: int, vocab_size: int
    ) -> list[Draft]:
        return [self._draft_one(request, num_tokens, vocab_size) for request in requests]

    def _draft_one(self, request: DraftRequest, num_tokens: int, vocab_size: int) -> Draft:
        self.prepare(request)
        text = request.tokens
        position = next(self._indexes[request].find(text), None)
        if position is None:
            return Draft([])
        return Draft(_copy(text, position, num_tokens, vocab_size))

    def extend(
        self, paths: Sequence[Path], num_tokens: int, num_ranked: int, vocab_size: int
    ) -> list[list[Ranking]]:
        rankings = []
        for path in paths:
            self.prepare(path.request)
            num_committed = len(path.request.tokens)
            text = [*path.request.tokens, *path.tokens]
            index = self._indexes[path.request]
            # The n-grams that the path adds: what a draft behind the committed path would know.
            more = index.entries(text, num_committed)
            found = _Ranker(index, text, more, num_ranked, vocab_size)
            rankings.append(found.rank(num_tokens))
        return rankings


class _Ranker:
    """Ranks the positions behind one text."""

    def __init__(
        self,
        index: _Index,
        text: list[int],
        more: dict[tuple[int, ...], int],
        num_ranked: int,
        vocab_size: int,
    ) -> None:
        self._index = index
        self._text = text
        self._more = more
        self._num_ranked = num_ranked
        self._vocab_size = vocab_size

    def rank(self, num_tokens: int) -> list[Ranking]:
        """Returns the rankings of at most ``num_tokens`` positions."""
        position = next(self._index.find(self._text, self._more), None)
        if position is None:
            return []
        chain = _copy(self._text, position, num_tokens, self._vocab_size)
        return [self._rank_one(chain[:place], token) for place, token in enumerate(chain)]

    def _rank_one(self, before: list[int], first: int) -> Ranking:
        """``first``, then what followed shorter endings."""
        behind = [*self._text, *before]
        found = dict.fromkeys([first])
        for position in self._index.find(behind, self._more):
            if len(found) < self._num_ranked and position < len(self._text):
                token = self._text[position]
                if token < self._vocab_size:
                    found.setdefault(token)
        return [(token, DECAY ** (place + 1)) for place, token in enumerate(found)]


def _copy(text: Sequence[int], position: int, num_tokens: int, vocab_size: int) -> list[int]:
    """Returns what stands at ``position`` of ``text``, going on in the copy where that ends."""
    drafts: list[int] = []
    for source in range(position, position + num_tokens):
        behind = source - len(text)
        token = text[source] if behind < 0 else drafts[behind]
        if token >= vocab_size:
            break
        drafts.append(token)
    return drafts
