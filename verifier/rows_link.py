"""A rank's end of the rows link: a thread of its own that sends what the passes computed.

The engine's thread hands a pass over and goes on. What a drafter does not take in time is dropped
and counted, and the drafter sees the gap by the positions: it never slows the target.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from paceline.errors import PeerGoneError, ProtocolError
from paceline.messages import Refuse, Rows, RowsHello, RowsWelcome
from paceline.transport import CurveKeys, Router, TransportConfig, wake_descriptor
from paceline.verifier.rows_export import Buffer, Packed, messages

logger = logging.getLogger("paceline.verifier")

MAX_PASSES = 64
"""Passes that wait for the thread; with more of them it is not keeping up with the target."""
MAX_BYTES = 256 << 20
"""Of one drafter's rows that have not gone out yet."""
_REPORT_SECONDS = 10.0
_MAX_UNANSWERED = 256


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass may send."""

    verifier: int
    """The engine's incarnation."""
    wait: Callable[[], Packed]
    """Returns the rows when they are in host memory; called in the link's thread."""


@dataclass(slots=True)
class _Lane:
    """One drafter."""

    identity: bytes | None = None
    """None: it has not asked for rows here yet."""
    last_heard: float = 0.0
    waiting: deque[tuple[Rows, list[Buffer]]] = field(default_factory=deque)
    """Rows that came before it asked."""
    num_bytes: int = 0
    """Held, here or in the socket's queue."""
    sent: deque[int] = field(default_factory=deque)
    """Bytes that are held no longer, as the buffers' finalizers tell from whatever thread."""


