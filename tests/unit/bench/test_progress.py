"""How far, and how long still."""

from __future__ import annotations

from paceline.bench.progress import Progress


def test_what_is_left_is_estimated_from_this_start_only() -> None:
    now = 100.0
    told: list[str] = []
    progress = Progress(10, 6, tell=told.append, clock=lambda: now)
    now += 20
    progress.finished(1)
    now += 3600
    progress.finished(2)
    assert told == [
        "7 of 10 measurements, 0:20 elapsed, about 1:00 left",
        "9 of 10 measurements, 1:00:20 elapsed, about 20:07 left",
    ]
