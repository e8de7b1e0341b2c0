"""Drafting while the target verifies: one depth at a time, for all requests of all verifiers.

Each step is one forward. It extends what a verifier waits for first, then what is most probably
wanted next (scheduler/branching.py), as much of it as fits into the running pass. Between two steps
the sockets are read: what the outcome of a pass has made impossible is not extended any further.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.drafter.model import Draft, DraftModel, DraftRequest, Path
from paceline.drafter.session import Session
from paceline.messages import MAX_BATCH_REQUESTS, Branch, Branches, Message
from paceline.scheduler.averages import RowTimes
from paceline.scheduler.branching import Branching, Extension, choose
from paceline.scheduler.events import Tokens
from paceline.trace import Tracer

SLACK = 1.25
"""Rows that nobody waits for yet may make a forward that somebody waits for so much longer."""


class Link(Protocol):
    """The way to one verifier."""

    def send(self, message: Message) -> bool:
        """Queues ``message``; returns False if there is no room for it."""


@dataclass(frozen=True, slots=True)
class _Item:
    """One request, with whom it belongs to."""

    link: Link
    session: Session
    handle: int
    request: DraftRequest
    branching: Branching


class Pipelining:
    """Drives a draft model for the sessions whose verifiers want branches."""

    def __init__(
        self, model: DraftModel, tracer: Tracer, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._model = model
        self._tracer = tracer
        self._clock = clock
        self.times = RowTimes()
        """Of the forwards so far."""
        self._forward_s = 0.0
        """Seconds of the last one."""

    def step(self, links: Sequence[tuple[Link, Session]]) -> bool:
        """Answers what is due, and runs one forward; returns False if there was none to run."""
        items = [
            _Item(link, session, handle, session.requests[handle], branching)
            for link, session in links
            if session.is_pipelined
            for handle, branching in session.branchings.items()
        ]
        if not items:
            return False
        ready, declining = [], []
        for item in items:
            if self._model.is_ready(item.request):
                ready.append(item)
            elif item.branching.due:
                declining.append(item)
        # Who is not ready says so at once: the verifier need not wait for a long prefill.
        self._propose(declining, decline=True)
        self._propose(ready)
        chosen = self._choose(ready)
        if chosen:
            self._forward_s = self._extend(ready, chosen)
            self._propose(ready)
            self._push(ready)
        return bool(chosen)

    def _choose(self, items: list[_Item]) -> list[tuple[int, Extension]]:
        """The decision: what the next forward extends."""
        candidates = [
            (number, extension)
            for number, item in enumerate(items)
            for extension in item.branching.extensions(
                item.session.outlook.acceptance,
                item.session.outlook.undrafted if item.branching.may_be_undrafted else 0.0,
            )
        ]
        if not candidates:
            return []
        limits = [_max_branches(item) for item in items]
        num_needed = sum(1 for item in items if item.branching.needs_proposal())
        wanted = choose(candidates, sum(limits), limits)
        return wanted[: self._num_rows(items, wanted, num_needed)]

    def _num_rows(
        self, items: list[_Item], wanted: list[tuple[int, Extension]], num_needed: int
    ) -> int:
        """How many of the wanted rows the next forward has."""
        if num_needed:
            shortest = self.times.least_seconds(num_needed)
            if shortest is None:
                return num_needed
            return max(num_needed, self.times.most_rows(SLACK * shortest, len(wanted)))
        # K forwards make a branch, one more makes the candidates behind the last draft.
        num_forwards = 1 + (items[0].branching.k if self._model.is_stepwise else 1)
        verify_s = min(item.session.outlook.verify_s for item in items)
        weights = [extension.weight for _, extension in wanted]
        return self.times.best_rows(weights, verify_s / num_forwards if verify_s else math.inf)

    def _extend(self, items: list[_Item], chosen: list[tuple[int, Extension]]) -> float:
        """Runs the forward; returns how long it took."""
        started = self._clock()
        paths = [Path(items[n].request, extension.branch.end) for n, extension in chosen]
        rankings = self._model.extend(
            paths,
            num_tokens=max(extension.num_wanted for _, extension in chosen),
            num_ranked=max(_max_branches(item) for item in items) + 1,
            vocab_size=min(_vocab_size(item) for item in items),
        )
        ended = self._clock()
        for (number, extension), found in zip(chosen, rankings, strict=True):
            items[number].branching.take(extension, found)
        self.times.add(len(chosen), ended - started)
        if self._tracer.enabled:
            num_trunks = sum(1 for _, extension in chosen if not extension.branch.outcome)
            self._tracer.span(
                "draft",
                "draft" if num_trunks == len(chosen) else "branches",
                started,
                ended,
                rows=len(chosen),
                trunks=num_trunks,
            )
        return ended - started

    def _is_last(self, item: _Item) -> bool:
        """Whether what another forward adds would come after the running pass has ended."""
        return self._clock() + self._forward_s >= item.session.outlook.ends_at

    def _propose(self, items: list[_Item], *, decline: bool = False) -> None:
        """Sends the proposals that are due and ready; ``decline``: empty ones for all."""
        by_session: dict[int, list[tuple[_Item, Tokens]]] = {}
        for item in items:
            tokens: Tokens | None = ()
            if not decline:
                tokens = item.branching.proposal(unfinished=self._is_last(item))
            if item.branching.due and tokens is not None:
                by_session.setdefault(id(item.session), []).append((item, tokens))
        for group in by_session.values():
            first = group[0][0]
            first.link.send(
                first.session.proposal(
                    [(item.handle, item.request, Draft(list(tokens))) for item, tokens in group]
                )
            )
            first.session.outlook.proposed_at = self._clock()
            for item, tokens in group:
                item.branching.proposed(len(tokens))

    def _push(self, items: list[_Item]) -> None:
        """Sends the branches that are finished; all, where the next forward would be too late."""
        by_session: dict[int, tuple[Link, list[Branch]]] = {}
        for item in items:
            for branch in item.branching.unsent(unfinished=self._is_last(item)):
                drafts = branch.drafts[: branch.most_drafts(item.branching.k)]
                message = Branch(
                    handle=item.handle,
                    base_length=len(item.request.tokens),
                    num_outcome=len(branch.outcome),
                    tokens=[*branch.outcome, *drafts],
                )
                by_session.setdefault(id(item.session), (item.link, []))[1].append(message)
                branch.num_sent = len(drafts)
        for link, branches in by_session.values():
            for start in range(0, len(branches), _MESSAGE_BRANCHES):
                link.send(Branches(branches=branches[start : start + _MESSAGE_BRANCHES]))


_MESSAGE_BRANCHES = min(4096, MAX_BATCH_REQUESTS)
"""Branches of one message, so that it stays below what the verifier reads at a time."""


def _max_branches(item: _Item) -> int:
    assert item.session.welcome is not None
    return item.session.welcome.max_branches


def _vocab_size(item: _Item) -> int:
    assert item.session.welcome is not None
    return item.session.welcome.vocab_size
