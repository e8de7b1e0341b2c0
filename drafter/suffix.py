"""Suffix decoding: the most frequent continuation of the text's own past as the draft.

Oliaro et al., "SuffixDecoding" (2024, arXiv 2411.04975); vLLM has it in
vllm/v1/spec_decode/suffix_decoding.py, on top of the package arctic-inference. Every ending of the
text that occurred before is a match. Its continuation is followed while the path's probability,
estimated from the counts, holds; of all matches the one with the largest sum of path probabilities,
the expected number of accepted tokens, becomes the draft.

The occurrence that is to be continued counts as one without a continuation: what was seen n times
and always went on alike does so again with probability n / (n + 1). That keeps a single occurrence
from being certain, and is what vLLM's counts amount to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from paceline.drafter.config import DrafterConfig
from paceline.drafter.model import Draft, DraftModel, DraftRequest, Path, Scope
from paceline.drafter.suffix_automaton import SuffixAutomaton
from paceline.drafter.suffix_store import SuffixStore
from paceline.scheduler.branching import Ranking

CHUNK = 1024
"""Tokens taken in at a time, some milliseconds of work: other requests wait no longer."""


@dataclass(slots=True)
class _State:
    """One request's text, as far as it was taken in."""

    automaton: SuffixAutomaton
    num_known: int = 0

    def extend(self, tokens: Sequence[int], limit: int) -> None:
        end = min(len(tokens), self.num_known + limit)
        for position in range(self.num_known, end):
            self.automaton.append(tokens[position])
        self.num_known = end


@dataclass(slots=True)
class _Path:
    """A continuation, with the sum of its path probabilities."""

    tokens: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    score: float = 0.0


class SuffixDrafter(DraftModel):
    """Needs no model and no GPU. Memory grows with the text, by about 0.5 KB a token."""

    is_stepwise = False

    def __init__(self, config: DrafterConfig) -> None:
        self._depth = config.suffix_max_tree_depth
        self._max_spec_factor = config.suffix_max_spec_factor
        self._min_token_prob = config.suffix_min_token_prob
        self._shares = config.suffix_share_across_requests
        self._max_cached = (config.suffix_max_cached_requests, config.suffix_max_cached_tokens)
        self._states: dict[DraftRequest, _State] = {}
        self._stores: WeakKeyDictionary[Scope, SuffixStore] = WeakKeyDictionary()
        """A verifier that is gone takes its scope with it, and so its texts."""

    def open(self, request: DraftRequest) -> None:
        self._states[request] = _State(SuffixAutomaton(self._depth))

    def close(self, request: DraftRequest) -> None:
        state = self._states.pop(request, None)
        if state is None or not self._shares or not request.ended:
            return
        store = self._stores.get(request.scope)
        if store is None:
            store = self._stores[request.scope] = SuffixStore(*self._max_cached)
        store.add(request.tokens[: state.num_known], state.automaton)

    def is_ready(self, request: DraftRequest) -> bool:
        return len(request.tokens) - self._states[request].num_known <= CHUNK

    def prepare(self, request: DraftRequest) -> None:
        self._states[request].extend(request.tokens, CHUNK)

    def draft(
        self, requests: Sequence[DraftRequest], num_tokens: int, vocab_size: int
    ) -> list[Draft]:
        return [self._draft_one(request, num_tokens, vocab_size) for request in requests]

    def _draft_one(self, request: DraftRequest, num_tokens: int, vocab_size: int) -> Draft:
        state = self._states[request]
        state.extend(request.tokens, len(request.tokens))
        best = self._best(request, (), num_tokens, vocab_size)
        return Draft(best.tokens, best.confidence)

    def extend(
        self, paths: Sequence[Path], num_tokens: int, num_ranked: int, vocab_size: int
    ) -> list[list[Ranking]]:
        """Behind a path that is not committed, what the path itself repeats is not found yet."""
        rankings = []
        for path in paths:
            request = path.request
            self._states[request].extend(request.tokens, len(request.tokens))
            best = self._best(request, path.tokens, num_tokens, vocab_size)
            rankings.append(
                [
                    self._rank(
                        request,
                        (*path.tokens, *best.tokens[:place]),
                        (token, confidence),
                        num_ranked,
                        vocab_size,
                    )
                    for place, (token, confidence) in enumerate(
                        zip(best.tokens, best.confidence, strict=True)
                    )
                ]
            )
        return rankings

    def _ending(self, request: DraftRequest, path: tuple[int, ...]) -> list[int]:
        """The last tokens that can be matched, of what is committed and of ``path``."""
        size = self._depth - 1
        return [*request.tokens[-size:], *path][-size:]

    def _best(
        self, request: DraftRequest, path: tuple[int, ...], num_tokens: int, vocab_size: int
    ) -> _Path:
        """The best continuation of the request's text and ``path``, of its own or shared text."""
        automaton = self._states[request].automaton
        ending = self._ending(request, path)
        if path:
            best = self._best_path(
                automaton, *automaton.find_ending(ending), 1, num_tokens, vocab_size
            )
        else:
            best = self._best_path(automaton, *automaton.own_ending(), 0, num_tokens, vocab_size)
        store = self._stores.get(request.scope)
        for other in store.candidates(ending) if store is not None else ():
            found = other.find_ending(ending)
            continuation = self._best_path(other, *found, 1, num_tokens, vocab_size)
            best = max(best, continuation, key=lambda candidate: candidate.score)
        return best

    def _rank(
        self,
        request: DraftRequest,
        path: tuple[int, ...],
        first: tuple[int, float],
        num_ranked: int,
        vocab_size: int,
    ) -> Ranking:
        """``first``, then what else followed the endings in the request's own text."""
        automaton = self._states[request].automaton
        ranking, seen = [first], {first[0]}
        for match, _ in automaton.shorter(*automaton.find_ending(self._ending(request, path))):
            choices = automaton.choices(match)
            total = 1 + sum(count for _, count in choices)
            for token, count in choices:
                if len(ranking) == num_ranked:
                    return ranking
                if token not in seen and token < vocab_size:
                    seen.add(token)
                    ranking.append((token, min(count / total, ranking[-1][1])))
        return ranking

    def _best_path(
        self,
        automaton: SuffixAutomaton,
        state: int,
        length: int,
        num_more: int,
        num_tokens: int,
        vocab_size: int,
    ) -> _Path:
        """Tries every match, the longest first; ``num_more`` occurrences are not in the counts."""
        best = _Path()
        for match, match_length in automaton.shorter(state, length):
            limit = min(
                num_tokens, int(match_length * self._max_spec_factor), self._depth - match_length
            )
            path = self._path(automaton, match, num_more, limit, vocab_size)
            if path.score > best.score:
                best = path
        return best

    def _path(
        self, automaton: SuffixAutomaton, match: int, num_more: int, limit: int, vocab_size: int
    ) -> _Path:
        path, probability = _Path(), 1.0
        if limit == 0:
            return path
        for token, count, total in automaton.follow(match):
            confidence = count / (total + num_more)
            num_more = 0
            probability *= confidence
            if probability < self._min_token_prob or token >= vocab_size:
                break
            path.tokens.append(token)
            path.confidence.append(confidence)
            path.score += probability
            if len(path.tokens) == limit:
                break
        return path
