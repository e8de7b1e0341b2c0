"""Which token most often followed an ending of a text: a suffix automaton with frequency counts.

A state stands for all substrings that end at the same places of the text (Blumer et al., "The
Smallest Automaton Recognizing the Subwords of a Text", 1985). So it grows by at most two states a
token, in amortised constant time, where a suffix trie of depth d grows by up to d nodes. Counts are
kept for substrings of at most ``depth`` tokens, which is at most ``depth`` steps a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

ROOT = 0
NO_TOKEN = -1


class SuffixAutomaton:
    """Grows with one text; never shrinks."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        """Longest substring, in tokens, whose occurrences are counted; at least 2."""
        self._next: list[dict[int, int]] = [{}]  # [states], token -> state
        self._link: list[int] = [-1]  # [states], the state of the longest ending that is another's
        self._length: list[int] = [0]  # [states], of the longest substring
        self._count: list[int] = [0]  # [states], occurrences
        self._best: list[int] = [NO_TOKEN]  # [states], the token that followed most often
        self._whole = ROOT
        self._ending = ROOT
        """State of the last ``depth`` tokens, or of the whole text while it is shorter."""

    def append(self, token: int) -> None:
        """Takes in the next token of the text."""
        before = self._shortened(self._ending, self.depth - 1)
        self._grow(token)
        state = self._ending = self._next[before][token]
        while state != ROOT:
            self._count[state] += 1
            state = self._link[state]
        # Of equally frequent ones the latest wins: >= and not >.
        while before >= 0:
            follows, best = self._next[before], self._best[before]
            if best < 0 or self._count[follows[token]] >= self._count[follows[best]]:
                self._best[before] = token
            before = self._link[before]

    def own_ending(self) -> tuple[int, int]:
        """Returns the state and length of the text's longest ending that can be continued."""
        state = self._shortened(self._ending, self.depth - 1)
        return state, min(self._length[state], self.depth - 1)

    def find_ending(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Returns the state and length of the longest ending of ``tokens`` within this text."""
        state, length = ROOT, 0
        for token in tokens:
            while state != ROOT and token not in self._next[state]:
                state = self._link[state]
                length = self._length[state]
            if token in self._next[state]:
                state = self._next[state][token]
                length += 1
        return state, length

    def shorter(self, state: int, length: int) -> Iterator[tuple[int, int]]:
        """Yields the state and length of each ending from ``length`` tokens down to one."""
        while length > 0:
            while self._length[self._link[state]] >= length:
                state = self._link[state]
            yield state, length
            length -= 1

    def follow(self, state: int) -> Iterator[tuple[int, int, int]]:
        """Yields the most frequent continuation, token by token, until the text ends.

        Each comes with how often it followed what stands before it, and how often that occurred.
        """
        while (token := self._best[state]) != NO_TOKEN:
            reached = self._next[state][token]
            yield token, self._count[reached], self._count[state]
            state = reached

    def choices(self, state: int) -> list[tuple[int, int]]:
        """Returns each token that followed with how often it did, the most frequent one first."""
        counts = [(token, self._count[reached]) for token, reached in self._next[state].items()]
        best = self._best[state]
        # The sort keeps the order of equals: of the most frequent ones ``follow``'s goes first.
        return sorted(counts, key=lambda choice: (-choice[1], choice[0] != best))

    def _shortened(self, state: int, length: int) -> int:
        """Returns the state of the last ``length`` tokens of what ``state`` stands for."""
        while state != ROOT and self._length[self._link[state]] >= length:
            state = self._link[state]
        return state

    def _grow(self, token: int) -> None:
        """The textbook's step: one state for the longer text, and a split where it is needed."""
        state = self._whole
        new = self._add(self._length[state] + 1, {})
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        self._whole = new
        if state < 0:
            self._link[new] = ROOT
            return
        reached = self._next[state][token]
        if self._length[reached] == self._length[state] + 1:
            self._link[new] = reached
            return
        # Some substrings of `reached` now occur at one more place than the others.
        split = self._add(self._length[state] + 1, self._next[reached].copy())
        self._link[split] = self._link[reached]
        self._count[split] = self._count[reached]
        self._best[split] = self._best[reached]
        while state >= 0 and self._next[state].get(token) == reached:
            self._next[state][token] = split
            state = self._link[state]
        self._link[reached] = self._link[new] = split

    def _add(self, length: int, follows: dict[int, int]) -> int:
        self._next.append(follows)
        self._link.append(ROOT)
        self._length.append(length)
        self._count.append(0)
        self._best.append(NO_TOKEN)
        return len(self._next) - 1
