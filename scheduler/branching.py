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
    rankings: list[Ranking] = field(default_factory=list)
    """Of the positions behind the outcome, one after the other."""
    ended: bool = False
    """There is nothing more to draft behind it."""
    num_worth: int | None = None
    """How many drafts a look-up thought worth verifying, where that is fewer than K; what is ranked
    behind them are candidates for the bonus token."""
    num_sent: int = 0
    """Drafts that the verifier was told; not counted for the trunk."""

    @property
    def drafts(self) -> Tokens:
        """The first choices behind the outcome."""
        return tuple(ranking[0][0] for ranking in self.rankings)

    @property
    def end(self) -> Tokens:
        """The path to extend next."""
        return self.outcome + self.drafts

    def most_drafts(self, k: int) -> int:
        """Returns how many drafts it is to have."""
        return k if self.num_worth is None else min(k, self.num_worth)

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


class Branching:
    """The trunk and the branches of one request."""

    def __init__(self, num_speculative_tokens: int, *, due: bool, is_lookup: bool = False) -> None:
        self.k = num_speculative_tokens
        self._is_lookup = is_lookup
        """Whether what is drafted depends on how much of the text is committed."""
        self.trunk = Branch(outcome=())
        self.due = due
        """Whether a proposal is awaited."""
        self.num_in_flight = num_speculative_tokens if due else 0
        """n: the drafts of the pass that runs, or of the proposal that is being made. A request
        that is not due from the start is prefilled: that pass holds none."""
        self.may_be_undrafted = True
        """Whether the pass in flight may verify no drafts: it may, where none were at hand."""
        self._branches: dict[Tokens, Branch] = {}
        """By outcome."""

    def commit(self, tokens: Sequence[int], num_ready: int) -> None:
        """Takes in the outcome of a pass: what was drafted behind it is the trunk now.

        Args:
            tokens: What was committed, at least one token.
            num_ready: Drafts that the verifier has for the new length; 0: a proposal is due.
        """
        outcome, size = tuple(tokens), len(tokens)
        trunk = Branch(outcome=())
        for branch in (self.trunk, *self._branches.values()):
            # Not that outcome's branch alone: several passes may have gone by, or an undrafted one
            # may have chosen d1.
            num_gone = size - len(branch.outcome)
            if num_gone < 0 or branch.end[:size] != outcome:
                continue
            if num_gone and self._is_lookup and not num_ready:
                continue  # nobody has the rest of it, and with a longer text a look-up finds better
            rest = branch.rankings[num_gone:]
            if len(rest) > len(trunk.rankings) or not trunk.rankings:
                # Behind what was used up nothing was looked for.
                trunk = Branch(
                    outcome=(),
                    rankings=rest,
                    ended=branch.ended and not num_gone,
                    num_worth=_rest(branch.num_worth, num_gone),
                )
        kept = {}
        for branch in self._branches.values():
            if len(branch.outcome) > size and branch.outcome[:size] == outcome:
                branch.outcome = branch.outcome[size:]
                kept[branch.outcome] = branch
        self.trunk, self._branches = trunk, kept
        self._take_up_along_trunk()
        self.due = self.may_be_undrafted = num_ready == 0
        self.num_in_flight = min(num_ready, self.k) or self.k
        if not self.due:
            self._begin_behind_trunk()

    def _take_up_along_trunk(self) -> None:
        """Makes branches that lie along the trunk a part of it: it is no outcome of its own now."""
        for outcome in sorted(self._branches, key=len):
            size = len(outcome)
            if self.trunk.drafts[:size] == outcome:
                branch = self._branches.pop(outcome)
                if size + len(branch.rankings) > len(self.trunk.rankings):
                    self.trunk.rankings = self.trunk.rankings[:size] + branch.rankings
                    self.trunk.ended = branch.ended
                    if self.trunk.num_worth is None and branch.num_worth is not None:
                        self.trunk.num_worth = size + branch.num_worth

    def _begin_behind_trunk(self) -> None:
        """Begins the branch of (n, the draft's choice) with what the trunk has behind it."""
        size = self.num_in_flight + 1
        rest = self.trunk.rankings[size:]
        if rest:
            outcome = self.trunk.drafts[:size]
            branch = Branch(outcome=outcome, rankings=rest[: self.k + 1])
            self._branches.setdefault(outcome, branch)

    def proposal(self, *, unfinished: bool = False) -> Tokens | None:
        """Returns what to propose where it is due, None while it is not ready; may be empty.

        Args:
            unfinished: Whether fewer drafts than K will do, because the next one would be too late.
                Two it must be: an undrafted pass that runs takes the first one's place.
        """
        limit = self.trunk.most_drafts(self.k)
        is_finished = len(self.trunk.rankings) >= limit or self.trunk.ended
        if is_finished or (unfinished and len(self.trunk.rankings) > 1):
            return self.trunk.drafts[:limit]
        return None

    def proposed(self, num_drafts: int) -> None:
        """A proposal was sent: it is in flight."""
        self.due = False
        self.num_in_flight = num_drafts
        self._begin_behind_trunk()

    def needs_proposal(self) -> bool:
        """Whether the trunk must grow before anything can be proposed."""
        return self.due and self.proposal() is None

    def extensions(self, acceptance: Acceptance, undrafted: float = 0.0) -> Iterator[Extension]:
        """Yields what would be worth extending, in no order.

        Args:
            acceptance: What was measured so far.
            undrafted: The probability that the pass in flight verifies no drafts.
        """
        num_trunk, num_drafts = len(self.trunk.rankings), self.num_in_flight
        chances = acceptance.outcomes(num_drafts)
        if not self.trunk.ended and num_trunk <= num_drafts:
            # Until it is proposed nothing goes before it. Then it is as good as what is behind it.
            needed = self.needs_proposal()
            yield Extension(
                2.0 if needed else chances[num_drafts],
                self.trunk,
                self.k - num_trunk if needed else 1 + num_drafts - num_trunk,
            )
        for outcome, weight in self._outcomes(chances, undrafted):
            branch = self._branches.get(outcome) or Branch(outcome=outcome)
            num_missing = branch.most_drafts(self.k) - len(branch.rankings)
            if branch.ended or num_missing < 0:
                continue
            if num_missing:
                yield Extension(weight, branch, num_missing)
            else:
                yield Extension(weight * NEXT_TRUNK, branch, 1)

    def _outcomes(
        self, chances: Sequence[float], undrafted: float
    ) -> Iterator[tuple[Tokens, float]]:
        """Yields the possible outcomes, as far as the trunk tells them, with their probability.

        That an undrafted pass chooses d1 is not among them: the trunk lies behind that.
        """
        drafts, num_drafts = self.trunk.drafts, len(chances) - 1
        for j, ranking in enumerate(self.trunk.rankings[: num_drafts + 1]):
            is_last = j == num_drafts
            # A rejected draft is not the bonus token; behind the last draft any token may be.
            left = 1.0 if is_last else max(1.0 - ranking[0][1], 1e-6)
            for token, probability in ranking if is_last else ranking[1:]:
                weight = (1 - undrafted) * chances[j] * probability / left
                if j == 0:
                    weight += undrafted * probability
                yield (*drafts[:j], token), weight

    def take(self, extension: Extension, rankings: Sequence[Ranking]) -> None:
        """Takes in what follows the extension's path."""
        branch = extension.branch
        if branch is not self.trunk:
            self._branches[branch.outcome] = branch
        branch.extend(rankings[: extension.num_wanted])
        if self._is_lookup and 0 < len(rankings) < extension.num_wanted:
            branch.num_worth = len(branch.rankings)

    def unsent(self, *, unfinished: bool) -> Iterator[Branch]:
        """Yields the branches that have drafts which the verifier was not told.

        Args:
            unfinished: Whether to yield those, too, that still grow.
        """
        for branch in self._branches.values():
            limit = branch.most_drafts(self.k)
            num_drafts = min(len(branch.rankings), limit)
            is_finished = num_drafts == limit or branch.ended
            if num_drafts > branch.num_sent and (is_finished or unfinished):
                yield branch

    def validate(self) -> None:
        """Asserts what must hold; for tests and debugging."""
        assert 0 <= self.num_in_flight <= self.k, f"{self.num_in_flight} drafts in flight"
        assert not self.trunk.outcome, "the trunk has an outcome"
        for outcome, branch in self._branches.items():
            assert branch.outcome == outcome, f"{branch.outcome} is filed under {outcome}"
            assert 1 <= len(outcome) <= self.k + 1, f"{outcome} is no outcome of a pass"
            assert branch.rankings or branch.ended, f"{outcome} has not begun"
            assert len(branch.rankings) <= self.k + 1, f"{outcome} goes on beyond its use"
            assert branch.num_sent <= len(branch.rankings), f"{outcome} was sent before it was made"
        for branch in (self.trunk, *self._branches.values()):
            assert all(branch.rankings), f"nothing is ranked behind {branch.outcome}"


def _rest(num_worth: int | None, num_gone: int) -> int | None:
    """What is left of ``num_worth``; where all is used up a new look-up tells."""
    return num_worth - num_gone if num_worth is not None and num_worth > num_gone else None


def choose(
    extensions: Sequence[tuple[int, Extension]], num_rows: int, limits: Sequence[int]
) -> list[tuple[int, Extension]]:
    """Chooses what one forward extends: the greatest weights of all requests together.

    Args:
        extensions: With the number of the request that each belongs to.
        num_rows: The most of all.
        limits: The most of each request, by its number.
    """
    chosen: list[tuple[int, Extension]] = []
    counts = [0] * len(limits)
    for number, extension in sorted(extensions, key=lambda item: -item[1].weight):
        if len(chosen) == num_rows:
            break
        if counts[number] < limits[number]:
            counts[number] += 1
            chosen.append((number, extension))
    return chosen
