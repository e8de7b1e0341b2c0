"""The buffer of one request's rows: whatever comes in whatever order, what is shown is right."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")


from paceline.drafter.rows import MAX_AHEAD, RowBuffer


def piece(first: int, size: int) -> dict[str, torch.Tensor]:
    """Rows that say which position they are of."""
    positions = torch.arange(first, first + size, dtype=torch.float32)
    return {"aux": positions[:, None].repeat(1, 3), "key.1": positions[:, None, None]}


def shown(rows: RowBuffer) -> list[float]:
    if rows.begin == rows.end:
        return []
    aux = rows.get("aux", rows.begin, rows.end)
    assert torch.equal(aux[:, 0], rows.get("key.1", rows.begin, rows.end).flatten())
    return [float(value) for value in aux[:, 0]]


@given(st.integers(0, 20), st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30))))
def test_what_is_shown_is_the_longest_part_without_a_gap(
    begin: int, pieces: list[tuple[int, int]]
) -> None:
    rows = RowBuffer(begin)
    come: set[int] = set()
    waiting = 0
    for first, size in pieces:
        rows.insert(first, piece(first, size))
        come |= set(range(first, first + size))
        waiting += first > rows.end
        if waiting >= MAX_AHEAD:
            return
        end = begin
        while end in come:
            end += 1
        assert (rows.begin, rows.end) == (begin, end)
        assert shown(rows) == list(range(begin, end))


def test_a_gap_that_is_given_up() -> None:
    rows = RowBuffer()
    rows.insert(0, piece(0, 4))
    rows.insert(6, piece(6, 2))
    assert rows.has_gap and rows.end == 4
    version = rows.version
    rows.skip_gap()
    assert not rows.has_gap and rows.version != version
    assert shown(rows) == [6, 7]
    rows.insert(8, piece(8, 300))
    assert shown(rows) == list(range(6, 308))


def test_rows_that_are_here_already_stay() -> None:
    rows = RowBuffer()
    rows.insert(0, piece(0, 4))
    rows.insert(2, {name: -tensor for name, tensor in piece(2, 4).items()})
    assert shown(rows) == [0, 1, 2, 3, -4, -5]


def test_rows_before_the_first_one_that_is_wanted() -> None:
    rows = RowBuffer(8)
    rows.insert(0, piece(0, 8))
    assert shown(rows) == []
    rows.insert(4, piece(4, 8))
    assert shown(rows) == [8, 9, 10, 11]


def test_rows_that_are_not_here_cannot_be_had() -> None:
    rows = RowBuffer()
    rows.insert(0, piece(0, 4))
    with pytest.raises(AssertionError):
        rows.get("aux", 0, 5)
