"""What Paceline's scheduler counted of its rounds: hits and misses, and where the time went."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from typing import Any

from paceline.bench.figures import ratio
from paceline.scheduler.counters import MissCause

CAUSES: tuple[MissCause, ...] = typing.get_args(MissCause)


def round_figures(counts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Returns the figures of rounds; what was not counted is None.

    Args:
        counts: Of requests, as ``Pipeline.report`` has them. Others, such as vLLM's, are left out.
    """
    ours = [c for c in counts if "verify_s" in c]
    rounds = sum(c["rounds"] for c in ours)

    def total(name: str) -> float:
        return float(sum(c[name] for c in ours))

    def per_round(*names: str) -> float | None:
        return ratio(1000 * sum(total(name) for name in names), rounds)

    return {
        **_hits(ours),
        "verify_ms": per_round("verify_s"),
        "gap_ms": {
            "wait": per_round("waited_s"),
            "look_up": per_round("lookup_s"),
            "schedule": per_round("schedule_s"),
            "transport": per_round("transport_s"),
            "export": None,  # no draft method takes the target's hidden states
        },
        "exposed_wait_ms": per_round("waited_s", "lookup_s"),
        "exposed_on_hits": ratio(total("hit_exposed_s"), total("hit_verify_s")),
    }


def _hits(ours: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """In lockstep there are neither hits nor misses."""
    pipelined = [c for c in ours if c["hits"] is not None]
    hits = sum(c["hits"] for c in pipelined)
    misses = {cause: sum(c["misses"].get(cause, 0) for c in pipelined) for cause in CAUSES}
    passes = hits + sum(misses.values())
    return {
        "hit_rate": ratio(hits, passes),
        "misses": {cause: n / passes for cause, n in misses.items()} if passes else None,
    }
