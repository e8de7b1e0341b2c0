"""What the engine's process finds in its environment."""

from __future__ import annotations

from paceline.verifier.config import TargetConfig
from paceline.verifier.environment import engine_environment


def test_every_library_with_threads_gets_the_same_number() -> None:
    """numba's own default is all cores, and it would change torch's number to that."""
    environment = engine_environment(TargetConfig(model="m", threads=3), "/run")
    assert environment["OMP_NUM_THREADS"] == environment["NUMBA_NUM_THREADS"] == "3"
