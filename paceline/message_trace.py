"""Messages in a trace: a short span where one is sent, one where it is taken in, and an arrow."""

from __future__ import annotations

import time
from typing import Literal

from paceline.messages import Branches, Commit, Message, Open, Proposal
from paceline.trace import Tracer, flow_id

TRACK = "control"


def trace_message(
    tracer: Tracer, step: Literal["send", "receive"], link: bytes, message: Message, start: float
) -> None:
    """Takes down that ``message`` has been sent or received, from ``start`` until now.

    Both ends work out the same id for the arrow. Heartbeats and handshakes are left out.

    Args:
        link: The drafter's identity on its socket, which both ends know.
        start: Before encoding or decoding.
    """
    if not tracer.enabled:
        return
    match message:
        case Open():
            first, size = (message.handle, 0, ""), 1
        case Commit(commits=[one, *_]):
            first, size = (one.handle, one.base_length, ""), len(message.commits)
        case Proposal(proposals=[one, *_]):
            first, size = (one.handle, one.base_length, ""), len(message.proposals)
        case Branches(branches=[one, *_]):
            # Several of one request and base are under way, and told apart by their tokens.
            first, size = (one.handle, one.base_length, f"{one.tokens}"), len(message.branches)
        case _:
            return
    name = type(message).__name__
    handle, base_length, text = first
    arrow = flow_id(link.decode(errors="replace"), handle, base_length, name + text)
    tracer.span(TRACK, step, start, time.monotonic(), message=name, size=size)
    mark = tracer.flow_start if step == "send" else tracer.flow_end
    mark(TRACK, arrow, start, name)
