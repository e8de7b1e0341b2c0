"""The one interface of all draft methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.messages import RowNeeds
from paceline.scheduler.branching import Ranking

if TYPE_CHECKING:
    from paceline.drafter.rows import RowBuffer


class Scope:
    """Whose text it is: one for each incarnation of a verifier, compared by identity.

    A method may use a request's text for another request of the same scope, and of no other.
    """


@dataclass(eq=False, slots=True)
class DraftRequest:
    """One request as a drafter sees it. Owned by the session; methods read it only."""

    tokens: list[int]
    """All committed tokens, prompt first. Grows at its end, nothing in it ever changes."""
    due: bool = False
    """Whether the verifier awaits a proposal for ``len(tokens)``."""
    ended: bool = False
    """Whether it is finished or aborted for good. Closed before that, it still runs: the verifier
    opens it anew, or has another drafter for it."""
    scope: Scope = field(default_factory=Scope)
    """Default: its own, shared with nobody."""
    rows: RowBuffer | None = None
    """What has come of the target's states; None where the method needs none."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposal for one request."""

    tokens: list[int]
    """At most K; empty: nothing to propose."""
    confidence: list[float] = field(default_factory=list)
    """The draft's probability of each token; empty where the method has none."""


@dataclass(frozen=True, slots=True)
class Path:
    """A text that may come to be: what is committed of a request, and these tokens behind it."""

    request: DraftRequest
    tokens: tuple[int, ...]


class DraftModel(ABC):
    """Drafts for many requests at a time.

    The caller owns the requests and calls from one thread: ``open`` once, then ``prepare``,
    ``draft`` and ``extend`` in any order and number, then ``close`` once. Committed tokens appear
    in ``DraftRequest.tokens`` between the calls, and an implementation brings its own state in
    step.
    """

    vocab_size: int = 0
    """Rows of the draft's head; 0 for a method that copies tokens from the text."""
    tokenizer_fingerprint: str = ""
    """Of the draft's tokenizer; "" where it has none."""
    needs: RowNeeds | None = None
    """What it drafts from besides tokens; None: nothing."""
    hidden_size: int = 0
    """Of the target that it was made for; 0: any."""
    device: str = "cpu"
    """Where it wants its rows."""
    is_stepwise: bool = True
    """Whether each token takes a forward of its own; a look-up finds all of them at once."""

    @abstractmethod
    def open(self, request: DraftRequest) -> None:
        """Begins to keep state for ``request``."""

    @abstractmethod
    def close(self, request: DraftRequest) -> None:
        """Frees the state of ``request``; what was never opened is ignored."""

    @abstractmethod
    def is_ready(self, request: DraftRequest) -> bool:
        """Returns whether ``draft`` may be called: the context is processed but for a short end."""

    def has_work(self, request: DraftRequest) -> bool:
        """Returns whether ``prepare`` has something to process now."""
        return not self.is_ready(request)

    @abstractmethod
    def prepare(self, request: DraftRequest) -> None:
        """Processes one bounded piece of the context of a request that is not ready."""

    @abstractmethod
    def draft(
        self, requests: Sequence[DraftRequest], num_tokens: int, vocab_size: int
    ) -> list[Draft]:
        """Drafts at most ``num_tokens`` tokens behind each ready request, in one batch.

        Args:
            requests: Ready requests.
            num_tokens: K, at least 1.
            vocab_size: Only tokens below it are drafted.

        Returns:
            A draft for each request, in order.
        """

    @abstractmethod
    def extend(
        self, paths: Sequence[Path], num_tokens: int, num_ranked: int, vocab_size: int
    ) -> list[list[Ranking]]:
        """Ranks the tokens that may follow each path; one forward for all paths of all requests.

        The first ranking of a path is that of its next position; each further one stands behind
        the first choices of those before it. A method that needs a forward a token returns one
        ranking a call, a look-up returns as many as it finds. What the first choices are is what
        ``draft`` proposes there.

        A path costs only those of its tokens that no earlier path had: paths share the state of
        what they have in common. State of paths that contradict what was committed meanwhile is
        dropped.

        Args:
            paths: Of ready requests, each at most once; several of one request.
            num_tokens: The most rankings of a path, at least 1.
            num_ranked: The most choices of a ranking, at least 1.
            vocab_size: Only tokens below it are ranked.

        Returns:
            The rankings of each path, in order; none where there is nothing to propose.
        """
