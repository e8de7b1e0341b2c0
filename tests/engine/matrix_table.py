"""The exactness matrix as a table: features down, scripted drafters across, passed/run in each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

CELL = "test_matrix.py::test_cell["


def matrix_table(outcomes: Iterable[tuple[str, bool]]) -> list[str]:
    """Returns the table's lines, none if no cell of the matrix ran.

    Args:
        outcomes: Node ids of tests, those of other tests included, and whether they passed.
    """
    cells: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for node_id, passed in outcomes:
        _, cell, name = node_id.partition(CELL)
        if cell:
            feature, behaviour, _ = name.rsplit("-", 2)
            cells[feature][behaviour].append(passed)
    if not cells:
        return []
    behaviours = list(dict.fromkeys(name for row in cells.values() for name in row))
    rows = [["", *behaviours]]
    for feature, row in cells.items():
        rows.append([feature, *(f"{sum(row[name])}/{len(row[name])}" for name in behaviours)])
    widths = [max(len(text) for text in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(t.rjust(w) for t, w in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]
