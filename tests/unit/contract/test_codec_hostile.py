"""Whatever the bytes are: a valid message, or a ProtocolError and nothing else."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.codec import decode, encode
from paceline.errors import ProtocolError
from paceline.messages import (
    MAX_BATCH_REQUESTS,
    MAX_SEQUENCE_TOKENS,
    MAX_SPECULATIVE_TOKENS,
    MESSAGE_TYPES,
    PROTOCOL_VERSION,
    Close,
    Commit,
    Hello,
    Message,
    Open,
    Pong,
    Proposal,
    Reopen,
    Welcome,
)
from tests.unit.contract.strategies import by_type
from tests.unit.wire import hello

messages = st.one_of(list(by_type.values()))


def decodes(frames: list[bytes]) -> bool:
    """Whether the frames are a message; any error but ProtocolError comes through."""
    try:
        decode(frames)
    except ProtocolError:
        return False
    return True


def a_pong() -> Message:
    return Pong(incarnation=1, welcomed=True)


def frames_of(kind: type[Message], body: object) -> list[bytes]:
    head = b"PL" + bytes((PROTOCOL_VERSION, MESSAGE_TYPES.index(kind)))
    return [head, msgspec.msgpack.encode(body)]


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_random_frames_are_no_message(frames: list[bytes]) -> None:
    assert not decodes(frames)


@given(st.sampled_from(MESSAGE_TYPES), st.binary(max_size=300))
def test_a_right_head_with_a_random_body_raises_nothing_else(
    kind: type[Message], body: bytes
) -> None:
    decodes([frames_of(kind, {})[0], body])


@given(messages, st.data())
def test_a_cut_off_body_is_rejected(message: Message, data: st.DataObject) -> None:
    head, body = encode(message)
    size = data.draw(st.integers(0, len(body) - 1))
    assert not decodes([head, body[:size]])


@given(messages, st.data())
def test_a_flipped_byte_raises_nothing_else(message: Message, data: st.DataObject) -> None:
    head, body = encode(message)
    position = data.draw(st.integers(0, len(body) - 1))
    flipped = bytearray(body)
    flipped[position] ^= data.draw(st.integers(1, 255))
    decodes([head, bytes(flipped)])


@given(messages, st.binary(min_size=1, max_size=9))
def test_bytes_behind_the_body_are_rejected(message: Message, rest: bytes) -> None:
    head, body = encode(message)
    assert not decodes([head, body + rest])


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"PL",
        b"PL" + bytes((PROTOCOL_VERSION,)),
        b"PL" + bytes((PROTOCOL_VERSION, 3, 0)),
        b"PX" + bytes((PROTOCOL_VERSION, 3)),
        b"LP" + bytes((PROTOCOL_VERSION, 3)),
    ],
)
def test_a_wrong_head_is_rejected(head: bytes) -> None:
    body = encode(a_pong())[1]
    assert not decodes([head, body])


def test_another_version_is_named() -> None:
    head, body = encode(a_pong())
    with pytest.raises(ProtocolError, match=f"protocol version 9, .* speaks {PROTOCOL_VERSION}"):
        decode([head[:2] + b"\x09" + head[3:], body])


@pytest.mark.parametrize("number", [len(MESSAGE_TYPES), 255])
def test_an_unknown_type_is_named(number: int) -> None:
    head, body = encode(a_pong())
    with pytest.raises(ProtocolError, match=f"message type {number} is unknown"):
        decode([head[:3] + bytes((number,)), body])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_frames_is_rejected(count: int) -> None:
    assert not decodes((encode(a_pong()) * 2)[:count])


def proposed(**changes: Any) -> dict[str, Any]:
    return {"handle": 1, "base_length": 1, "tokens": [1, 2], "confidence": [], **changes}


HUGE = 1 << 63


@pytest.mark.parametrize(
    "changes",
    [
        {"handle": 0},
        {"handle": -1},
        {"handle": HUGE},
        {"handle": "1"},
        {"handle": 1.5},
        {"handle": True},
        {"base_length": -1},
        {"base_length": MAX_SEQUENCE_TOKENS + 1},
        {"tokens": None},
        {"tokens": 3},
        {"tokens": "ab"},
        {"tokens": {"0": 1}},
        {"tokens": [-1]},
        {"tokens": [1 << 31]},
        {"tokens": [HUGE]},
        {"tokens": [1.0]},
        {"tokens": [[1]]},
        {"tokens": [1] * (MAX_SPECULATIVE_TOKENS + 1)},
        {"confidence": [math.nan, 0.5]},
        {"confidence": [math.inf, 0.5]},
        {"confidence": [-0.1, 0.5]},
        {"confidence": [1.1, 0.5]},
        {"confidence": [0.5]},
        {"confidence": [0.5] * 3},
        {"confidence": ["0.5", 0.5]},
    ],
    ids=str,
)
def test_a_wrong_field_of_a_proposal_is_rejected(changes: dict[str, Any]) -> None:
    assert decodes(frames_of(Proposal, {"proposals": [proposed()]}))
    assert not decodes(frames_of(Proposal, {"proposals": [proposed(**changes)]}))


def test_one_bad_proposal_spoils_its_whole_message() -> None:
    assert not decodes(frames_of(Proposal, {"proposals": [proposed(), proposed(handle=0)]}))


@pytest.mark.parametrize("kind", MESSAGE_TYPES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("body", [{}, [], None, 1, "x", b"x", {"handles": 1}, {1: 2}], ids=repr)
def test_a_body_of_another_shape_is_rejected(kind: type[Message], body: object) -> None:
    assert not decodes(frames_of(kind, body))


@given(messages, st.data())
def test_a_missing_field_is_rejected(message: Message, data: st.DataObject) -> None:
    values = msgspec.msgpack.decode(encode(message)[1])
    fields = msgspec.structs.fields(type(message))
    del values[data.draw(st.sampled_from(sorted(f.name for f in fields if f.required)))]
    assert not decodes(frames_of(type(message), values))


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Reopen, {"handles": [1] * (MAX_BATCH_REQUESTS + 1)}),
        (Close, {"handles": [1] * (MAX_BATCH_REQUESTS + 1)}),
        (Commit, {"commits": [{}]}),
        (Commit, {"commits": [{"handle": 1, "base_length": 1, "num_accepted": 33, "tokens": []}]}),
        (Hello, {**msgspec.to_builtins(hello()), "protocol_versions": []}),
        (Hello, {**msgspec.to_builtins(hello()), "protocol_versions": [1] * 17}),
        (Hello, {**msgspec.to_builtins(hello()), "num_speculative_tokens": 33}),
        (Hello, {**msgspec.to_builtins(hello()), "num_speculative_tokens": 0}),
        (Hello, {**msgspec.to_builtins(hello()), "max_requests": 0}),
        (Hello, {**msgspec.to_builtins(hello()), "vocab_size": -1}),
        (Hello, {**msgspec.to_builtins(hello()), "drafter": "x" * 1025}),
        (Pong, {"incarnation": 1, "welcomed": 1}),
        (Pong, {"incarnation": 0, "welcomed": True}),
        (Welcome, {"incarnation": 1}),
        (Open, {"handle": 1, "prompt_ids": b"\x01"}),
    ],
)
def test_a_field_beyond_its_limit_is_rejected(kind: type[Message], body: object) -> None:
    assert not decodes(frames_of(kind, body))


@pytest.mark.parametrize("size", [MAX_BATCH_REQUESTS + 1, (1 << 32) - 1])
def test_a_list_that_only_claims_to_be_long_costs_no_memory(size: int) -> None:
    """The array's header says four thousand million handles, and nothing follows."""
    body = b"\x81\xa7handles\xdd" + size.to_bytes(4, "big")
    assert not decodes([frames_of(Close, {})[0], body])


@pytest.mark.parametrize("known", [True, False])
def test_deep_nesting_is_rejected(known: bool) -> None:
    """Also within a key that is skipped."""
    key = b"\xa7handles" if known else b"\xa4else"
    body = b"\x81" + key + b"\x91" * 1_000_000
    assert not decodes([frames_of(Close, {})[0], body])
