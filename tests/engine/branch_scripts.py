"""What a drafter may do while a pass runs, as scripts for ``tests/fakes.py``.

They know what the target will choose (``oracle``), and so what the running pass's outcome is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from paceline.messages import MAX_SPECULATIVE_TOKENS, Branch, Proposed
from tests.fakes import Death, Oracle, Script, branch, proposed
from tests.tiny import VOCAB_SIZE

Said = Iterable[Proposed | Branch]


def changed(tokens: list[int]) -> list[int]:
    return [(token + 1) % VOCAB_SIZE for token in tokens]


def hits(oracle: Oracle, k: int) -> Script:
    """Is right, and has the drafts for the outcomes of this pass and of the next ones."""
    return foreseen(oracle, k, itertools.repeat(k))


def rejected(oracle: Oracle, k: int) -> Script:
    """Is right in the first 0, 1, 2, … of its drafts, and knows each time where it is wrong."""
    return foreseen(oracle, k, (turn % (k + 1) for turn in itertools.count()))


def foreseen(oracle: Oracle, k: int, num_right: Iterator[int]) -> Script:
    """Is right in so many drafts of each pass, and says at once what it will draft behind the
    outcomes of several passes, so that no answer can be late: as many as a branch has room for."""
    known: dict[int, int] = {}
    """By handle, up to which length everything is said."""

    def script(handle: int, tokens: list[int]) -> Said:
        if len(tokens) < known.get(handle, 0):
            return
        future = oracle(tokens, MAX_SPECULATIVE_TOKENS + 1 + k)
        right, end = next(num_right), 0
        yield proposed(handle, tokens, future[:right] + changed(future[right:k]))
        while (end := end + right + 1) <= MAX_SPECULATIVE_TOKENS + 1 and end < len(future):
            right = next(num_right)
            rest = future[end : end + k]
            drafts = rest[:right] + changed(rest[right:])
            yield from outcome(handle, tokens, future[:end], drafts)
            known[handle] = len(tokens) + end + 1

    return script


def outcome(handle: int, tokens: list[int], path: list[int], drafts: list[int]) -> Said:
    """The branch, if there is anything behind the outcome."""
    if path and drafts:
        yield branch(handle, tokens, path, drafts)


def wrong_bonus(oracle: Oracle, k: int) -> Script:
    """Drafts behind every outcome but the right one."""

    def script(handle: int, tokens: list[int]) -> Said:
        future = oracle(tokens, k + 1)
        yield proposed(handle, tokens, future[:k])
        for size in range(1, len(future) + 1):
            path = future[: size - 1] + changed(future[size - 1 : size])
            yield from outcome(handle, tokens, path, [7] * k)

    return script


def wrong_drafts(oracle: Oracle, k: int) -> Script:
    """Knows the outcome, and is wrong behind it."""

    def script(handle: int, tokens: list[int]) -> Said:
        future = oracle(tokens, 2 * k + 1)
        yield proposed(handle, tokens, future[:k])
        yield from outcome(handle, tokens, future[: k + 1], changed(future[k + 1 :]))

    return script


def branches_late(oracle: Oracle, k: int) -> Script:
    """Says what fits the outcome of a pass once the next one has begun, and nothing else."""
    held: dict[int, list[Branch]] = {}

    def script(handle: int, tokens: list[int]) -> Said:
        future = oracle(tokens, 2 * k + 1)
        yield proposed(handle, tokens, [])
        yield from held.pop(handle, [])
        late = outcome(handle, tokens, future[: k + 1], future[k + 1 :])
        held[handle] = [one for one in late if isinstance(one, Branch)]

    return script


def undrafted(oracle: Oracle, k: int) -> Script:
    """Has nothing to propose in time, but the right drafts for when the undrafted pass ends."""

    def script(handle: int, tokens: list[int]) -> Said:
        future = oracle(tokens, k + 1)
        yield proposed(handle, tokens, [])
        yield from outcome(handle, tokens, future[:1], future[1:])

    return script


def hostile(oracle: Oracle, k: int) -> Script:
    """Many branches: of other requests, at other lengths, and some that contradict each other."""

    def script(handle: int, tokens: list[int]) -> Said:
        future = oracle(tokens, k + 1)
        yield proposed(handle, tokens, changed(future[:k]))
        yield from outcome(handle + 1, tokens, future[:1], [1])
        yield from outcome(handle, tokens[:-1], future[:1], [1] * k)
        yield from outcome(handle, [*tokens, 0], future[:1], [2] * k)
        yield from outcome(handle, [], future[:1], [3] * k)
        for token in range(40):
            yield branch(handle, tokens, [token] * (1 + token % (k + 1)), [VOCAB_SIZE - 1] * k)
        yield from outcome(handle, tokens, future[:1], [4] * k)
        yield from outcome(handle, tokens, future[:1], [5] * k)

    return script


def dies(oracle: Oracle, k: int) -> Script:
    """Vanishes while what it has drafted behind the outcome is still to be used."""
    turns = itertools.count()
    right = hits(oracle, k)

    def script(handle: int, tokens: list[int]) -> Said:
        if next(turns) == 6:
            raise Death
        return right(handle, tokens)

    return script


BRANCH_SCRIPTS: dict[str, Callable[[Oracle, int], Script]] = {
    "hits": hits,
    "rejected": rejected,
    "wrong bonus": wrong_bonus,
    "wrong drafts": wrong_drafts,
    "branches late": branches_late,
    "undrafted": undrafted,
    "hostile branches": hostile,
    "dies": dies,
}
