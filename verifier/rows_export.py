"""From what a pass computed to Rows messages: which rows of which request, and for whom.

Done in two halves. ``pack`` puts the rows that may go out side by side on the target's device, as
copies, since the runner writes over its buffers in the next pass. ``messages``, once the copies are
in host memory, cuts them up by request. Only then is it known how many drafts were accepted: on a
GPU asking any earlier would be to wait for the pass.

Shape legend: T tokens that the pass computed, N of them packed, R requests, A layers, H the hidden
size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from paceline.messages import RowNeeds, Rows, RowTensor
from paceline.verifier.rows_plan import RowsPlan

MAX_ROWS_OF_MESSAGE = 512
"""A long prompt's chunk is sent in pieces, so that the drafter can begin with the first one."""

Buffer = memoryview
_DTYPES: dict[torch.dtype, Literal["float32", "bfloat16", "float16"]] = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}


@dataclass(frozen=True, slots=True)
class Computed:
    """What the scheduler had a pass compute of one request."""

    request_id: str
    first_position: int
    """Position of the first token."""
    num_tokens: int
    """Drafts included."""
    num_drafts: int


@dataclass(frozen=True, slots=True)
class Span:
    """The packed rows of one request."""

    handle: int
    drafter: str
    batch_index: int
    """Its place among the pass's requests."""
    first_position: int
    begin: int
    """Its first packed row."""
    num_rows: int
    num_drafts: int


@dataclass(frozen=True, slots=True)
class Packed:
    """The rows that one pass may send: tensors that nobody writes to any more."""

    spans: list[Span]
    drafters: dict[str, RowNeeds]
    tensors: dict[str, torch.Tensor]
    """``aux`` [N, A × H] of ``aux_layers``, ``final`` [N, H], ``key.<layer>`` and
    ``value.<layer>`` [N, heads, size]; and, for the cutting, ``input_ids`` [N], ``num_sampled``
    and ``bonus`` [R]."""
    aux_layers: tuple[int, ...]
    first_head: int = 0


def choose(plan: RowsPlan, computed: Sequence[Computed]) -> tuple[list[Span], list[slice]]:
    """Returns the requests of ``plan`` among a pass's, and where their rows lie in its batch.

    Args:
        computed: All requests of the pass, in the order of its batch.
    """
    spans: list[Span] = []
    rows: list[slice] = []
    start = begin = 0
    for index, one in enumerate(computed):
        if one.num_tokens and (entry := plan.requests.get(one.request_id)) is not None:
            handle, drafter = entry
            spans.append(
                Span(
                    handle=handle,
                    drafter=drafter,
                    batch_index=index,
                    first_position=one.first_position,
                    begin=begin,
                    num_rows=one.num_tokens,
                    num_drafts=one.num_drafts,
                )
            )
            begin += one.num_tokens
            if rows and rows[-1].stop == start:
                rows[-1] = slice(rows[-1].start, start + one.num_tokens)
            else:
                rows.append(slice(start, start + one.num_tokens))
        start += one.num_tokens
    return spans, rows


def pack(parts: Sequence[torch.Tensor], rows: Sequence[slice]) -> torch.Tensor:
    """Returns the rows of ``parts``, side by side, as one new tensor [N, …].

    Args:
        parts: One or more tensors [T or more, …] of the same shape.
        rows: Which rows, as ``choose`` returns them.
    """
    size = sum(part.shape[-1] for part in parts)
    num_rows = sum(piece.stop - piece.start for piece in rows)
    packed = parts[0].new_empty(num_rows, *parts[0].shape[1:-1], size)
    begin = 0
    for piece in rows:
        end, column = begin + piece.stop - piece.start, 0
        for part in parts:
            packed[begin:end, ..., column : column + part.shape[-1]] = part[piece]
            column += part.shape[-1]
        begin = end
    return packed


def messages(packed: Packed) -> Iterator[tuple[str, Rows, list[Buffer]]]:
    """Yields drafter, message and tensor frames for all committed rows, rejected drafts left out.

    Args:
        packed: Its tensors are in host memory; the frames are views of them where they can be.
    """
    input_ids = packed.tensors["input_ids"].tolist()
    num_sampled = packed.tensors["num_sampled"].tolist()
    bonus = packed.tensors["bonus"].tolist()
    tensors_for = {name: needed(packed, needs) for name, needs in packed.drafters.items()}
    for span in packed.spans:
        tensors = tensors_for[span.drafter]
        if not tensors:
            continue  # of keys and values only this rank has some, and they are not asked for
        sampled = num_sampled[span.batch_index]
        # Nothing is sampled in the middle of a prompt: all its tokens are committed already.
        num_rejected = span.num_drafts - (sampled - 1) if sampled else 0
        num_rows = span.num_rows - num_rejected
        own = input_ids[span.begin : span.begin + num_rows]
        accepted = own[span.num_rows - span.num_drafts :]
        sampled_ids = [*accepted, bonus[span.batch_index]] if sampled else []
        for first in range(0, num_rows, MAX_ROWS_OF_MESSAGE):
            last = min(first + MAX_ROWS_OF_MESSAGE, num_rows)
            pieces = {
                name: tensor[span.begin + first : span.begin + last]
                for name, tensor in tensors.items()
            }
            rows = Rows(
                handle=span.handle,
                first_position=span.first_position + first,
                input_ids=own[first:last],
                sampled_ids=sampled_ids if last == num_rows else [],
                first_head=packed.first_head,
                tensors=[describe(name, piece) for name, piece in pieces.items()],
            )
            yield span.drafter, rows, [frame(piece) for piece in pieces.values()]


def needed(packed: Packed, needs: RowNeeds) -> dict[str, torch.Tensor]:
    """Returns the packed tensors that a drafter asked for, the layers in its own order."""
    chosen = {}
    if needs.aux_layers and "projected" in packed.tensors:
        chosen["projected"] = packed.tensors["projected"]
    elif needs.aux_layers and "aux" in packed.tensors:
        aux = packed.tensors["aux"]
        if tuple(needs.aux_layers) != packed.aux_layers:
            by_layer = dict(
                zip(packed.aux_layers, aux.chunk(len(packed.aux_layers), dim=1), strict=True)
            )
            aux = torch.cat([by_layer[layer] for layer in needs.aux_layers], dim=1)
        chosen["aux"] = aux
    if needs.final and "final" in packed.tensors:
        chosen["final"] = packed.tensors["final"]
    for layer in needs.kv_layers:
        for name in (f"key.{layer}", f"value.{layer}"):
            if name in packed.tensors:
                chosen[name] = packed.tensors[name]
    return chosen


def describe(name: str, tensor: torch.Tensor) -> RowTensor:
    """Returns what a message says about one of its frames."""
    return RowTensor(name=name, dtype=_DTYPES[tensor.dtype], shape=list(tensor.shape))


def frame(tensor: torch.Tensor) -> Buffer:
    """Returns the bytes of a tensor in host memory: without a copy, if it has no gaps."""
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
