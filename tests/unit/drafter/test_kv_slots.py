"""The cache's storage: what a row wrote is what it reads, whichever slots share the forward."""

from __future__ import annotations

import pytest
import torch

from paceline.drafter.kv_slots import KVSlots

HEADS, SIZE = 2, 3


def begin(
    slots: KVSlots,
    rows: list[int],
    cells: torch.Tensor,
    moves: list[tuple[int, int, int]] | None = None,
) -> None:
    """Begins a forward that may see all cells up to the highest that it writes."""
    length = int(cells.max()) + 1
    slots.reserve(length)
    columns = torch.tensor(moves or [], dtype=torch.int64).view(-1, 3).T
    slots.begin(rows, length, torch.tensor(rows), cells, columns)


class Mirror:
    """Writes a number of its own at every place, and remembers it in a plain dict."""

    def __init__(self) -> None:
        self.slots = KVSlots()
        self.held: dict[tuple[int, int, int], float] = {}
        """Value by layer, slot and position."""
        self.counter = 0.0

    def write(self, starts: dict[int, int], num_new: int) -> None:
        """Writes ``num_new`` tokens to each slot from its start on, and compares what is read."""
        rows = sorted(starts)
        positions = torch.tensor([[starts[slot] + i for i in range(num_new)] for slot in rows])
        begin(self.slots, rows, positions)
        for layer in range(2):
            new = torch.empty(len(rows), HEADS, num_new, SIZE)
            for row, slot in enumerate(rows):
                for i in range(num_new):
                    self.counter += 1
                    new[row, :, i] = self.counter
                    self.held[layer, slot, starts[slot] + i] = self.counter
            keys, values = self.slots.update(new, -new, layer)
            length = int(positions.max()) + 1
            assert keys.shape == values.shape == (len(rows), HEADS, length, SIZE)
            assert self.slots.get_seq_length() == length
            for row, slot in enumerate(rows):
                for position in range(starts[slot] + num_new):
                    expected = self.held[layer, slot, position]
                    assert (keys[row, :, position] == expected).all()
                    assert (values[row, :, position] == -expected).all()


def test_slots_are_given_lowest_first_and_used_again() -> None:
    slots = KVSlots()
    assert [slots.take() for _ in range(4)] == [0, 1, 2, 3]
    slots.give_back(2)
    slots.give_back(0)
    assert [slots.take() for _ in range(3)] == [0, 2, 4]


def test_what_is_written_is_read_back() -> None:
    mirror = Mirror()
    mirror.slots.take()
    mirror.write({0: 0}, 5)
    mirror.write({0: 5}, 1)
    mirror.write({0: 3}, 4)


def test_rows_of_unequal_length_write_at_their_own_positions() -> None:
    mirror = Mirror()
    for slot in range(3):
        assert mirror.slots.take() == slot
    mirror.write({0: 0}, 2)
    mirror.write({1: 0}, 7)
    mirror.write({2: 0}, 1)
    mirror.write({0: 2, 1: 7, 2: 1}, 3)


@pytest.mark.parametrize("chosen", [(0, 2), (1, 3), (0, 1, 3), (3,), (1, 2)])
def test_any_choice_of_slots_reads_its_own_rows(chosen: tuple[int, ...]) -> None:
    mirror = Mirror()
    for slot in range(4):
        mirror.slots.take()
        mirror.write({slot: 0}, slot + 1)
    mirror.write({slot: slot + 1 for slot in chosen}, 2)
    rest = set(range(4)) - set(chosen)
    if rest:
        mirror.write({slot: slot + 1 for slot in rest}, 1)


def test_nothing_is_lost_when_the_capacity_grows() -> None:
    mirror = Mirror()
    mirror.slots.take()
    mirror.slots.take()
    mirror.write({0: 0, 1: 0}, 3)
    mirror.write({0: 3}, 600)
    mirror.write({0: 603, 1: 3}, 2)
    mirror.write({0: 605}, 700)


def test_nothing_is_lost_when_a_slot_is_added() -> None:
    mirror = Mirror()
    for slot in range(6):
        mirror.slots.take()
        mirror.write({slot: 0}, 4)
        mirror.write({other: 4 + slot - other for other in range(slot + 1)}, 1)


def test_the_capacity_grows_in_large_steps() -> None:
    """Each growth copies the whole cache, so one token at a time would be quadratic."""
    slots = KVSlots()
    slots.take()
    capacities = set()
    for position in range(2000):
        begin(slots, [0], torch.tensor([[position]]))
        slots.update(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1), 0)
        capacities.add(slots._keys[0].shape[2])
    assert len(capacities) < 8


def test_moves_come_first_and_all_at_once() -> None:
    """A cell is read before it is written by another move, and only in its own slot."""
    slots = KVSlots()
    cells = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3]])
    for slot in range(2):
        assert slots.take() == slot
    begin(slots, [0, 1], cells)
    held = torch.tensor([[10.0, 11, 12, 13], [20, 21, 22, 23]]).view(2, 1, 4, 1)
    slots.update(held, -held, 0)
    begin(slots, [0, 1], torch.tensor([[3], [3]]), moves=[(0, 2, 1), (0, 1, 2), (1, 1, 0)])
    new = torch.tensor([14.0, 24.0]).view(2, 1, 1, 1)
    keys, values = slots.update(new, -new, 0)
    assert keys.view(2, 4).tolist() == [[10, 12, 11, 14], [21, 21, 22, 24]]
    assert torch.equal(values, -keys)


def test_the_spare_cell_is_never_seen() -> None:
    slots = KVSlots()
    slots.take()
    for length in (1, 200, 257, 900):
        spare = slots.reserve(length)
        assert spare >= length
        cells = torch.tensor([[length - 1, spare]])
        slots.begin([0], length, torch.tensor([0]), cells, torch.empty(3, 0))
        keys, _ = slots.update(torch.ones(1, 1, 2, 1), torch.ones(1, 1, 2, 1), 0)
        assert keys.shape[2] == length