class RowsLink:
    """Owns a rank's rows socket. ``post`` is the engine's thread's to call."""

    def __init__(
        self,
        address: str,
        rank: int,
        config: TransportConfig,
        keys: CurveKeys | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._rank = rank
        self._config = config
        self._keys = keys
        self._clock = clock
        self._stack = ExitStack()
        self._wake = -1
        self._stopping = threading.Event()
        self._passes: deque[Pass] = deque()
        self._lanes: dict[str, _Lane] = {}
        self._verifier: int | None = None
        self._unanswered: dict[bytes, RowsHello] = {}
        self._thread = threading.Thread(target=self._run, name="paceline-rows", daemon=True)
        self._reported = 0
        self._next_report = 0.0
        self._failed = False
        self.num_sent = 0
        """Messages of rows."""
        self.num_dropped = 0
        """Messages of rows, or whole passes, that were not sent: nobody took them in time."""
        self.num_rejected = 0
        """Messages that were no valid ones."""

    def start(self) -> None:
        """Binds the socket and starts the thread.

        Raises:
            ConfigError: the address cannot be bound.
        """
        self._wake = self._stack.enter_context(wake_descriptor())
        self._router = self._stack.enter_context(
            Router(self._address, self._config.high_water_mark, self._keys)
        )
        self._router.watch(self._wake)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and frees the address; may be called twice, and without ``start``."""
        self._stopping.set()
        if self._thread.is_alive():
            self._ring()
            self._thread.join()
        self._wake = -1
        self._stack.close()

    def post(self, one: Pass) -> None:
        """Hands a pass over; returns at once."""
        if self._failed or len(self._passes) >= MAX_PASSES:
            self.num_dropped += 1
            return
        self._passes.append(one)
        self._ring()

    def _ring(self) -> None:
        try:
            os.eventfd_write(self._wake, 1)
        except BlockingIOError:
            pass  # it is ringing already

    def _run(self) -> None:
        try:
            self._loop()
        except Exception:  # the outermost loop of this thread: the engine must not wait for it
            self._failed = True
            self._passes.clear()
            logger.exception("the rows thread has died: no rows are sent from now on")

    def _loop(self) -> None:
        while not self._stopping.is_set():
            self._router.poll(self._config.heartbeat_ms)
            try:
                os.eventfd_read(self._wake)
            except BlockingIOError:
                pass  # a message or the clock ended the poll
            self._receive_all()
            while self._passes and not self._stopping.is_set():
                self._send_pass(self._passes.popleft())
                self._receive_all()
            self._expire()
            self._report()

    # Who wants rows.

    def _receive_all(self) -> None:
        while (received := self._router.receive()) is not None:
            identity, message = received
            if isinstance(message, RowsHello):
                self._greet(identity, message)
                continue
            self.num_rejected += 1
            what = message if isinstance(message, ProtocolError) else type(message).__name__
            logger.warning("dropped a message on the rows link: %s", what)

    def _greet(self, identity: bytes, hello: RowsHello) -> None:
        if self._verifier is None:
            # Which engine this is becomes known with its first pass; nothing is to be sent before.
            if len(self._unanswered) < _MAX_UNANSWERED:
                self._unanswered[identity] = hello
            return
        if hello.verifier != self._verifier:
            reason = (
                f"rank {self._rank} at {self._address} belongs to another engine than the one that "
                f"welcomed drafter {hello.drafter}; say Hello again"
            )
            self._try_send(identity, Refuse(reason=reason))
            return
        lane = self._lanes.setdefault(hello.drafter, _Lane())
        if self._try_send(identity, RowsWelcome(verifier=self._verifier, rank=self._rank)):
            lane.identity, lane.last_heard = identity, self._clock()
            while lane.waiting:
                self._send(lane, *lane.waiting.popleft())

    def _begin(self, verifier: int) -> None:
        if self._verifier is None:
            self._verifier = verifier
            for identity, hello in self._unanswered.items():
                self._greet(identity, hello)
            self._unanswered.clear()

    def _expire(self) -> None:
        limit = self._clock() - self._config.heartbeat_timeout_ms / 1000
        for lane in self._lanes.values():
            if lane.identity is not None and lane.last_heard < limit:
                lane.identity = None

    # What they get.

    def _send_pass(self, one: Pass) -> None:
        self._begin(one.verifier)
        packed = one.wait()
        self._forget_absent(packed)
        for drafter, rows, frames in messages(packed):
            lane = self._lanes.setdefault(drafter, _Lane())
            while lane.sent:
                lane.num_bytes -= lane.sent.popleft()
            size = sum(len(buffer) for buffer in frames)
            if lane.num_bytes + size > MAX_BYTES:
                self.num_dropped += 1
                continue
            lane.num_bytes += size
            for buffer in frames:
                # The array behind the buffer lives as long as ZeroMQ holds the frame.
                assert isinstance(buffer.obj, np.ndarray)
                weakref.finalize(buffer.obj, lane.sent.append, len(buffer))
            if lane.identity is None:
                lane.waiting.append((rows, frames))
            else:
                self._send(lane, rows, frames)

    def _forget_absent(self, packed: Packed) -> None:
        """Drops what waits for drafters that have no request in this engine any more."""
        for name, lane in list(self._lanes.items()):
            if lane.identity is None and name not in packed.drafters:
                del self._lanes[name]

    def _send(self, lane: _Lane, rows: Rows, frames: list[Buffer]) -> None:
        assert lane.identity is not None
        if self._try_send(lane.identity, rows, frames):
            self.num_sent += 1
        else:
            self.num_dropped += 1

    def _try_send(
        self,
        identity: bytes,
        message: Rows | RowsWelcome | Refuse,
        frames: list[Buffer] | None = None,
    ) -> bool:
        try:
            return self._router.send(identity, message, frames or ())
        except PeerGoneError:
            for lane in self._lanes.values():
                if lane.identity == identity:
                    lane.identity = None
            return False

    def _report(self) -> None:
        if self.num_dropped > self._reported and self._clock() >= self._next_report:
            logger.warning(
                "%d messages of rows were dropped: a drafter does not keep up",
                self.num_dropped - self._reported,
            )
            self._reported = self.num_dropped
            self._next_report = self._clock() + _REPORT_SECONDS
