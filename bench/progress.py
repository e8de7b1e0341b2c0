"""How far a run is, and how long it will go on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


def say(text: str) -> None:
    """Tells the user something, beside the results."""
    print(f"paceline: {text}", file=sys.stderr, flush=True)


class Progress:
    """Counts measurements; what is left is estimated from those of this start."""

    def __init__(
        self,
        total: int,
        done: int,
        tell: Callable[[str], None] = say,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes over from an earlier start, which finished ``done`` of ``total``."""
        self._total = total
        self._done = done
        self._tell = tell
        self._clock = clock
        self._num_measured = 0
        self._started = clock()

    def finished(self, number: int) -> None:
        """Counts this many measurements."""
        self._done += number
        self._num_measured += number
        elapsed = self._clock() - self._started
        left = elapsed / self._num_measured * (self._total - self._done)
        self._tell(
            f"{self._done} of {self._total} measurements, {_duration(elapsed)} elapsed, "
            f"about {_duration(left)} left"
        )


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
