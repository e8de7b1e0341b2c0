"""How far, and how long still."""

from __future__ import annotations

from paceline.bench.progress import Progress


def test_what_is_left_is_estimated_from_this_start_only() -> None:
    now = 100.0
    told: list[str] = []
    progress = Progress(10, 6, tell=told.append, clock=lambda: now)
    now += 20
    progress.finished()
    now += 3600
    progress.finished()
    assert told == [
        "7 of 10 measurements, 0:20 elapsed, about 1:00 left",
        "8 of 10 measurements, 1:00:20 elapsed, about 1:00:20 left",
    ]
