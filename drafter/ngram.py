"""Prompt lookup: the text's own past as the draft.

Saxena, "Prompt Lookup Decoding" (2023); vLLM has it in vllm/v1/spec_decode/ngram_proposer.py.
Unlike there, the index grows with the text (a look-up costs no scan), the most recent occurrence
wins, and a continuation that reaches the end of the text goes on in its own drafts, so that a
repetition with a period below K is drafted in full.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.drafter.model import Draft, DraftModel, DraftRequest


class _Index:
    """Where each n-gram of one request was last followed by a token."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._sizes = range(shortest, longest + 1)
        self._next: dict[tuple[int, ...], int] = {}
        """n-gram → position of the token behind its latest occurrence."""
        self._num_indexed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Indexes what came since the last call: every n-gram that now has a token behind it."""
        for position in range(max(self._num_indexed, 1), len(tokens)):
            for size in self._sizes:
                if size > position:
                    break
                self._next[tuple(tokens[position - size : position])] = position
        self._num_indexed = len(tokens)

    def find(self, tokens: Sequence[int]) -> int | None:
        """Returns the position of the token that followed the longest suffix of ``tokens``."""
        for size in reversed(self._sizes):
            if size < len(tokens):
                position = self._next.get(tuple(tokens[-size:]))
                if position is not None:
                    return position
        return None


class NgramDrafter(DraftModel):
    """Needs no model, no GPU and no prefill."""

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
        position = self._indexes[request].find(text)
        if position is None:
            return Draft([])
        drafts: list[int] = []
        for source in range(position, position + num_tokens):
            behind = source - len(text)
            token = text[source] if behind < 0 else drafts[behind]
            if token >= vocab_size:
                break
            drafts.append(token)
        return Draft(drafts)
