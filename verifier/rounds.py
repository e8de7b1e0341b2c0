"""Where the time between two passes of the target goes."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.scheduler.request import RequestState

MAX_GAP = 1.0
"""Seconds. What is longer is idleness between requests, and no gap."""


class Rounds:
    """Books the parts of each gap, and each pass's time, to the requests that take part.

    A gap runs from a pass's outcome to the next pass's start. Its parts: waiting for proposals;
    look-up, which is all that Paceline does in it; and the rest, which is vLLM's own. With a hit,
    waiting and look-up are the time that a pass costs beyond plain decoding's.
    """

    def __init__(self) -> None:
        self._ended: float | None = None
        self._started: float | None = None
        self._waited = 0.0
        self._lookup = 0.0
        self._running: list[RequestState] = []

    def look_up(self, seconds: float) -> None:
        """Adds time of ours since the last outcome."""
        self._lookup += seconds

    def decide(self, running: Iterable[RequestState], waited: float) -> None:
        """The next pass is decided: who decodes in it, and how long it was waited for."""
        self._running = list(running)
        self._waited = waited
        for request in self._running:
            request.counters.waited_s += waited

    def start(self, now: float) -> None:
        """The pass runs."""
        gap = now - self._ended if self._ended is not None else None
        if gap is not None and gap < MAX_GAP + self._waited:
            rest = max(0.0, gap - self._waited - self._lookup)
            for request in self._running:
                request.counters.lookup_s += self._lookup
                request.counters.schedule_s += rest
                if request.was_hit:
                    request.counters.hit_exposed_s += self._waited + self._lookup
        self._started = now

    def end(self, now: float) -> None:
        """The pass has its outcome."""
        if self._started is not None:
            for request in self._running:
                request.counters.verify_s += now - self._started
                if request.was_hit:
                    request.counters.hit_verify_s += now - self._started
        self._running = []
        self._started, self._ended = None, now
        self._waited = self._lookup = 0.0
