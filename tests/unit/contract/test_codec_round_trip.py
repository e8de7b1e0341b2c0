"""What is encoded decodes to an equal message of the same type."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.codec import decode, encode
from paceline.errors import ProtocolError
from paceline.messages import (
    MAX_SPECULATIVE_TOKENS,
    MESSAGE_TYPES,
    PROTOCOL_VERSION,
    Close,
    Message,
    Proposal,
    Proposed,
    Rows,
)
from tests.unit.contract.strategies import by_type


@pytest.mark.parametrize("kind", MESSAGE_TYPES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_message_survives_the_wire(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(by_type[kind])
    decoded = decode([*encode(message), *tensor_frames(message)])
    assert type(decoded) is kind
    assert decoded == message


def tensor_frames(message: Message) -> list[bytes]:
    """Returns frames of the announced sizes."""
    tensors = message.tensors if isinstance(message, Rows) else []
    return [bytes(tensor.num_bytes) for tensor in tensors]


@given(message=by_type[Rows], data=st.data())
def test_tensor_frames_of_another_number_or_size_are_rejected(
    message: Rows, data: st.DataObject
) -> None:
    frames = tensor_frames(message)
    place = data.draw(st.integers(0, len(frames)))
    if place < len(frames) and data.draw(st.booleans()):
        frames[place] += b"\0"
    else:
        frames.insert(place, b"")
    with pytest.raises(ProtocolError, match="tensor frames"):
        decode([*encode(message), *frames])


def test_every_message_has_a_type_number_and_a_strategy() -> None:
    assert set(get_args(Message)) == set(MESSAGE_TYPES) == set(by_type)


def test_type_numbers_are_the_ones_that_older_peers_know() -> None:
    """A reordered table would make each side read the other's messages as something else."""
    assert [kind.__name__ for kind in MESSAGE_TYPES] == [
        "Hello",
        "Welcome",
        "Refuse",
        "Ping",
        "Pong",
        "Open",
        "Commit",
        "Proposal",
        "Reopen",
        "Close",
        "Branches",
        "Flush",
        "RowsHello",
        "RowsWelcome",
        "Rows",
    ]


def test_the_head_is_magic_version_and_type() -> None:
    """Told apart before anything else of a message is read, so it must never move."""
    assert encode(Close(handles=[]))[0] == b"PL" + bytes((PROTOCOL_VERSION, 9))


def test_keys_that_a_newer_peer_adds_are_ignored() -> None:
    proposed = {"handle": 1, "base_length": 2, "tokens": [3], "confidence": [], "mood": "sunny"}
    body = msgspec.msgpack.encode({"proposals": [proposed], "colour": {"nested": [1]}})
    head = encode(Proposal(proposals=[]))[0]
    assert decode([head, body]) == Proposal(
        proposals=[Proposed(handle=1, base_length=2, tokens=[3], confidence=[])]
    )


def test_as_many_drafts_as_allowed_pass() -> None:
    proposed = Proposed(
        handle=1,
        base_length=1,
        tokens=list(range(MAX_SPECULATIVE_TOKENS)),
        confidence=[0.5] * MAX_SPECULATIVE_TOKENS,
    )
    message = Proposal(proposals=[proposed])
    assert decode(encode(message)) == message


def test_confidences_of_zero_and_one_pass() -> None:
    message = Proposal(
        proposals=[Proposed(handle=1, base_length=1, tokens=[1, 2], confidence=[0.0, 1.0])]
    )
    assert decode(encode(message)) == message
