"""What is measured: contenders, loads, and which contenders are in memory at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.bench.systems import System

MAX_RESIDENT = 8
"""Engines in memory at the same time, whatever memory there is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One engine that is measured."""

    system: System
    dtype: str
    num_speculative_tokens: int | None
    """K; None: plain."""

    def __str__(self) -> str:
        """A name that no other contender has."""
        tokens = f" K={self.num_speculative_tokens}" if self.num_speculative_tokens else ""
        return f"{self.system}{tokens} {self.dtype}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """How a contender is driven."""

    concurrency: int
    """Requests that are under way at the same time."""
    temperature: float


def contenders(
    systems: Sequence[System], num_speculative_tokens: Sequence[int], dtypes: Sequence[str]
) -> list[Contender]:
    """Returns one contender for each system, K and dtype; plain has no K."""
    return [
        Contender(system=system, dtype=dtype, num_speculative_tokens=k)
        for dtype in dtypes
        for system in systems
        for k in ([None] if system.kind == "plain" else num_speculative_tokens)
    ]


def groups(everybody: Sequence[Contender], max_resident: int) -> list[list[Contender]]:
    """Splits the contenders into groups that are in memory, and alternate, at the same time.

    Every group starts with the plain contender of its dtype, so that each comparison with plain
    decoding is one between neighbours in time.

    Args:
        everybody: All contenders, with one plain one for each dtype.
        max_resident: The most contenders of a group, at least 2.
    """
    assert max_resident >= 2, "plain and somebody to compare with it"
    made: list[list[Contender]] = []
    for plain in (c for c in everybody if c.system.kind == "plain"):
        others = [c for c in everybody if c.dtype == plain.dtype and c != plain]
        size = max_resident - 1
        parts = [others[start : start + size] for start in range(0, len(others), size)] or [[]]
        made.extend([plain, *part] for part in parts)
    return made
