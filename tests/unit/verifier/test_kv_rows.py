"""Keys and values are found in whatever order a backend keeps them, or else refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from paceline.errors import ModelError
from paceline.verifier.kv_rows import KvReader

BLOCKS, SLOTS, HEADS, SIZE = 5, 4, 3, 8
Fill = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]


def side_by_side(
    cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
) -> None:
    """As most backends of a GPU do."""
    for row, slot in enumerate(slots.tolist()):
        cache[slot // SLOTS, :, slot % SLOTS] = torch.cat([key[row], value[row]], dim=-1)


def transposed(
    cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
) -> None:
    """As the backend of a CPU does: first all keys of a block, slot by slot in each dimension."""
    for row, slot in enumerate(slots.tolist()):
        keys, values = cache[slot // SLOTS].view(HEADS, 2, SLOTS * SIZE).unbind(1)
        keys.view(HEADS, SIZE, SLOTS)[:, :, slot % SLOTS] = key[row]
        values.view(HEADS, SLOTS, SIZE)[:, slot % SLOTS] = value[row]


def halved(
    cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
) -> None:
    """Keeps something else than the values."""
    side_by_side(cache, key / 2, value, slots)


def across_blocks(
    cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
) -> None:
    """Keeps two blocks in each other's place by turns."""
    side_by_side(cache, key * (slots < SLOTS)[:, None, None], value, slots)


def empty(dtype: torch.dtype, order: tuple[int, ...]) -> torch.Tensor:
    """A cache whose axes lie in memory in ``order``, in the middle of something larger."""
    shape = (BLOCKS, HEADS, SLOTS, 2 * SIZE)
    whole = torch.zeros(2, *(shape[axis] for axis in order), dtype=dtype)
    return whole[1].permute([order.index(axis) for axis in range(4)])


def reader(cache: torch.Tensor, fill: Fill) -> KvReader:
    return KvReader(cache, lambda *written: fill(cache, *written), HEADS, (SIZE, SIZE), cache.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("fill", "order"),
    [
        (side_by_side, (0, 1, 2, 3)),
        (side_by_side, (0, 2, 1, 3)),
        (side_by_side, (1, 0, 2, 3)),
        (transposed, (0, 1, 2, 3)),
    ],
)
def test_what_was_written_is_read(dtype: torch.dtype, fill: Fill, order: tuple[int, ...]) -> None:
    cache = empty(dtype, order)
    there = reader(cache, fill)
    assert not cache.any(), "the cache is not as it was"
    key = torch.randn(BLOCKS * SLOTS, HEADS, SIZE).to(dtype)
    value = torch.randn(BLOCKS * SLOTS, HEADS, SIZE).to(dtype)
    fill(cache, key, value, torch.arange(BLOCKS * SLOTS))
    slots = torch.tensor([17, 3, 3, 19, 0, 8])
    got_key, got_value = there.read(slots)
    assert torch.equal(got_key, key[slots])
    assert torch.equal(got_value, value[slots])
    assert there.read(slots[:0])[0].shape == (0, HEADS, SIZE)


@pytest.mark.parametrize("fill", [halved, across_blocks])
def test_a_cache_that_keeps_something_else_is_found_out(fill: Fill) -> None:
    with pytest.raises(ModelError, match="does not keep the values"):
        reader(empty(torch.float32, (0, 1, 2, 3)), fill)


def test_a_cache_of_another_type_is_found_out() -> None:
    cache = torch.zeros(BLOCKS, HEADS, SLOTS, 2 * SIZE, dtype=torch.uint8)
    with pytest.raises(ModelError, match=r"torch\.uint8"):
        KvReader(cache, lambda *written: None, HEADS, (SIZE, SIZE), torch.bfloat16)
