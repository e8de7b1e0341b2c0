"""Rows to their requests, early and late; blocks to the store and back."""

from __future__ import annotations

import msgspec
import pytest
import torch

pytest.importorskip("torch")


from paceline.drafter.model import DraftRequest
from paceline.drafter.row_inbox import MAX_EARLY, RowInbox, tensors_of
from paceline.drafter.row_store import RowStore
from paceline.messages import Rows, RowTensor

TEXT = list(range(100, 140))
SIZE = 3


def rows(
    first: int, size: int, handle: int = 1, first_head: int = 0, name: str = "aux"
) -> tuple[Rows, list[bytes]]:
    """Rows of ``TEXT`` whose values are their positions, and whose heads are numbered."""
    positions = torch.arange(first, first + size, dtype=torch.bfloat16)
    tensor = positions[:, None].repeat(1, SIZE)
    if name != "aux":
        tensor = tensor[:, None] + 100 * first_head
    message = Rows(
        handle=handle,
        first_position=first,
        input_ids=TEXT[first : first + size],
        sampled_ids=[],
        first_head=first_head,
        tensors=[RowTensor(name=name, dtype="bfloat16", shape=list(tensor.shape))],
    )
    return message, [tensor.contiguous().view(torch.uint8).numpy().tobytes()]


def inbox(max_store_bytes: int = 1 << 20, block_size: int = 4) -> RowInbox:
    made = RowInbox("cpu", max_store_bytes)
    made.block_size = block_size
    return made


def opened(
    made: RowInbox, handle: int = 1, num_computed: int = 0, length: int = 20
) -> DraftRequest:
    request = DraftRequest(tokens=TEXT[:length])
    hashes = [bytes([number]) for number in range(length // 4)]
    made.open(handle, request, num_computed, hashes)
    return request


def values(request: DraftRequest) -> list[float]:
    assert request.rows is not None
    if request.rows.begin == request.rows.end:
        return []
    return request.rows.get("aux", request.rows.begin, request.rows.end)[:, 0].tolist()


def test_rows_come_before_and_after_the_request_is_opened() -> None:
    made = inbox()
    made.take(*rows(0, 8))
    request = opened(made)
    assert values(request) == list(range(8))
    assert not made.is_complete(1)
    made.take(*rows(8, 11))
    assert made.is_complete(1)
    assert values(request) == list(range(19))


def test_rows_of_another_text_are_dropped() -> None:
    made = inbox()
    request = opened(made)
    message, frames = rows(0, 4)
    made.take(msgspec.structs.replace(message, input_ids=[1, 2, 3, 4]), frames)
    assert values(request) == [] and made.num_dropped == 1


def test_a_closed_request_takes_no_more_room() -> None:
    made = inbox()
    opened(made)
    made.close(1)
    made.take(*rows(0, 4))
    for handle in range(2, 2 + MAX_EARLY):
        made.take(*rows(0, 4, handle=handle))
    assert values(opened(made)) == []  # the oldest ones had to go


def test_what_the_target_has_in_its_prefix_cache_comes_from_the_store() -> None:
    made = inbox()
    opened(made)
    made.take(*rows(0, 19))
    made.close(1)
    again = opened(made, handle=2, num_computed=16)
    assert values(again) == list(range(16))
    made.take(*rows(16, 3, handle=2))
    assert made.is_complete(2)


def test_without_all_of_it_the_part_before_the_new_rows_is_used() -> None:
    size = 4 * SIZE * 2  # bytes of a block
    made = inbox(max_store_bytes=2 * size)
    opened(made)
    made.take(*rows(0, 19))
    assert b"\1" not in made.store and b"\2" in made.store
    again = opened(made, handle=2, num_computed=16)
    assert values(again) == list(range(8, 16))


def test_blocks_that_the_answer_fills_are_stored_as_well() -> None:
    made = inbox()
    request = opened(made, length=4)
    request.tokens.extend(TEXT[4:10])
    made.take(*rows(0, 9))
    made.add_hashes(1, [b"\1"])
    assert values(opened(made, handle=2, num_computed=8)) == list(range(8))


def test_a_flush_empties_the_store() -> None:
    made = inbox()
    opened(made)
    made.take(*rows(0, 18))
    made.flush()
    made.take(*rows(18, 1))
    assert values(opened(made, handle=2, num_computed=16)) == []


def test_the_heads_of_several_ranks_are_put_together() -> None:
    made = inbox()
    made.num_ranks = 2
    request = opened(made)
    made.take(*rows(0, 4, first_head=1, name="key.0"))
    assert request.rows is not None and request.rows.end == 0
    made.take(*rows(0, 4, first_head=0, name="key.0"))
    assert request.rows.get("key.0", 0, 4)[:, :, 0].tolist() == [[p, p + 100] for p in range(4)]


def test_a_gap_is_given_up() -> None:
    made = inbox()
    request = opened(made)
    made.take(*rows(0, 4))
    made.give_up(1)  # nothing behind it: the rest may still come
    made.take(*rows(8, 11))
    assert not made.is_complete(1)
    made.give_up(1)
    assert made.is_complete(1) and made.num_skipped == 1
    assert values(request) == list(range(8, 19))


def test_the_least_recently_used_block_goes_first() -> None:
    store = RowStore(2 * 8)
    block = {"aux": torch.zeros(2, 2, dtype=torch.bfloat16)}
    store.put(b"a", block)
    store.put(b"b", block)
    assert store.get(b"a") is not None
    store.put(b"c", block)
    assert b"b" not in store and b"a" in store and b"c" in store
    assert store.num_bytes == 16
    store.put(b"d", {"aux": torch.zeros(9, 2)})
    assert b"d" not in store and store.num_bytes == 16


def test_tensors_of_all_types_and_of_no_rows() -> None:
    for dtype in ("float32", "bfloat16", "float16"):
        tensor = torch.arange(6).to(getattr(torch, dtype)).view(2, 3)
        frame = tensor.view(torch.uint8).numpy().tobytes()
        described = RowTensor(name="aux", dtype=dtype, shape=[2, 3])
        assert torch.equal(tensors_of([described], [frame])["aux"], tensor)
    empty = RowTensor(name="final", dtype="float16", shape=[0, 3])
    assert tensors_of([empty], [b""])["final"].shape == (0, 3)
