"""Scripted drafters: they speak the real protocol over real sockets, and propose what a test says.

A script decides what to send when a proposal is due. Nothing here sleeps: a late proposal is one
that is sent after the commit that follows it.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable

from paceline.messages import (
    PROTOCOL_VERSION,
    Branch,
    Branches,
    Close,
    Commit,
    Hello,
    Open,
    Ping,
    Proposal,
    Proposed,
    Reopen,
    RowNeeds,
    Rows,
    RowsHello,
    Welcome,
)
from paceline.transport import MAX_ROWS_BYTES, CurveKeys, Dealer, wait_any, wake_descriptor

Oracle = Callable[[list[int], int], list[int]]
"""From all committed tokens and a number k to the k tokens that the target will choose next."""

Script = Callable[[int, list[int]], Iterable[Proposed | Branch]]
"""From a handle and its committed tokens to what is sent now."""


def oracle_of(sequences: Iterable[list[int]]) -> Oracle:
    """Returns an oracle that knows whole sequences (prompt and plain decoding's output)."""
    known = [list(sequence) for sequence in sequences]

    def continuation(tokens: list[int], k: int) -> list[int]:
        for sequence in known:
            if sequence[: len(tokens)] == tokens:
                return sequence[len(tokens) : len(tokens) + k]
        return []

    return continuation


def proposed(handle: int, tokens: list[int], drafts: list[int]) -> Proposed:
    """Returns a proposal behind ``tokens``."""
    return Proposed(handle=handle, base_length=len(tokens), tokens=drafts, confidence=[])


def branch(handle: int, tokens: list[int], outcome: list[int], drafts: list[int]) -> Branch:
    """Returns drafts behind an outcome of the pass that ``tokens`` are the base of."""
    return Branch(
        handle=handle,
        base_length=len(tokens),
        num_outcome=len(outcome),
        tokens=[*outcome, *drafts],
    )


def perfect(oracle: Oracle, k: int) -> Script:
    """Proposes what the target will choose."""
    return lambda handle, tokens: [proposed(handle, tokens, oracle(tokens, k))]


def wrong(oracle: Oracle, k: int, vocab_size: int) -> Script:
    """Proposes tokens of which none is what the target will choose."""
    return lambda handle, tokens: [
        proposed(handle, tokens, [(token + 1) % vocab_size for token in oracle(tokens, k)])
    ]


def late(oracle: Oracle, k: int) -> Script:
    """Proposes what the target will choose, each time only after the next commit."""
    held: dict[int, Proposed] = {}

    def script(handle: int, tokens: list[int]) -> Iterable[Proposed]:
        previous = held.get(handle)
        held[handle] = proposed(handle, tokens, oracle(tokens, k))
        return [previous] if previous is not None else []

    return script


def noisy(oracle: Oracle, k: int, vocab_size: int, p_wrong: float) -> Script:
    """Proposes 0 to k tokens, each one wrong with probability ``p_wrong``; always the same ones."""

    def script(handle: int, tokens: list[int]) -> Iterable[Proposed]:
        generator = random.Random(f"{handle}/{len(tokens)}")
        drafts = [
            (token + (generator.random() < p_wrong)) % vocab_size
            for token in oracle(tokens, generator.randint(0, k))
        ]
        return [proposed(handle, tokens, drafts)]

    return script


class Death(Exception):
    """Raised by a script: the drafter vanishes without a word."""


def dying(script: Script, after: int) -> Script:
    """Does as ``script`` does ``after`` times, then dies."""
    count = 0

    def mortal(handle: int, tokens: list[int]) -> Iterable[Proposed | Branch]:
        nonlocal count
        count += 1
        if count > after:
            raise Death
        return script(handle, tokens)

    return mortal


class FakeDrafter:
    """A scripted drafter in a thread; use it with ``with``, which returns once it is welcomed."""

    def __init__(
        self,
        address: str,
        script: Script,
        *,
        k: int,
        name: str = "fake",
        method: str = "scripted",
        keys: CurveKeys | None = None,
        needs: RowNeeds | None = None,
        take_rows: Callable[[Rows, list[bytes]], None] | None = None,
    ) -> None:
        """Args:
        needs: What it asks for of the target's states.
        take_rows: Gets what comes of them, in the drafter's thread.
        """
        self._take_rows = take_rows
        self._ranks: list[Dealer] = []
        self._verifier = 0
        self._address = address
        self._script = script
        self._keys = keys
        self._hello = Hello(
            protocol_versions=[PROTOCOL_VERSION],
            drafter=name,
            incarnation=secrets.randbits(62) + 1,
            method=method,
            vocab_size=0,
            tokenizer_fingerprint="",
            num_speculative_tokens=k,
            max_requests=64,
            needs=needs,
        )
        self._closing = contextlib.ExitStack()
        self._stopping = False
        self._welcomed = threading.Event()
        self.dead = threading.Event()
        """Set when its socket is closed."""
        self.tokens: dict[int, list[int]] = {}
        """Committed tokens of the open requests, by handle."""
        self.num_opened = 0
        self.opened = threading.Event()
        """Set when a request was opened."""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"fake-{name}")

    def __enter__(self) -> FakeDrafter:
        # Open until the thread has ended: it may end by itself just before it is woken.
        self._wake = self._closing.enter_context(wake_descriptor())
        self._thread.start()
        if not self._welcomed.wait(60):
            self.__exit__()  # or the thread would keep the tests' process alive
            raise AssertionError("the verifier did not welcome the drafter")
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._closing.close()

    def wait_closed(self, num_opened: int) -> bool:
        """Waits until at least ``num_opened`` requests were opened and none of them is open still.

        The last Close may arrive after its request's result: "none is open" alone may also be
        true for a moment between two requests.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: self.num_opened >= num_opened and not self.tokens, timeout=60
            )

    def _run(self) -> None:
        identity = f"{self._hello.drafter}/{self._hello.incarnation:x}".encode()
        with (
            Dealer(self._address, 1024, self._keys, identity) as dealer,
            contextlib.ExitStack() as ranks,
        ):
            said_hello = False
            unasked: list[Dealer] = []
            next_ping = time.monotonic()
            try:
                while not self._stopping:
                    if not said_hello:
                        # False until it is connected. Never twice: behind a second Hello the
                        # verifier would open all requests again.
                        said_hello = dealer.send(self._hello)
                    elif time.monotonic() >= next_ping:
                        # Seldom, since each is answered; whatever else it does, the verifier must
                        # not take it for dead.
                        dealer.send(Ping(incarnation=self._hello.incarnation, num_requests=0))
                        unasked = list(self._ranks)
                        next_ping = time.monotonic() + 1
                    unasked = [rank for rank in unasked if not rank.send(self._rows_hello())]
                    done = said_hello and not unasked
                    pause = next_ping - time.monotonic() if done else 0.01
                    wait_any([dealer, *self._ranks], self._wake, pause)
                    while (message := dealer.receive()) is not None:
                        if isinstance(message, Welcome):
                            unasked = [
                                ranks.enter_context(
                                    Dealer(
                                        endpoint.address,
                                        1024,
                                        self._keys,
                                        identity,
                                        max_bytes=MAX_ROWS_BYTES,
                                    )
                                )
                                for endpoint in message.rows
                            ]
                            self._ranks = list(unasked)
                            self._verifier = message.incarnation
                        self._take(dealer, message)
                    self._receive_rows()
            except Death:
                pass
        self.dead.set()

    def _rows_hello(self) -> RowsHello:
        return RowsHello(
            drafter=self._hello.drafter,
            incarnation=self._hello.incarnation,
            verifier=self._verifier,
        )

    def _receive_rows(self) -> None:
        for rank in self._ranks:
            while (received := rank.receive_whole()) is not None:
                message, tensors = received
                if isinstance(message, Rows) and self._take_rows is not None:
                    self._take_rows(message, tensors)

    def _take(self, dealer: Dealer, message: object) -> None:
        match message:
            case Welcome():
                self._welcomed.set()
            case Open():
                with self._changed:
                    self.num_opened += 1
                    self.tokens[message.handle] = message.prompt_ids + message.output_ids
                    self._changed.notify_all()
                self.opened.set()
                if message.output_ids:
                    self._propose(dealer, [message.handle])
            case Commit():
                due = []
                for commit in message.commits:
                    tokens = self.tokens.get(commit.handle)
                    if tokens is None or len(tokens) < commit.base_length:
                        dealer.send(Reopen(handles=[commit.handle]))
                        continue
                    tokens[commit.base_length :] = commit.tokens
                    due.append(commit.handle)
                self._propose(dealer, due)
            case Close():
                with self._changed:
                    for handle in message.handles:
                        self.tokens.pop(handle, None)
                    self._changed.notify_all()

    def _propose(self, dealer: Dealer, due: list[int]) -> None:
        said = [one for handle in due for one in self._script(handle, self.tokens[handle])]
        # The branches first: the pass that the proposal sets off may end at once.
        if branches := [one for one in said if isinstance(one, Branch)]:
            dealer.send(Branches(branches=branches))
        if proposals := [one for one in said if isinstance(one, Proposed)]:
            dealer.send(Proposal(proposals=proposals))
