"""One drafter's side of the conversation with one verifier: state and messages, no socket."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.drafter.model import Draft, DraftModel, DraftRequest, Scope
from paceline.drafter.outlook import Outlook
from paceline.errors import RefusedError
from paceline.messages import (
    MAX_SECONDS,
    PROTOCOL_VERSION,
    Close,
    Commit,
    Committed,
    Flush,
    Hello,
    Message,
    Open,
    Ping,
    Pong,
    Proposal,
    Proposed,
    Refuse,
    Reopen,
    Welcome,
)
from paceline.scheduler.branching import Branching

if TYPE_CHECKING:
    from paceline.drafter.row_inbox import RowInbox

logger = logging.getLogger("paceline.drafter")

MAX_HOLD = 0.05
"""Seconds that a due proposal waits for rows. They leave the target before the commit does; with
what is not here by then something is wrong."""


@dataclass(kw_only=True)
class Session:
    """What one verifier has told this drafter.

    Attributes:
        hello: What the drafter says of itself.
        model: Keeps the drafting state of the session's requests.
        clock: Seconds, monotonic.
        silence_limit: Seconds without a word after which the verifier counts as gone.
    """

    hello: Hello
    model: DraftModel
    clock: Callable[[], float]
    silence_limit: float
    welcome: Welcome | None = None
    last_heard: float = 0.0
    requests: dict[int, DraftRequest] = field(default_factory=dict)
    """By handle."""
    branchings: dict[int, Branching] = field(default_factory=dict)
    """By handle, of the same requests; none where the verifier wants no branches."""
    outlook: Outlook = field(default_factory=Outlook)
    inbox: RowInbox | None = None
    """Of the target's states; None where the method needs none."""
    _held: dict[int, float] = field(default_factory=dict)
    """Handles whose proposal waits for rows, and since when."""
    _scope: Scope = field(default_factory=Scope)

    @property
    def is_pipelined(self) -> bool:
        """Whether the verifier wants drafts behind the outcomes of the running pass."""
        return self.welcome is not None and self.welcome.max_branches > 0

    def take(self, message: Message) -> Message | None:
        """Takes in a message; returns the answer, if it has one.

        Raises:
            RefusedError: the verifier will not work with this drafter.
        """
        self.last_heard = self.clock()
        match message:
            case Welcome():
                self.reset()
                self.welcome = message
                if self.inbox is not None:
                    self.inbox.block_size = message.block_size
                    self.inbox.num_ranks = max(1, len(message.rows))
            case Refuse():
                raise RefusedError(message.reason)
            case Pong():
                if self.welcome is None:
                    return self.hello
                if not message.welcomed or message.incarnation != self.welcome.incarnation:
                    logger.info("the verifier does not know this drafter (any more): saying hello")
                    self.reset()
                    return self.hello
            case Open() if self.welcome is not None:
                self._open(message)
            case Commit() if self.welcome is not None:
                self.outlook.commit(self.last_heard, message)
                lost = [c.handle for c in message.commits if not self._commit(c)]
                if lost:
                    return Reopen(handles=lost)
            case Close():
                for handle in message.handles:
                    if handle in self.requests:
                        self.requests[handle].ended = True
                    self._close(handle)
            case Flush():
                if self.inbox is not None:
                    self.inbox.flush()
            case _:
                logger.warning("ignored a %s out of turn", type(message).__name__)
        return None

    def greeting(self) -> Message:
        """Returns what to say at a heartbeat: Hello until welcomed, Ping then."""
        if self.welcome is not None and self.clock() - self.last_heard > self.silence_limit:
            logger.warning("the verifier has gone silent; its requests are dropped")
            self.reset()
        if self.welcome is None:
            return self.hello
        return Ping(incarnation=self.hello.incarnation, num_requests=len(self.requests))

    def reset(self) -> None:
        """Forgets the verifier and its requests."""
        self.welcome = None
        for handle in list(self.requests):
            self._close(handle)
        self.outlook = Outlook()
        self._scope = Scope()
        if self.inbox is not None:
            self.inbox.forget()

    def due(self) -> list[tuple[int, DraftRequest]]:
        """Returns the requests for which a proposal is awaited, and whose rows are not."""
        return [item for item in self.requests.items() if item[1].due and not self._holds(item[0])]

    def held_until(self) -> float:
        """Returns when the first of the requests that wait for rows waits no longer."""
        return min(self._held.values(), default=math.inf) + MAX_HOLD

    def _holds(self, handle: int) -> bool:
        """Whether a due request waits for rows: they overtake commits, and are overtaken."""
        if self.inbox is None or self.inbox.is_complete(handle):
            self._held.pop(handle, None)
            return False
        if self.clock() - self._held.setdefault(handle, self.clock()) < MAX_HOLD:
            return True
        # It is answered without drafts, and goes on behind what is missing.
        del self._held[handle]
        self.inbox.give_up(handle)
        return False

    def proposal(self, drafts: list[tuple[int, DraftRequest, Draft]]) -> Proposal:
        """Returns the message for ``drafts``, which are no longer due then."""
        proposals = []
        for handle, request, draft in drafts:
            request.due = False
            proposals.append(
                Proposed(
                    handle=handle,
                    base_length=len(request.tokens),
                    tokens=draft.tokens,
                    confidence=draft.confidence,
                )
            )
        committed_at = self.outlook.committed_at
        spent = min(self.clock() - committed_at, MAX_SECONDS) if committed_at else 0.0
        return Proposal(proposals=proposals, spent_s=spent)

    def _open(self, message: Open) -> None:
        before = self.requests.get(message.handle)
        self._close(message.handle)
        request = DraftRequest(
            tokens=message.prompt_ids + message.output_ids,
            due=bool(message.output_ids),
            scope=self._scope,
        )
        self.requests[message.handle] = request
        if self.inbox is not None:
            self._collect(message, request, before)
        if self.is_pipelined:
            assert self.welcome is not None
            self.branchings[message.handle] = Branching(
                self.welcome.num_speculative_tokens,
                due=request.due,
                is_lookup=not self.model.is_stepwise,
            )
        self.model.open(request)

    def _collect(self, message: Open, request: DraftRequest, before: DraftRequest | None) -> None:
        """Begins to collect the request's rows, or goes on with those of ``before``."""
        assert self.inbox is not None
        rows = before.rows if before is not None else None
        if before is not None and rows is not None:
            if before.tokens == request.tokens[: len(before.tokens)]:
                self.inbox.reopen(message.handle, request, rows, message.block_hashes)
                return
        # Of what was computed for another drafter no rows come.
        num_past = len(request.tokens) - 1 if message.output_ids else message.num_computed_tokens
        self.inbox.open(message.handle, request, num_past, message.block_hashes)

    def _commit(self, committed: Committed) -> bool:
        """Appends what was committed; returns False if it does not follow what is here."""
        request = self.requests.get(committed.handle)
        if request is None:
            return False
        known = len(request.tokens) - committed.base_length
        end = committed.base_length + len(committed.tokens)
        overlap = request.tokens[committed.base_length : end]
        if known < 0 or overlap != committed.tokens[: len(overlap)]:
            return False
        if known < len(committed.tokens):
            new = committed.tokens[known:]
            request.tokens.extend(new)
            request.due = committed.num_ready == 0
            if self.inbox is not None:
                self.inbox.add_hashes(committed.handle, committed.block_hashes)
            if (branching := self.branchings.get(committed.handle)) is not None:
                branching.commit(new, committed.num_ready)
        return True

    def _close(self, handle: int) -> None:
        request = self.requests.pop(handle, None)
        self.branchings.pop(handle, None)
        self.outlook.forget(handle)
        self._held.pop(handle, None)
        if self.inbox is not None:
            self.inbox.close(handle)
        if request is not None:
            self.model.close(request)


def make_hello(
    *,
    drafter: str,
    incarnation: int,
    method: str,
    model: DraftModel,
    num_speculative_tokens: int,
    max_requests: int,
) -> Hello:
    """Returns what a drafter with ``model`` says of itself."""
    return Hello(
        protocol_versions=[PROTOCOL_VERSION],
        drafter=drafter,
        incarnation=incarnation,
        method=method,
        vocab_size=model.vocab_size,
        tokenizer_fingerprint=model.tokenizer_fingerprint,
        num_speculative_tokens=num_speculative_tokens,
        max_requests=max_requests,
        needs=model.needs,
        hidden_size=model.hidden_size,
    )
