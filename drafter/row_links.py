"""The way of rows from the target's ranks to a drafter: one dialling socket per rank."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from paceline.drafter.row_inbox import RowInbox
from paceline.errors import ProtocolError
from paceline.messages import Hello, Refuse, Rows, RowsHello, Welcome
from paceline.trace import DISABLED, Tracer
from paceline.transport import MAX_ROWS_BYTES, CurveKeys, Dealer, TransportConfig

logger = logging.getLogger("paceline.drafter")

_MAX_MESSAGES_PER_TURN = 256
"""So that a long prompt's rows do not keep other links waiting."""


class RowLinks:
    """The sockets of one verifier; not thread-safe, closed with ``close``."""

    def __init__(
        self,
        hello: Hello,
        transport: TransportConfig,
        keys: CurveKeys | None,
        tracer: Tracer = DISABLED,
    ) -> None:
        self._hello = hello
        self._transport = transport
        self._keys = keys
        self._tracer = tracer
        self._verifier = 0
        self._dealers: dict[str, Dealer] = {}
        """By address."""

    @property
    def dealers(self) -> Sequence[Dealer]:
        """What to wait for."""
        return list(self._dealers.values())

    def follow(self, welcome: Welcome | None) -> None:
        """Dials what the verifier has named, and hangs up where it is another one's, or None."""
        wanted = set() if welcome is None else {endpoint.address for endpoint in welcome.rows}
        incarnation = 0 if welcome is None else welcome.incarnation
        if incarnation == self._verifier and set(self._dealers) == wanted:
            return
        self.close()
        self._verifier = incarnation
        identity = f"{self._hello.drafter}/{self._hello.incarnation:x}".encode()
        for address in sorted(wanted):
            self._dealers[address] = Dealer(
                address,
                self._transport.high_water_mark,
                self._keys,
                identity,
                self._tracer,
                MAX_ROWS_BYTES,
            )
        self.greet()

    def greet(self) -> None:
        """Says to each rank that this drafter is there; to be said again and again."""
        for dealer in self._dealers.values():
            dealer.send(
                RowsHello(
                    drafter=self._hello.drafter,
                    incarnation=self._hello.incarnation,
                    verifier=self._verifier,
                )
            )

    def receive(self, inbox: RowInbox) -> None:
        """Hands on what has come."""
        for dealer in self._dealers.values():
            for _ in range(_MAX_MESSAGES_PER_TURN):
                received = dealer.receive_whole()
                if received is None:
                    break
                message, tensors = received
                match message:
                    case ProtocolError():
                        logger.warning("dropped rows of the verifier: %s", message)
                    case Rows():
                        inbox.take(message, tensors)
                    case Refuse():
                        # Of an engine that was restarted, mostly: the control link finds out.
                        logger.warning("a rank sends no rows: %s", message.reason)
                    case _:
                        pass

    def close(self) -> None:
        """Hangs up; may be called twice."""
        for dealer in self._dealers.values():
            dealer.close()
        self._dealers.clear()
        self._verifier = 0
