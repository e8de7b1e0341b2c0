"""What a person reads: figures of a run, and a table of its requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True, slots=True)
class Totals:
    """Sums over the requests of one side of a run."""

    requests: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """Wall time during which requests of this side were running."""
    proposed: int = 0
    accepted: int = 0
    rounds: int = 0
    drafted_rounds: int = 0

    def add(self, result: dict[str, Any]) -> None:
        """Counts one finished request."""
        self.requests += 1
        self.tokens += result["usage"]["completion_tokens"]
        if result["speculation"] is not None:
            for name in ("proposed", "accepted", "rounds", "drafted_rounds"):
                setattr(self, name, getattr(self, name) + result["speculation"][name])

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over wall time."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(kw_only=True, slots=True)
class Comparison:
    """How the drafted outputs compare with plain decoding's."""

    plain: Totals = field(default_factory=Totals)
    compared: int = 0
    equal: int = 0
    ties: int = 0
    """Unequal outputs that part where plain decoding's two best tokens are a tie."""
    differences: list[str] = field(default_factory=list)
    """One sentence for each unequal output."""


def with_rates(counters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Adds ``acceptance_rate`` and ``mean_acceptance_length``; null where nothing was drafted."""
    if counters is None:
        return None
    proposed, drafted = counters["proposed"], counters["drafted_rounds"]
    return {
        **counters,
        "acceptance_rate": counters["accepted"] / proposed if proposed else None,
        "mean_acceptance_length": 1 + counters["accepted"] / drafted if drafted else None,
    }


def summary(drafted: Totals, comparison: Comparison | None) -> str:
    """Returns the lines that end a run."""
    lines = [
        f"{drafted.requests} requests, {drafted.tokens} tokens in {drafted.seconds:.1f} s: "
        f"{drafted.tokens_per_second:.1f} tokens/s"
    ]
    if drafted.proposed:
        lines.append(
            f"drafts: {drafted.accepted} of {drafted.proposed} accepted "
            f"({drafted.accepted / drafted.proposed:.0%}); a drafted pass commits "
            f"{1 + drafted.accepted / drafted.drafted_rounds:.2f} tokens, plain decoding 1; "
            f"{drafted.drafted_rounds} of {drafted.rounds} rounds were drafted"
        )
    elif drafted.rounds:
        lines.append(f"drafts: none in {drafted.rounds} rounds")
    if comparison is not None and comparison.compared:
        plain = comparison.plain
        lines.append(f"plain decoding: {plain.tokens_per_second:.1f} tokens/s")
        if plain.tokens_per_second:
            ratio = drafted.tokens_per_second / plain.tokens_per_second
            lines.append(f"speed against plain decoding: {ratio:.2f}x")
            if ratio < 1 and drafted.drafted_rounds:
                lines.append(
                    "drafting and verifying the drafts cost more time here than they saved"
                )
        ties = f", {comparison.ties} more part at a tie" if comparison.ties else ""
        lines.append(
            f"outputs equal to plain decoding: {comparison.equal} of {comparison.compared}{ties}"
        )
        lines.extend(comparison.differences)
    return "\n".join(lines)


HEADER = f"{'id':<20} {'output':>12}  {'accepted of proposed':>20}  {'per drafted pass':>16}  text"


def row(line: dict[str, Any], width: int = 60) -> str:
    """Returns one finished request as a line of a table."""
    counters = line["speculation"] or {}
    length = counters.get("mean_acceptance_length")
    equal = "" if "equal_to_plain" not in line else "equal" if line["equal_to_plain"] else "DIFFERS"
    text = " ".join(line["text"].split())
    excerpt = text if len(text) <= width else text[: width - 1] + "…"
    drafts = f"{counters.get('accepted', 0)} of {counters.get('proposed', 0)} drafts"
    per_pass = f"{length:.2f} tokens" if length else "-"
    return (
        f"{line['id'][:20]:<20} {line['usage']['completion_tokens']:>5} tokens  {drafts:>20}  "
        f"{per_pass:>16}  {equal}{' ' if equal else ''}{excerpt}"
    )
