"""What a draft is worth: figures from the passes that verified it.

A pass takes K drafts and commits the first ``accepted`` of them and one token of the target's own,
the bonus. Where the text ends inside a pass, only what stands in the text is counted: the drafts
up to there, and the bonus if it is still part of the text.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from paceline.errors import InputError


class Counts(msgspec.Struct, kw_only=True):
    """Sums over drafted passes; K is the length of the lists."""

    passes: int = 0
    tokens: int = 0
    """Tokens that these passes committed, bonus tokens included."""
    drafted: list[int]
    """[K]: passes with a draft at each position of the text."""
    accepted: list[int]
    """[K]: passes that accepted the draft at each position, and so all before it."""

    @classmethod
    def none(cls, k: int) -> Counts:
        """Returns the counts of no pass at all."""
        return cls(drafted=[0] * k, accepted=[0] * k)

    def add(self, other: Counts) -> None:
        """Adds the passes of ``other``, which has the same K."""
        self.passes += other.passes
        self.tokens += other.tokens
        self.drafted = [a + b for a, b in zip(self.drafted, other.drafted, strict=True)]
        self.accepted = [a + b for a, b in zip(self.accepted, other.accepted, strict=True)]

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per drafted pass, the bonus included; 1 where there was no pass."""
        return self.tokens / self.passes if self.passes else 1.0

    @property
    def acceptance_rate(self) -> float:
        """The share of all drafts that was accepted."""
        return sum(self.accepted) / max(sum(self.drafted), 1)

    @property
    def unconditional(self) -> list[float]:
        """[K]: how often the draft at a position was accepted."""
        return [a / max(d, 1) for a, d in zip(self.accepted, self.drafted, strict=True)]

    @property
    def conditional(self) -> list[float]:
        """[K]: the same among the passes that accepted all drafts before it."""
        before = [self.passes, *self.accepted]
        return [a / max(b, 1) for a, b in zip(self.accepted, before, strict=False)]


def count(num_tokens: int, drafted: Sequence[int], accepted: Sequence[int], k: int) -> Counts:
    """Counts one request's passes up to the end of its text.

    Args:
        num_tokens: Tokens of the text; the first comes from the prefill, all others from passes.
        drafted: [P] drafts of each pass, in order.
        accepted: [P] how many of them the pass accepted, also beyond the end of the text.
        k: The most drafts of a pass.

    Raises:
        InputError: the passes do not add up to the text, so that some were undrafted or repeated.
    """
    counts = Counts.none(k)
    left = num_tokens - 1
    for num_drafts, num_accepted in zip(drafted, accepted, strict=True):
        if left <= 0:
            raise InputError(
                f"a text of {num_tokens} tokens has passes behind its end: {list(accepted)}"
            )
        committed = min(num_accepted + 1, left)
        counts.passes += 1
        counts.tokens += committed
        for position in range(min(num_drafts, left)):
            counts.drafted[position] += 1
            counts.accepted[position] += position < num_accepted
        left -= committed
    if left > 0:
        raise InputError(
            f"{left} of {num_tokens} tokens come from undrafted passes, which cannot be told apart "
            "here: give the engine room for all requests at their full length"
        )
    return counts


class Measurement(msgspec.Struct, kw_only=True, frozen=True):
    """One line of results: a draft on one set of prompts at one temperature."""

    draft: str
    weights: str
    """The first 12 digits of the SHA-256 of the draft's weights."""
    method: str
    k: int
    dtype: str
    workload: str
    temperature: float
    num_prompts: int
    max_tokens: int
    source: Literal["vllm", "offline"] = "vllm"
    """Who verified: vLLM, or the training's own chain over text that the target wrote before."""
    counts: Counts | None = None
    """None in the key of a measurement that has not been made."""
    cpu_s: float = 0.0
    """Processor time of all passes and prefills."""

    @property
    def key(self) -> Measurement:
        """What was measured, without the result."""
        return msgspec.structs.replace(self, counts=None, cpu_s=0.0)

    def to_json(self) -> dict[str, Any]:
        """Returns the line of the file: all fields, and the figures for a reader."""
        assert self.counts is not None, "there is no result yet"
        values: dict[str, Any] = msgspec.to_builtins(self)
        values["mean_acceptance_length"] = round(self.counts.mean_acceptance_length, 4)
        values["acceptance_rate"] = round(self.counts.acceptance_rate, 4)
        values["unconditional"] = [round(value, 4) for value in self.counts.unconditional]
        values["conditional"] = [round(value, 4) for value in self.counts.conditional]
        return values


def digest(draft: Path) -> str:
    """Returns what ``Measurement.weights`` says of a draft's folder."""
    found = hashlib.sha256()
    for file in sorted(draft.glob("*.safetensors")):
        found.update(file.read_bytes())
    return found.hexdigest()[:12]


def read_results(path: Path) -> list[Measurement]:
    """Reads what was measured so far; a line that was cut off by an interruption is left out.

    Raises:
        InputError: a whole line is no measurement.
    """
    if not path.exists():
        return []
    *lines, last = path.read_bytes().split(b"\n")
    try:
        found = [msgspec.json.decode(line, type=Measurement) for line in lines]
    except msgspec.MsgspecError as error:
        raise InputError(f"{path} holds a line that is no measurement ({error})") from None
    if last:
        os.truncate(path, path.stat().st_size - len(last))
    return found


def append_result(path: Path, measurement: Measurement) -> None:
    """Adds a line, on disk when this returns."""
    with path.open("a") as file:
        file.write(json.dumps(measurement.to_json()) + "\n")
        file.flush()
        os.fsync(file.fileno())


def table(measurements: Iterable[Measurement]) -> str:
    """Returns the figures in Markdown, with a line over all sets for each draft and temperature."""
    lines = [
        "| draft | in | K | T | prompts of | passes | MAL | rate | per position | conditional |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for group, members in over_all_sets(measurements):
        for one in [*members, group] if len(members) > 1 else members:
            assert one.counts is not None, "only results are shown"
            lines.append(_row(one, one.counts))
    return "\n".join(lines)


def over_all_sets(
    measurements: Iterable[Measurement],
) -> list[tuple[Measurement, list[Measurement]]]:
    """Returns the sum of each group of measurements that differ in the set of prompts only, under
    the name "all", and the group."""
    groups: dict[Measurement, list[Measurement]] = {}
    for one in measurements:
        group = msgspec.structs.replace(one.key, workload="all", num_prompts=0)
        groups.setdefault(group, []).append(one)
    found = []
    for group, members in groups.items():
        total = Counts.none(group.k)
        for one in members:
            assert one.counts is not None, "only results are shown"
            total.add(one.counts)
        found.append((msgspec.structs.replace(group, counts=total), members))
    return found


def _row(what: Measurement, counts: Counts) -> str:
    cells = [
        what.draft,
        {"vllm": "vLLM", "offline": "offline"}[what.source],
        str(what.k),
        f"{what.temperature:g}",
        what.workload,
        str(counts.passes),
        f"{counts.mean_acceptance_length:.3f}",
        f"{counts.acceptance_rate:.3f}",
        " ".join(f"{value:.3f}" for value in counts.unconditional),
        " ".join(f"{value:.3f}" for value in counts.conditional),
    ]
    return "| " + " | ".join(cells) + " |"
