"""How far a long piece of work is, in a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

SECONDS_BETWEEN_LINES = 20.0


def say(text: str) -> None:
    """Tells the user something, beside the results."""
    print(f"paceline: {text}", file=sys.stderr, flush=True)


class Progress:
    """Counts items and tokens of this start; says how fast they come and how long it will go on."""

    def __init__(
        self,
        what: str,
        total: int,
        *,
        done: int = 0,
        max_tokens: float = float("inf"),
        max_seconds: float = float("inf"),
        tell: Callable[[str], None] = say,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        """Of ``total`` items ``done`` were there before; the work may also end at one of the limits
        of tokens or seconds, which count from now."""
        self._what = what
        self._total = total
        self._done = done
        self._max_tokens = max_tokens
        self._max_seconds = max_seconds
        self._tell = tell
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._started = self._told = clock()
        self._cpu_started = cpu_clock()
        self.items = 0
        self.tokens = 0

    @property
    def seconds(self) -> float:
        """Since the start."""
        return self._clock() - self._started

    @property
    def is_over(self) -> bool:
        """Whether a limit of tokens or seconds is reached."""
        return self.tokens >= self._max_tokens or self.seconds >= self._max_seconds

    def count(self, items: int, tokens: int) -> None:
        """Counts what is newly done; says so if the last line is long ago."""
        self.items += items
        self.tokens += tokens
        if self._clock() - self._told >= SECONDS_BETWEEN_LINES:
            self.report()

    def report(self) -> None:
        """Says now how far the work is."""
        self._told = self._clock()
        seconds = max(self.seconds, 1e-9)
        cpu_seconds = max(self._cpu_clock() - self._cpu_started, 1e-9)
        self._tell(
            f"{self._done + self.items:,} of {self._total:,} {self._what}, {self.tokens:,} tokens "
            f"in {duration(seconds)}, {self.tokens / seconds:.0f} tokens/s "
            f"({self.tokens / cpu_seconds:.0f} per CPU second), "
            f"about {duration(self._seconds_left())} left"
        )

    def _seconds_left(self) -> float:
        seconds = self.seconds
        left = [self._max_seconds - seconds]
        if self.items:
            left.append(seconds / self.items * (self._total - self._done - self.items))
        if self.tokens:
            left.append(seconds / self.tokens * (self._max_tokens - self.tokens))
        return max(0.0, min(left))


def duration(seconds: float) -> str:
    """Hours, minutes and seconds; "?" for a time that nobody knows."""
    if seconds == float("inf"):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
