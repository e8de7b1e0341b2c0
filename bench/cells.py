"""From measurements to the figures of each cell: a contender under a load."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from paceline.bench.figures import interquartile_range, median, percentile, ratio
from paceline.bench.matrix import Contender, Load
from paceline.bench.rounds import round_figures
from paceline.bench.store import Measurement, RequestRecord
from paceline.bench.systems import PLAIN


def cell(
    contender: Contender,
    load: Load,
    method: str | None,
    measurements: Iterable[Measurement],
    *,
    expected_hit_rate: float | None = None,
) -> dict[str, Any]:
    """Returns the figures of one cell; what is undefined is None.

    Inter-token latency: for each output of the engine after a request's first one, the time since
    the output before it over the number of new tokens in it; its percentiles are over outputs.
    ``round_ms``: the mean time from one output of a request to the next. docs/benchmark.md defines
    all figures.

    Args:
        method: The contender's draft method.
        measurements: All of the run, of other cells, too.
        expected_hit_rate: See ``sides.expected_hits``.
    """
    everything = list(measurements)
    ours = [m for m in everything if m.contender == str(contender) and _is_under(m, load)]
    served = [request for m in ours for request in m.requests if request.error is None]
    speeds = [speed for m in ours if (speed := _speed(m)) is not None]
    counts = [request.counts for request in served if request.counts is not None]
    system = contender.system
    return {
        "system": system.kind,
        "drafter": system.drafter,
        "method": method,
        "mode": system.mode,
        "dtype": contender.dtype,
        "num_speculative_tokens": contender.num_speculative_tokens,
        "concurrency": load.concurrency,
        "temperature": load.temperature,
        "output_tokens_per_s": median(speeds),
        "output_tokens_per_s_iqr": interquartile_range(speeds),
        "ratio_to_plain": _ratio_to_plain(contender, load, everything),
        "ttft_ms": _percentiles(
            [r.seconds_to_first_token for r in served if r.seconds_to_first_token is not None]
        ),
        "itl_ms": _percentiles([latency for r in served for latency in _latencies(r)]),
        **_acceptance(counts),
        "round_ms": _round_ms(served),
        **round_figures(counts),
        "expected_hit_rate": expected_hit_rate,
        **_equality(contender, ours, everything),
        "simulated": method == "scripted",
        "num_repeats": len(ours),
        "num_prompts": len(ours[0].requests) if ours else 0,
        "num_errors": len(
            {place for m in ours for place, r in enumerate(m.requests) if r.error is not None}
        ),
    }


def _is_under(measurement: Measurement, load: Load) -> bool:
    return (measurement.concurrency, measurement.temperature) == (
        load.concurrency,
        load.temperature,
    )


def _speed(measurement: Measurement) -> float | None:
    tokens = sum(len(request.token_ids) for request in measurement.requests)
    return ratio(tokens, measurement.seconds) if tokens else None


def _ratio_to_plain(
    contender: Contender, load: Load, everything: Sequence[Measurement]
) -> float | None:
    """Median over the repeats; each is compared with plain decoding in the same repeat."""
    if contender.system.kind == "plain":
        return None
    speeds = {
        (m.contender, m.group, m.repeat): speed
        for m in everything
        if _is_under(m, load) and (speed := _speed(m)) is not None
    }
    plain = _plain_name(contender)
    return median(
        [
            speed / speeds[plain, group, repeat]
            for (name, group, repeat), speed in speeds.items()
            if name == str(contender) and (plain, group, repeat) in speeds
        ]
    )


def _plain_name(contender: Contender) -> str:
    return str(Contender(system=PLAIN, dtype=contender.dtype, num_speculative_tokens=None))


def _percentiles(seconds: Sequence[float]) -> dict[str, float | None]:
    milliseconds = [1000 * value for value in seconds]
    return {"p50": percentile(milliseconds, 50), "p99": percentile(milliseconds, 99)}


def _latencies(request: RequestRecord) -> list[float]:
    return [
        (after - before) / num_new
        for (before, _), (after, num_new) in itertools.pairwise(request.events)
    ]


def _acceptance(counts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    proposed, accepted, drafted = (
        sum(c[name] for c in counts) for name in ("proposed", "accepted", "drafted_rounds")
    )
    per_position = [
        sum(column)
        for column in itertools.zip_longest(
            *(c["accepted_per_position"] for c in counts), fillvalue=0
        )
    ]
    return {
        "acceptance_rate": ratio(accepted, proposed),
        "mean_acceptance_length": 1 + accepted / drafted if drafted else None,
        "accepted_per_position": [n / drafted for n in per_position] if drafted else None,
    }


def _round_ms(requests: Sequence[RequestRecord]) -> float | None:
    several = [request.events for request in requests if len(request.events) > 1]
    seconds = sum(events[-1][0] - events[0][0] for events in several)
    mean = ratio(seconds, sum(len(events) - 1 for events in several))
    return None if mean is None else 1000 * mean


def _equality(
    contender: Contender, ours: Sequence[Measurement], everything: Sequence[Measurement]
) -> dict[str, Any]:
    """Counts the outputs that both sides have; without any there is neither equal nor unequal."""
    compared = [m for m in ours if m.differences is not None]
    plain = {m.key: m for m in everything if m.contender == _plain_name(contender)}
    num_compared = sum(
        1
        for m in compared
        for pair in zip(m.requests, plain[m.key_of(_plain_name(contender))].requests, strict=True)
        if all(request.error is None for request in pair)
    )
    differences = [
        {
            "prompt": difference.id,
            "repeat": m.repeat,
            "position": difference.position,
            "top_two_gap": difference.top_two_gap,
        }
        for m in compared
        for difference in m.differences or ()
    ]
    equal = ratio(num_compared - len(differences), num_compared)
    return {"equal_to_plain": equal, "differences": differences if num_compared else None}
