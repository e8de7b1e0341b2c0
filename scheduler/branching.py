"""What a drafter drafts behind, for one request, while the target verifies: the possible outcomes.

A pass that verifies the drafts d1 … dn ends with an outcome (j, b): j drafts accepted, and the
bonus token b behind them, which is not d(j+1). An undrafted pass is the case j = 0 in which b may
be d1. An outcome's probability is P(j) · P(b | j): P(j) from the acceptance measured so far,
P(b | j) from the draft's own ranking at that position. Behind the most probable ones the drafter
drafts on: a *branch*. The *trunk* is the text that is proposed: d1 … dn, behind which it also looks
one position further, for the candidates of (n, b).

States of a request here:

    due        a proposal is awaited: the trunk is extended to K, then sent
    in flight  the verifier has d1 … dn: branches grow until the outcome comes

Pure: no model, no socket, no clock. The drafter's loop asks what to extend, and tells what came of
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from paceline.scheduler.averages import Acceptance
from paceline.scheduler.events import Tokens

Ranking = list[tuple[int, float]]
"""A draft's choices for one position with its probability of each, the most probable first."""

NEXT_TRUNK = 0.25
"""Weight of looking one position behind a finished branch, relative to the branch's own: it is for
the pass after the next one, and worth less than any branch of this one that is not finished."""


@dataclass(eq=False, kw_only=True, slots=True)
class Branch:
    """One outcome, and what was drafted behind it."""

    outcome: Tokens
    """j accepted drafts and the bonus token; empty for the trunk."""
    weight: float
    """Probability of the outcome, as it was estimated when the branch began."""
    rankings: list[Ranking] = field(default_factory=list)
    """Of the positions behind the outcome, one after the other."""
    ended: bool = False
    """There is nothing more to draft behind it."""
    num_sent: int = 0
    """Drafts that the verifier was told."""

    @property
    def drafts(self) -> Tokens:
        """The first choices behind the outcome."""
        return tuple(ranking[0][0] for ranking in self.rankings)

    @property
    def end(self) -> Tokens:
        """The path to extend next."""
        return self.outcome + self.drafts

    def extend(self, rankings: Sequence[Ranking]) -> None:
        """Takes in what follows ``end``; nothing: there is no more."""
        self.rankings.extend(rankings)
        self.ended = not rankings


@dataclass(frozen=True, slots=True)
class Extension:
    """A path that would be worth extending."""

    weight: float
    branch: Branch
    num_wanted: int
    """Rankings that it lacks."""
    is_new: bool = False
    """Its branch has not begun yet."""


