"""A drafter's loop: listen to the verifiers, draft what is due, process what is new.

One thread and no queue of its own: whatever has arrived is taken in before each draft batch, so a
batch is always made of the newest commits.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from paceline.drafter.model import Draft, DraftModel
from paceline.drafter.pipelining import Pipelining
from paceline.drafter.session import Session
from paceline.errors import ProtocolError
from paceline.messages import Hello
from paceline.trace import DISABLED, Tracer
from paceline.transport import CurveKeys, Dealer, TransportConfig, wait_any, wake_descriptor

if TYPE_CHECKING:
    from paceline.drafter.row_links import RowLinks

logger = logging.getLogger("paceline.drafter")

_CONNECT_RETRY = 0.1
"""Seconds between two Hellos while the verifier is not there yet."""


class DraftService:
    """Serves one or more verifiers with one draft model."""

    def __init__(
        self,
        *,
        hello: Hello,
        model: DraftModel,
        addresses: Sequence[str],
        transport: TransportConfig,
        keys: CurveKeys | None,
        tracer: Tracer = DISABLED,
        max_store_bytes: int = 1 << 30,
    ) -> None:
        """Args:
        max_store_bytes: Of the rows of prompts that are kept for each verifier.
        """
        self._hello = hello
        self._model = model
        self._addresses = addresses
        self._transport = transport
        self._keys = keys
        self._tracer = tracer
        self._pipelining = Pipelining(model, tracer)
        self._stopping = threading.Event()
        self.welcomed = threading.Event()
        """Set while every verifier has taken this drafter in."""
        self._rows: list[tuple[Session, RowLinks]] = []
        self._max_store_bytes = max_store_bytes
        self._wake: int | None = None
        self._wake_lock = threading.Lock()

    def run(self) -> None:
        """Serves until ``stop``; meant to be the process's main loop.

        Raises:
            RefusedError: a verifier will not work with this drafter.
        """
        with ExitStack() as stack:
            self._wake = stack.enter_context(wake_descriptor())
            identity = f"{self._hello.drafter}/{self._hello.incarnation:x}".encode()
            links = [
                (
                    stack.enter_context(
                        Dealer(
                            address,
                            self._transport.high_water_mark,
                            self._keys,
                            identity,
                            self._tracer,
                        )
                    ),
                    self._session(stack),
                )
                for address in self._addresses
            ]
            try:
                self._loop(links, self._wake)
            finally:
                with self._wake_lock:
                    self._wake = None

    def _session(self, stack: ExitStack) -> Session:
        session = Session(
            hello=self._hello,
            model=self._model,
            clock=time.monotonic,
            silence_limit=self._transport.heartbeat_timeout_ms / 1000,
        )
        if self._model.needs is not None:
            # Only now: a drafter that needs tokens alone needs no torch.
            from paceline.drafter.row_inbox import RowInbox
            from paceline.drafter.row_links import RowLinks

            session.inbox = RowInbox(self._model.device, self._max_store_bytes)
            links = RowLinks(self._hello, self._transport, self._keys, self._tracer)
            stack.callback(links.close)
            self._rows.append((session, links))
        return session

    def stop(self) -> None:
        """Ends ``run`` soon; may be called from any thread."""
        self._stopping.set()
        with self._wake_lock:
            if self._wake is not None:
                os.eventfd_write(self._wake, 1)

    def _loop(self, links: list[tuple[Dealer, Session]], wake: int) -> None:
        next_greeting = time.monotonic()
        drafted = False
        while not self._stopping.is_set():
            now = time.monotonic()
            if now >= next_greeting:
                for dealer, session in links:
                    dealer.send(session.greeting())
                for _, row_links in self._rows:
                    row_links.greet()
                waiting = self._is_waiting(links)
                pause = _CONNECT_RETRY if waiting else self._transport.heartbeat_ms / 1000
                next_greeting = now + pause
            busy = drafted or self._has_work(links)
            until = min([next_greeting, *(session.held_until() for _, session in links)])
            endpoints = [dealer for dealer, _ in links]
            endpoints += [dealer for _, row_links in self._rows for dealer in row_links.dealers]
            wait_any(endpoints, wake, 0 if busy else until - now)
            for dealer, session in links:
                self._receive(dealer, session)
            for session, row_links in self._rows:
                assert session.inbox is not None
                row_links.follow(session.welcome)
                row_links.receive(session.inbox)
            if self._is_waiting(links):
                self.welcomed.clear()
            else:
                self.welcomed.set()
            for dealer, session in links:
                if not session.is_pipelined:
                    self._draft(dealer, session)
            drafted = self._pipelining.step(links)
            self._prepare(links)

    def _is_waiting(self, links: list[tuple[Dealer, Session]]) -> bool:
        return any(session.welcome is None for _, session in links)

    def _receive(self, dealer: Dealer, session: Session) -> None:
        while (message := dealer.receive()) is not None:
            if isinstance(message, ProtocolError):
                logger.warning("dropped a message of the verifier: %s", message)
            elif (answer := session.take(message)) is not None:
                dealer.send(answer)

    def _has_work(self, links: list[tuple[Dealer, Session]]) -> bool:
        return any(
            self._model.has_work(request)
            for _, session in links
            for request in session.requests.values()
        )

    def _draft(self, dealer: Dealer, session: Session) -> None:
        due = session.due()
        if not due or session.welcome is None:
            return
        ready = [item for item in due if self._model.is_ready(item[1])]
        # Who is not ready says so at once: the verifier need not wait for a long prefill.
        drafts = [(handle, r, Draft([])) for handle, r in due if not self._model.is_ready(r)]
        if drafts:
            dealer.send(session.proposal(drafts))
        if ready:
            started = time.monotonic()
            made = self._model.draft(
                [request for _, request in ready],
                session.welcome.num_speculative_tokens,
                session.welcome.vocab_size,
            )
            self._tracer.span("draft", "draft", started, time.monotonic(), rows=len(ready))
            drafts = [(handle, r, draft) for (handle, r), draft in zip(ready, made, strict=True)]
            dealer.send(session.proposal(drafts))

    def _prepare(self, links: list[tuple[Dealer, Session]]) -> None:
        """Processes one piece of one request, then looks at the sockets again."""
        for _, session in links:
            for request in session.requests.values():
                if self._model.has_work(request):
                    started = time.monotonic()
                    self._model.prepare(request)
                    self._tracer.span("draft", "prefill", started, time.monotonic())
                    return
