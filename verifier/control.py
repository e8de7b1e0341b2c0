"""The verifier's I/O thread: handshakes, heartbeats, and messages to and from the drafters.

A thread of its own, since vLLM does not call the scheduler while it is idle, and a drafter must be
answered all the same. It never waits for anybody: what a drafter does not take is dropped (a lost
commit makes the drafter ask for Open again) and what does not decode is counted. A peer that sends
``MAX_STRIKES`` bad messages is cut off.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from paceline.errors import PeerGoneError, ProtocolError
from paceline.messages import (
    Branches,
    Close,
    Hello,
    Message,
    Ping,
    Pong,
    Proposal,
    Refuse,
    Reopen,
    RowNeeds,
)
from paceline.scheduler.events import (
    BranchArrived,
    DrafterJoined,
    DrafterLost,
    Event,
    ProposalArrived,
    ReopenAsked,
)
from paceline.trace import DISABLED, Tracer
from paceline.transport import CurveKeys, Router, TransportConfig, wake_descriptor
from paceline.verifier.handshake import TargetIdentity, check_hello, row_needs

logger = logging.getLogger("paceline.verifier")

MAX_STRIKES = 10
_MAX_MESSAGES_PER_TURN = 256
_MAX_WAITING_EVENTS = 65_536
_MAY_BE_LOST = (ProposalArrived, BranchArrived, ReopenAsked)
_MAX_STRIKERS = 4096  # a hostile peer may come with a new identity each time


@dataclass(kw_only=True, slots=True)
class _Peer:
    """A drafter that was welcomed."""

    name: str
    vocab_size: int
    num_speculative_tokens: int
    last_heard: float
    unsent_closes: list[int] = field(default_factory=list)


class ControlThread:
    """Owns the CONTROL socket. All methods but ``start`` and ``stop`` may be called by the
    scheduler's thread at any time; events come in the order in which they happened."""

    def __init__(
        self,
        address: str,
        config: TransportConfig,
        keys: CurveKeys | None,
        target: TargetIdentity,
        clock: Callable[[], float] = time.monotonic,
        tracer: Tracer = DISABLED,
    ) -> None:
        self._config = config
        self._target = target
        self._clock = clock
        self._address = address
        self._keys = keys
        self._tracer = tracer
        self._stack = ExitStack()
        self._wake = -1
        self._stopping = threading.Event()
        self._outbox: deque[tuple[str, Message]] = deque()
        self._inbox: deque[Event] = deque()
        self._arrived = threading.Condition()
        self._peers: dict[bytes, _Peer] = {}
        self._strikes: dict[bytes, int] = {}
        self._needs: dict[str, RowNeeds | None] = {}
        self._thread = threading.Thread(target=self._run, name="paceline-control", daemon=True)
        self.num_dropped = 0
        """Messages that a drafter did not take."""
        self.num_rejected = 0
        """Messages that were no valid ones."""

    def start(self) -> None:
        """Binds the socket and starts the thread.

        Raises:
            ConfigError: the address cannot be bound.
        """
        self._wake = self._stack.enter_context(wake_descriptor())
        self._router = self._stack.enter_context(
            Router(self._address, self._config.high_water_mark, self._keys, self._tracer)
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

    def send(self, drafter: str, message: Message) -> None:
        """Queues ``message`` for ``drafter``; call ``flush`` behind the last one."""
        self._outbox.append((drafter, message))

    def flush(self) -> None:
        """Wakes the thread, if it runs, to send what is queued."""
        if self._outbox and self._wake >= 0:
            self._ring()

    def take_events(self) -> list[Event]:
        """Returns what has happened since the last call."""
        events: list[Event] = []
        while self._inbox:
            events.append(self._inbox.popleft())
        return events

    @property
    def incarnation(self) -> int:
        """The engine's."""
        return self._target.incarnation

    def row_needs(self, drafter: str) -> RowNeeds | None:
        """Returns what a drafter that has joined needs of the target's states; None: nothing."""
        return self._needs.get(drafter)

    def wait(self, seconds: float) -> None:
        """Returns when there is an event, or after ``seconds``."""
        with self._arrived:
            if not self._inbox:
                self._arrived.wait(seconds)

    def _ring(self) -> None:
        try:
            os.eventfd_write(self._wake, 1)
        except BlockingIOError:
            pass  # it is ringing already

    def _run(self) -> None:
        try:
            self._loop()
        except Exception:  # the outermost loop of this thread: the engine must not wait for it
            logger.exception("the control thread has died: requests run undrafted from now on")
            for identity in list(self._peers):
                self._lose(identity)

    def _loop(self) -> None:
        heartbeat = self._config.heartbeat_ms / 1000
        next_check = self._clock() + heartbeat
        while not self._stopping.is_set():
            self._router.poll(max(0.0, next_check - self._clock()) * 1000)
            try:
                os.eventfd_read(self._wake)
            except BlockingIOError:
                pass  # a message or the clock ended the poll
            self._send_all()
            self._receive_all()
            if self._clock() >= next_check:
                next_check = self._clock() + heartbeat
                self._expire()

    def _send_all(self) -> None:
        peer_of = {peer.name: (identity, peer) for identity, peer in self._peers.items()}
        while self._outbox:
            drafter, message = self._outbox.popleft()
            if drafter not in peer_of:
                continue  # it was lost after the message was queued
            identity, peer = peer_of[drafter]
            if isinstance(message, Close):
                peer.unsent_closes.extend(message.handles)
            elif not self._send(identity, message):
                self.num_dropped += 1
        for identity, peer in list(self._peers.items()):
            # A close must not be lost: the drafter would keep the request's state for ever.
            if peer.unsent_closes and self._send(identity, Close(handles=peer.unsent_closes[:])):
                peer.unsent_closes.clear()

    def _send(self, identity: bytes, message: Message) -> bool:
        """Queues ``message``; returns False if the peer has gone, or does not keep up."""
        try:
            return self._router.send(identity, message)
        except PeerGoneError:
            if identity in self._peers:
                logger.warning("drafter %s has gone", self._peers[identity].name)
                self._lose(identity)
            return False

    def _receive_all(self) -> None:
        for _ in range(_MAX_MESSAGES_PER_TURN):
            received = self._router.receive()
            if received is None:
                return
            identity, message = received
            if self._strikes.get(identity, 0) >= MAX_STRIKES:
                if isinstance(message, Hello):
                    reason = (
                        f"drafter {message.drafter} was cut off after {MAX_STRIKES} bad messages"
                    )
                    self._send(identity, Refuse(reason=f"{reason}; see the verifier's log"))
                continue
            if isinstance(message, ProtocolError):
                self._strike(identity, str(message))
            else:
                self._take(identity, message)
            if self._outbox:
                return  # a peer that floods this thread must not keep the others waiting

    def _take(self, identity: bytes, message: Message) -> None:
        peer = self._peers.get(identity)
        if peer is not None:
            peer.last_heard = self._clock()
        match message:
            case Hello():
                self._greet(identity, message)
            case Ping():
                welcomed = peer is not None
                pong = Pong(incarnation=self._target.incarnation, welcomed=welcomed)
                self._send(identity, pong)
            case Proposal() if peer is not None:
                self._propose(identity, peer, message)
            case Branches() if peer is not None:
                self._take_branches(identity, peer, message)
            case Reopen() if peer is not None:
                handles = dict.fromkeys(message.handles)
                self._post(*(ReopenAsked(drafter=peer.name, handle=handle) for handle in handles))
            case Proposal() | Branches() | Reopen():
                pass  # of a drafter that was lost meanwhile; its next Ping tells it so
            case _:
                self._strike(identity, f"a {type(message).__name__} is not a drafter's to send")

    def _greet(self, identity: bytes, hello: Hello) -> None:
        answer = check_hello(hello, self._target)
        if isinstance(answer, Refuse):
            logger.warning("refused a drafter: %s", answer.reason)
            self._send(identity, answer)
            return
        for other, peer in list(self._peers.items()):
            if peer.name == hello.drafter:
                del self._peers[other]
        self._needs[hello.drafter] = row_needs(hello)
        self._peers[identity] = _Peer(
            name=hello.drafter,
            vocab_size=answer.vocab_size,
            num_speculative_tokens=answer.num_speculative_tokens,
            last_heard=self._clock(),
        )
        logger.info(
            "drafter %s (%s, K=%d, incarnation %d) has joined",
            hello.drafter,
            hello.method,
            answer.num_speculative_tokens,
            hello.incarnation,
        )
        self._post(
            DrafterJoined(
                drafter=hello.drafter,
                method=hello.method,
                max_requests=hello.max_requests,
                num_speculative_tokens=answer.num_speculative_tokens,
            )
        )
        self._send(identity, answer)

    def _propose(self, identity: bytes, peer: _Peer, message: Proposal) -> None:
        events: list[Event] = []
        for proposed in message.proposals:
            if self._are_drafts(identity, peer, proposed.tokens, len(proposed.tokens)):
                events.append(
                    ProposalArrived(
                        drafter=peer.name,
                        handle=proposed.handle,
                        base_length=proposed.base_length,
                        tokens=tuple(proposed.tokens),
                        now=self._clock(),
                        spent=message.spent_s,
                    )
                )
        self._post(*events)

    def _take_branches(self, identity: bytes, peer: _Peer, message: Branches) -> None:
        events: list[Event] = []
        for branch in message.branches:
            num_drafts = len(branch.tokens) - branch.num_outcome
            if self._are_drafts(identity, peer, branch.tokens, num_drafts):
                events.append(
                    BranchArrived(
                        drafter=peer.name,
                        handle=branch.handle,
                        base_length=branch.base_length,
                        num_outcome=branch.num_outcome,
                        tokens=tuple(branch.tokens),
                    )
                )
        self._post(*events)

    def _are_drafts(
        self, identity: bytes, peer: _Peer, tokens: Sequence[int], num_drafts: int
    ) -> bool:
        """Whether ``tokens`` may go on; the peer may have been cut off in mid-message."""
        if identity not in self._peers:
            return False
        if num_drafts > peer.num_speculative_tokens:
            self._strike(identity, f"a proposal of {num_drafts} tokens")
            return False
        if max(tokens, default=0) >= peer.vocab_size:
            self._strike(identity, "a draft token that the target's vocabulary does not have")
            return False
        return True

    def _strike(self, identity: bytes, reason: str) -> None:
        self.num_rejected += 1
        if len(self._strikes) >= _MAX_STRIKERS:
            self._strikes.pop(next(iter(self._strikes)))
        self._strikes[identity] = self._strikes.get(identity, 0) + 1
        peer = self._peers.get(identity)
        name = peer.name if peer else "an unknown peer"
        logger.warning("dropped a message of %s: %s", name, reason)
        if self._strikes[identity] >= MAX_STRIKES:
            logger.error("%s is cut off after %d bad messages", name, MAX_STRIKES)
            self._lose(identity)

    def _expire(self) -> None:
        """Drops who is gone. Each peer is sent a word, since ZeroMQ tells of a lost connection
        only when something is sent."""
        limit = self._clock() - self._config.heartbeat_timeout_ms / 1000
        for identity, peer in list(self._peers.items()):
            if peer.last_heard < limit:
                logger.warning("drafter %s has gone silent", peer.name)
                self._lose(identity)
            else:
                self._send(identity, Pong(incarnation=self._target.incarnation, welcomed=True))

    def _lose(self, identity: bytes) -> None:
        peer = self._peers.pop(identity, None)
        if peer is not None:
            self._post(DrafterLost(drafter=peer.name))

    def _post(self, *events: Event) -> None:
        if events:
            with self._arrived:
                if len(self._inbox) > _MAX_WAITING_EVENTS:
                    # The engine is idle and takes no events. A lost proposal costs one draft, and
                    # who has lost track of a request asks again at its next commit.
                    events = tuple(e for e in events if not isinstance(e, _MAY_BE_LOST))
                self._inbox.extend(events)
                self._arrived.notify_all()
