"""Everything that a drafter may do, as scripts for ``tests/fakes.py``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from paceline.messages import Proposed
from tests.fakes import Death, Oracle, Script, dying, late, perfect, proposed, wrong
from tests.tiny import VOCAB_SIZE


def accepts(oracle: Oracle, k: int) -> Script:
    """Is right in the first 0, 1, 2, … of its k tokens, in turn."""
    turns = itertools.count()

    def script(handle: int, tokens: list[int]) -> Iterable[Proposed]:
        num_right = next(turns) % (k + 1)
        drafts = oracle(tokens, k)
        drafts[num_right:] = [(token + 1) % VOCAB_SIZE for token in drafts[num_right:]]
        return [proposed(handle, tokens, drafts)]

    return script


def empty(oracle: Oracle, k: int) -> Script:
    """Never has anything to propose, and says so."""
    return lambda handle, tokens: [proposed(handle, tokens, [])]


def short(oracle: Oracle, k: int) -> Script:
    """Proposes 0, 1, 2, … tokens, in turn."""
    turns = itertools.count()
    return lambda handle, tokens: [proposed(handle, tokens, oracle(tokens, next(turns) % (k + 1)))]


def doubled(oracle: Oracle, k: int) -> Script:
    """Says everything twice, and the last thing again with the next one."""
    last: dict[int, Proposed] = {}

    def script(handle: int, tokens: list[int]) -> Iterable[Proposed]:
        now = proposed(handle, tokens, oracle(tokens, k))
        before = last.get(handle)
        last[handle] = now
        return [now, now, *([before] if before else [])]

    return script


def reordered(oracle: Oracle, k: int) -> Script:
    """Sends each pair of proposals in the wrong order."""
    held: dict[int, Proposed] = {}

    def script(handle: int, tokens: list[int]) -> Iterable[Proposed]:
        now = proposed(handle, tokens, oracle(tokens, k))
        if handle in held:
            return [now, held.pop(handle)]
        held[handle] = now
        return []

    return script


def garbage(oracle: Oracle, k: int) -> Script:
    """Proposes for other handles, at other lengths, and tokens that contradict each other."""

    def script(handle: int, tokens: list[int]) -> Iterable[Proposed]:
        right = oracle(tokens, k)
        return [
            proposed(handle + 1, tokens, right),
            proposed(handle, tokens[:-1], right),
            proposed(handle, [*tokens, 0, 0], right),
            proposed(handle, [], right),
            proposed(handle, tokens, [VOCAB_SIZE - 1] * k),
            proposed(handle, tokens, [0] * k),
        ]

    return script


def dies(oracle: Oracle, k: int) -> Script:
    """Is right a few times, then vanishes."""
    return dying(perfect(oracle, k), after=5)


def hung(oracle: Oracle, k: int) -> Script:
    """Is there and never answers."""
    return lambda handle, tokens: []


def wrong_tokens(oracle: Oracle, k: int) -> Script:
    """Is never right."""
    return wrong(oracle, k, VOCAB_SIZE)


SCRIPTS: dict[str, Callable[[Oracle, int], Script]] = {
    "perfect": perfect,
    "wrong": wrong_tokens,
    "accepts": accepts,
    "empty": empty,
    "short": short,
    "late": late,
    "doubled": doubled,
    "reordered": reordered,
    "garbage": garbage,
    "dies": dies,
    "hung": hung,
}

__all__ = ["SCRIPTS", "Death"]
