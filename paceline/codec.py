"""Messages to multipart frames and back. No pickle: what decodes is one of our types or an error.

A message is two frames, and Rows one more for each of its tensors:

    frame 0   4 bytes: b"PL", protocol version, message type (place in ``MESSAGE_TYPES``)
    frame 1   the message's fields as a MessagePack map
    frame 2…  the tensors' bytes, as many as their dtype and shape make

The version stands outside the map so that a peer of another version is told apart before anything
of the map is read.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from paceline.errors import ProtocolError
from paceline.messages import ANY_VERSION, MESSAGE_TYPES, PROTOCOL_VERSION, Message, Rows

_MAGIC = b"PL"
_TYPE_NUMBER = {message_type: number for number, message_type in enumerate(MESSAGE_TYPES)}
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS = tuple(msgspec.msgpack.Decoder(message_type) for message_type in MESSAGE_TYPES)


def encode(message: Message) -> list[bytes]:
    """Returns the message's frames; those of Rows' tensors are the caller's to append."""
    head = _MAGIC + bytes((PROTOCOL_VERSION, _TYPE_NUMBER[type(message)]))
    return [head, _ENCODER.encode(message)]


def decode(frames: Sequence[bytes]) -> Message:
    """Returns the message that ``frames`` hold.

    Raises:
        ProtocolError: these are not the frames of a valid message of this version. Nothing else is
            raised, whatever the bytes are.
    """
    if len(frames) < 2 or len(frames[0]) != 4 or frames[0][:2] != _MAGIC:
        raise ProtocolError(f"{len(frames)} frames that do not begin as a message does")
    version, number = frames[0][2], frames[0][3]
    if number >= len(_DECODERS):
        raise ProtocolError(f"message type {number} is unknown")
    if version != PROTOCOL_VERSION and MESSAGE_TYPES[number] not in ANY_VERSION:
        raise ProtocolError(f"protocol version {version}, this side speaks {PROTOCOL_VERSION}")
    try:
        message: Message = _DECODERS[number].decode(frames[1])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"{MESSAGE_TYPES[number].__name__}: {error}") from error
    tensors = message.tensors if isinstance(message, Rows) else []
    sizes = [len(frame) for frame in frames[2:]]
    if sizes != [tensor.num_bytes for tensor in tensors]:
        raise ProtocolError(
            f"{MESSAGE_TYPES[number].__name__}: {len(sizes)} tensor frames of {sum(sizes)} bytes, "
            f"where {len(tensors)} of {sum(tensor.num_bytes for tensor in tensors)} are announced"
        )
    return message
