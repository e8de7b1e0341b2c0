"""The speculation cache of one request: what is known of how its text may go on.

It stands on the verifier's side, so that a hit costs no round trip. Proposals and branches are the
same thing here: tokens behind a length. What was committed since is trimmed off where it agrees,
and what contradicts it is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.scheduler.counters import MissCause
from paceline.scheduler.events import Tokens

MAX_CONTINUATIONS = 512
"""Of more the newest guess is dropped: all that are held still fit, the preferred ones first."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """Tokens that may follow what is committed now."""

    tokens: Tokens
    num_outcome: int
    """How many of them, at the front, are the outcome of a pass; 0: all are drafts for now."""
    was_trimmed: bool = False
    """Whether it begins in the middle of what the drafter sent. A guess of the present pass's
    outcome is for when the outcome is there; what is left of it then is drafts, wherever it ends.
    """

    num_drafts: int | None = None
    """How many drafts it had when it came; None: it has just come."""

    @property
    def num_wanted(self) -> int:
        """How many drafts the drafter thought worth verifying here."""
        return len(self.tokens) - self.num_outcome if self.num_drafts is None else self.num_drafts

    @property
    def is_usable(self) -> bool:
        """Whether it may be verified now."""
        return self.num_outcome == 0 or self.was_trimmed

    def behind(self, committed: Sequence[int]) -> Continuation | None:
        """Returns what is left of it once ``committed`` has come, None if nothing fits."""
        size = len(committed)
        if len(self.tokens) <= size or self.tokens[:size] != tuple(committed):
            return None
        return Continuation(
            self.tokens[size:],
            max(0, self.num_outcome - size),
            self.was_trimmed or size > 0,
            self.num_wanted,
        )


@dataclass(slots=True)
class Continuations:
    """All of one request, the drafter's preferred ones first."""

    _held: list[Continuation] = field(default_factory=list)
    _best: tuple[int, Tokens] | None = None
    """The last answer of ``best``, with its limit; None: something has changed since."""

    def __bool__(self) -> bool:
        """Whether there is one that may be verified now."""
        return any(held.is_usable for held in self._held)

    def add(self, continuation: Continuation) -> None:
        """Takes in one; a proposal for the present length goes before what was guessed earlier."""
        self._best = None
        if continuation.num_outcome == 0:
            self._held.insert(0, continuation)
        else:
            self._held.append(continuation)
        del self._held[MAX_CONTINUATIONS:]

    def best(self, limit: int) -> Tokens:
        """Returns at most ``limit`` tokens to verify next, empty if nothing is known.

        Drafts for the present length go before guesses about a pass's outcome, earlier ones before
        later ones. Where an undrafted pass has taken the first of its tokens, a guess that goes on
        where it ends fills it up again; to no more than the drafter had thought worth verifying.
        """
        if self._best is not None and self._best[0] == limit:
            return self._best[1]
        usable = [held for held in self._held if held.is_usable]
        if not usable:
            return ()
        first = min(usable, key=lambda held: held.num_outcome > 0)  # the first of the least
        size = len(first.tokens)
        longest = max(
            (held.tokens for held in self._held if held.tokens[:size] == first.tokens), key=len
        )
        self._best = limit, longest[: min(limit, max(size, first.num_wanted))]
        return self._best[1]

    def commit(self, committed: Sequence[int]) -> None:
        """Keeps what is left of each once ``committed`` has come."""
        self._best = None
        self._held = [rest for held in self._held if (rest := held.behind(committed)) is not None]

    def why_missed(self, committed: Sequence[int], *, was_drafted: bool) -> MissCause:
        """Says why nothing fits ``committed``, the outcome of a pass; call it before ``commit``.

        In an undrafted pass the first token of a proposal is a guess of its bonus token.
        """
        guesses = [
            (max(held.num_outcome, 1), held.tokens)
            for held in self._held
            if held.num_outcome or not was_drafted
        ]
        if not guesses:
            return "none"
        accepted = tuple(committed[:-1])
        fitting = [
            size
            for size, tokens in guesses
            if accepted[: size - 1] == tokens[: size - 1][: len(accepted)]
        ]
        if not fitting:
            return "stale"
        return "bonus" if len(committed) in fitting else "length"