class Branching:
    """The trunk and the branches of one request."""

    def __init__(self, num_speculative_tokens: int, *, due: bool) -> None:
        self.k = num_speculative_tokens
        self.trunk = Branch(outcome=(), weight=1.0)
        self.due = due
        """Whether a proposal is awaited."""
        self.num_in_flight = num_speculative_tokens
        """n: the drafts of the pass that runs, or of the proposal that is being made."""
        self.may_be_undrafted = True
        """Whether the pass in flight may verify no drafts: it may, where none were at hand."""
        self._branches: dict[Tokens, Branch] = {}
        """By outcome."""

    def commit(self, tokens: Sequence[int], num_ready: int) -> bool:
        """Takes in the outcome of a pass; returns whether it was drafted behind.

        Args:
            tokens: What was committed, at least one token.
            num_ready: Drafts that the verifier has for the new length; 0: a proposal is due.
        """
        outcome, size = tuple(tokens), len(tokens)
        found = self._branches.get(outcome)
        if found is None:
            # Outcomes of several passes at a time, or an undrafted pass that chose d1.
            fitting = (
                branch
                for branch in (self.trunk, *self._branches.values())
                if len(branch.outcome) < size and branch.end[:size] == outcome
            )
            found = next(fitting, None)
        if found is None:
            trunk = Branch(outcome=(), weight=1.0)
        else:
            num_gone = size - len(found.outcome)
            trunk = Branch(
                outcome=(),
                weight=1.0,
                rankings=found.rankings[num_gone:],
                ended=found.ended,
                num_sent=max(0, found.num_sent - num_gone),
            )
        kept = [
            Branch(
                outcome=branch.outcome[size:],
                weight=branch.weight,
                rankings=branch.rankings,
                ended=branch.ended,
                num_sent=branch.num_sent,
            )
            for branch in self._branches.values()
            if len(branch.outcome) > size and branch.outcome[:size] == outcome
        ]
        self.trunk = trunk
        self._branches = {branch.outcome: branch for branch in kept}
        self.due = self.may_be_undrafted = num_ready == 0
        self.num_in_flight = num_ready or self.k
        return found is not None

    def proposal(self, *, unfinished: bool = False) -> Tokens | None:
        """Returns what to propose where it is due, None while it is not ready; may be empty.

        Args:
            unfinished: Whether fewer drafts than K will do, because the next one would be too late.
                Two it must be: an undrafted pass that runs takes the first one's place.
        """
        is_finished = len(self.trunk.rankings) >= self.k or self.trunk.ended
        if is_finished or (unfinished and len(self.trunk.rankings) > 1):
            return self.trunk.drafts[: self.k]
        return None

    def proposed(self, num_drafts: int) -> None:
        """A proposal was sent: it is in flight."""
        self.due = False
        self.num_in_flight = num_drafts

    def needs_proposal(self) -> bool:
        """Whether the trunk must grow before anything can be proposed."""
        return self.due and self.proposal() is None

    def extensions(self, acceptance: Acceptance, undrafted: float = 0.0) -> Iterator[Extension]:
        """Yields what would be worth extending, in no order.

        Args:
            acceptance: What was measured so far.
            undrafted: The probability that the pass in flight verifies no drafts.
        """
        num_trunk = len(self.trunk.rankings)
        num_drafts = min(self.num_in_flight, self.k)
        chances = acceptance.outcomes(num_drafts)
        if not self.trunk.ended and num_trunk <= num_drafts:
            # Until it is proposed nothing goes before it. Then it is as good as what is behind it.
            needed = self.needs_proposal()
            yield Extension(
                2.0 if needed else chances[num_drafts],
                self.trunk,
                self.k - num_trunk if needed else 1 + num_drafts - num_trunk,
            )
        for branch in self._branches.values():
            if branch.ended:
                continue
            if len(branch.rankings) < self.k:
                yield Extension(branch.weight, branch, self.k - len(branch.rankings))
            elif len(branch.rankings) == self.k:
                yield Extension(branch.weight * NEXT_TRUNK, branch, 1)
        drafts = self.trunk.drafts
        for j in range(min(num_drafts + 1, num_trunk)):
            ranking = self.trunk.rankings[j]
            # A rejected draft is not the bonus token; behind the last draft any token may be.
            excluded = ranking[0][1] if j < num_drafts else 0.0
            for place, (token, probability) in enumerate(ranking):
                if j < num_drafts and place == 0:
                    continue
                outcome = (*drafts[:j], token)
                if outcome in self._branches:
                    continue
                weight = chances[j] * probability / max(1.0 - excluded, 1e-6)
                if j == 0:
                    weight = (1 - undrafted) * weight + undrafted * probability
                else:
                    weight *= 1 - undrafted
                branch = Branch(outcome=outcome, weight=weight)
                yield Extension(weight, branch, self.k, is_new=True)

    def take(self, extension: Extension, rankings: Sequence[Ranking]) -> None:
        """Takes in what follows the extension's path."""
        if extension.is_new:
            self._branches[extension.branch.outcome] = extension.branch
        extension.branch.extend(rankings[: extension.num_wanted])

    def unsent(self, *, unfinished: bool) -> Iterator[Branch]:
        """Yields the branches that have drafts which the verifier was not told.

        Args:
            unfinished: Whether to yield those, too, that still grow.
        """
        for branch in self._branches.values():
            num_drafts = min(len(branch.rankings), self.k)
            is_finished = num_drafts == self.k or branch.ended
            if num_drafts > branch.num_sent and (is_finished or unfinished):
                yield branch

    def sent_weight(self) -> float:
        """Returns the estimated probability that the outcome is one that the verifier was told."""
        return sum(branch.weight for branch in self._branches.values() if branch.num_sent)


def choose(
    extensions: Sequence[tuple[int, Extension]], num_rows: int, num_rows_each: int
) -> list[tuple[int, Extension]]:
    """Chooses what one forward extends: the greatest weights of all requests together.

    Args:
        extensions: With the request that each belongs to.
        num_rows: The most of all.
        num_rows_each: The most of one request.
    """
    chosen: list[tuple[int, Extension]] = []
    counts: dict[int, int] = {}
    for key, extension in sorted(extensions, key=lambda item: -item[1].weight):
        if len(chosen) == num_rows:
            break
        if counts.get(key, 0) < num_rows_each:
            counts[key] = counts.get(key, 0) + 1
            chosen.append((key, extension))
    return chosen
