"""The cells as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HEADERS = (
    *("system", "K", "dtype", "conc", "temp", "tokens/s", "IQR", "vs plain", "TTFT ms", "ITL ms"),
    *("round ms", "wait ms", "hits", "accept", "length", "equal", "errors"),
)


SIMULATED = (
    "simulated: the draft is a script that knows plain decoding's answers; how often it is right, "
    "and the processor time it takes, are set by the configuration (scripted_accuracy, "
    "scripted_forward_ms). All else is real."
)


def table(cells: Sequence[dict[str, Any]]) -> str:
    """Returns a line for each cell, and what a mark in them means; "-" is undefined.

    Latencies are medians.
    """
    rows = [HEADERS, *(_row(cell) for cell in cells)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADERS))]
    lines = [
        "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    if any(cell["simulated"] for cell in cells):
        lines.append(SIMULATED)
    return "\n".join(lines)


def _row(cell: dict[str, Any]) -> tuple[str, ...]:
    drafter = f":{cell['drafter']}" if cell["drafter"] else ""
    mode = f"@{cell['mode']}" if cell["mode"] else ""
    mark = " (simulated)" if cell["simulated"] else ""
    return (
        f"{cell['system']}{drafter}{mode}{mark}",
        _number(cell["num_speculative_tokens"], 0),
        cell["dtype"],
        str(cell["concurrency"]),
        f"{cell['temperature']:g}",
        _number(cell["output_tokens_per_s"], 1),
        _number(cell["output_tokens_per_s_iqr"], 1),
        _number(cell["ratio_to_plain"], 2),
        _number(cell["ttft_ms"]["p50"], 0),
        _number(cell["itl_ms"]["p50"], 1),
        _number(cell["round_ms"], 1),
        _number(cell["exposed_wait_ms"], 1),
        _number(cell["hit_rate"], 2),
        _number(cell["acceptance_rate"], 2),
        _number(cell["mean_acceptance_length"], 2),
        _number(cell["equal_to_plain"], 2),
        str(cell["num_errors"]),
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
