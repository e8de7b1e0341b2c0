"""From a pass's tensors to messages: the committed rows of those who asked, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from paceline.messages import RowNeeds, Rows, RowTensor
from paceline.verifier.rows_export import (
    MAX_ROWS_OF_MESSAGE,
    Buffer,
    Computed,
    Packed,
    choose,
    frame,
    messages,
    pack,
)
from paceline.verifier.rows_plan import RowsPlan

HIDDEN = 3
LAYERS = (1, 4)
DRAFTER = {"d": RowNeeds(aux_layers=[4, 1], final=True)}

A_CHUNK = Computed("chunk", 48, 5, 0)
A_WARM_UP = Computed("warm-up", 0, 2, 0)
A_LAST_CHUNK = Computed("last chunk", 10, 3, 0)
HALF_RIGHT = Computed("half right", 20, 5, 4)
ALL_WRONG = Computed("all wrong", 30, 3, 2)
UNDRAFTED = Computed("undrafted", 40, 1, 0)
BATCH = [A_CHUNK, A_WARM_UP, A_LAST_CHUNK, HALF_RIGHT, ALL_WRONG, UNDRAFTED]
NUM_SAMPLED = [0, 1, 1, 3, 1, 1]
BONUS = [0, 7, 71, 72, 73, 74]
HANDLES = {"chunk": 1, "last chunk": 2, "half right": 3, "all wrong": 4, "undrafted": 5}


def state(row: int, layer: int) -> list[float]:
    """The state of a row of the batch: all its values tell where it is from."""
    return [1000.0 * layer + 10 * row + column for column in range(HIDDEN)]


def layer_of(layer: int, num_rows: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A runner's buffer: longer than the batch, and not without gaps."""
    wide = torch.full((num_rows + 4, 2 * HIDDEN), -1.0, dtype=dtype)
    wide[:num_rows, ::2] = torch.tensor([state(row, layer) for row in range(num_rows)])
    return wide[:, ::2]


def packed(batch: list[Computed], drafters: dict[str, RowNeeds], handles: dict[str, int]) -> Packed:
    plan = RowsPlan(9, {name: (handle, "d") for name, handle in handles.items()}, drafters)
    spans, rows = choose(plan, batch)
    num_rows = sum(one.num_tokens for one in batch)
    return Packed(
        spans=spans,
        drafters=drafters,
        tensors={
            "aux": pack([layer_of(layer, num_rows) for layer in LAYERS], rows),
            "final": pack([layer_of(9, num_rows)], rows),
            "input_ids": pack([torch.arange(num_rows + 4).unsqueeze(1)], rows).squeeze(1),
            "num_sampled": torch.tensor(NUM_SAMPLED),
            "bonus": torch.tensor(BONUS),
        },
        aux_layers=LAYERS,
    )


def values(message: Rows, frames: list[Buffer]) -> dict[str, list[list[float]]]:
    return {
        told.name: torch.frombuffer(bytearray(data), dtype=torch.float32).view(told.shape).tolist()
        for told, data in zip(message.tensors, frames, strict=True)
    }


def test_only_committed_rows_of_planned_requests_go_out() -> None:
    sent = list(messages(packed(BATCH, DRAFTER, HANDLES)))
    assert {drafter for drafter, _, _ in sent} == {"d"}
    told = [
        (rows.handle, rows.first_position, rows.input_ids, rows.sampled_ids) for _, rows, _ in sent
    ]
    # Row i of the batch holds token i.
    assert told == [
        (1, 48, [0, 1, 2, 3, 4], []),
        (2, 10, [7, 8, 9], [71]),
        (3, 20, [10, 11, 12], [11, 12, 72]),
        (4, 30, [15], [73]),
        (5, 40, [18], [74]),
    ]
    for _, rows, frames in sent:
        assert values(rows, frames) == {
            "aux": [state(row, 4) + state(row, 1) for row in rows.input_ids],
            "final": [state(row, 9) for row in rows.input_ids],
        }


@pytest.mark.parametrize(
    ("needs", "names"),
    [
        (RowNeeds(final=True), ["final"]),
        (RowNeeds(aux_layers=[1, 4]), ["aux"]),
        (RowNeeds(aux_layers=[4]), ["aux"]),
    ],
)
def test_a_drafter_gets_what_it_asked_for(needs: RowNeeds, names: list[str]) -> None:
    [(_, rows, frames)] = messages(packed(BATCH, {"d": needs}, {"undrafted": 5}))
    expected = {
        "final": [state(18, 9)],
        "aux": [[value for layer in needs.aux_layers for value in state(18, layer)]],
    }
    assert values(rows, frames) == {name: expected[name] for name in names}


def test_a_rank_that_has_nothing_for_a_drafter_sends_nothing() -> None:
    one = packed(BATCH, {"d": RowNeeds(aux_layers=[1])}, HANDLES)
    rest = {name: tensor for name, tensor in one.tensors.items() if name != "aux"}
    assert not list(messages(replace(one, tensors=rest)))


def test_a_long_chunk_goes_out_in_pieces() -> None:
    long = [Computed("chunk", 7, 2 * MAX_ROWS_OF_MESSAGE + 3, 0), *BATCH[1:]]
    one = packed(long, {"d": RowNeeds(final=True)}, {"chunk": 1})
    one.tensors["num_sampled"][0], one.tensors["bonus"][0] = 1, 5
    sent = [rows for _, rows, _ in messages(one)]
    assert [(rows.first_position, len(rows.input_ids), rows.sampled_ids) for rows in sent] == [
        (7, MAX_ROWS_OF_MESSAGE, []),
        (7 + MAX_ROWS_OF_MESSAGE, MAX_ROWS_OF_MESSAGE, []),
        (7 + 2 * MAX_ROWS_OF_MESSAGE, 3, [5]),
    ]
    assert [token for rows in sent for token in rows.input_ids] == list(range(long[0].num_tokens))


def test_what_is_packed_outlives_the_runner_s_buffer() -> None:
    buffer = layer_of(1, 4)
    rows = pack([buffer], [slice(0, 2), slice(3, 4)])
    buffer.fill_(-5)
    assert rows.tolist() == [state(0, 1), state(1, 1), state(3, 1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_frame_is_the_tensor_s_bytes(dtype: torch.dtype, transposed: bool) -> None:
    tensor = torch.randn(3, 3, 2).to(dtype)
    if transposed:
        tensor = tensor.transpose(0, 1)
    told = RowTensor(name="x", dtype=str(dtype).removeprefix("torch."), shape=[3, 3, 2])  # type: ignore[arg-type]
    data = frame(tensor)
    assert data.nbytes == told.num_bytes
    assert torch.equal(torch.frombuffer(bytearray(data), dtype=dtype).view(3, 3, 2), tensor)
    # Without a copy, where the tensor has no gaps.
    assert transposed or data.obj.ctypes.data == tensor.data_ptr()  # type: ignore[attr-defined]


def test_an_empty_tensor_has_an_empty_frame() -> None:
    assert frame(torch.empty(0, 5)).nbytes == 0
