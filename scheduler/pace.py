"""How fast the target goes: what a pass takes, and what it commits."""

from __future__ import annotations

from paceline.scheduler.averages import Average

MAX_GAP = 1.0
"""Seconds. A longer pause between two passes is idleness, not part of the pace."""


class Pace:
    """Measured over passes of decodes alone: a prefill takes as long as its prompt is."""

    def __init__(self) -> None:
        self.verify_s = Average()
        """Seconds from a pass's start to its outcome."""
        self._cycle_s = Average()
        """Seconds from one pass's outcome to the next one's, waiting included."""
        self._tokens = Average()
        """Tokens that a pass commits, all requests together."""
        self._pure = False
        self._started: float | None = None
        self._last_end: float | None = None
        self._num_committed = 0

    @property
    def tokens_per_s(self) -> float | None:
        """What the target commits; None before anything is measured."""
        if self._tokens.value is None or not self._cycle_s.value:
            return None
        return self._tokens.value / self._cycle_s.value

    def plan(self, *, pure: bool) -> None:
        """A pass will run, ``pure`` if it has decodes alone."""
        if self._pure and self._num_committed:
            self._tokens.add(self._num_committed)
        self._num_committed = 0
        self._pure = pure

    def start(self, now: float) -> None:
        """The pass runs."""
        self._started = now

    def end(self, now: float) -> None:
        """The pass has its outcome; ``commit`` follows for each request."""
        if self._pure and self._started is not None:
            self.verify_s.add(now - self._started)
            if self._last_end is not None and now - self._last_end < MAX_GAP:
                self._cycle_s.add(now - self._last_end)
        self._started, self._last_end = None, now

    def commit(self, num_tokens: int) -> None:
        """Counts what the pass that has ended committed to one request."""
        self._num_committed += num_tokens
