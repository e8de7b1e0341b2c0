"""The loop of ``paceline generate``, with scripted actors and a clock that jumps with each wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.cluster import generate
from paceline.cluster.inputs import Prompt
from paceline.verifier.engine import GenerationRequest

COUNTS = {"rounds": 2, "drafted_rounds": 1, "proposed": 4, "accepted": 1}


class Ref:
    """What an actor's method answers at once."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.result = result


class Target:
    """Stands for a target's actor."""

    def __init__(self, counts: dict[str, int] | None) -> None:
        self._counts = counts
        self.generate = SimpleNamespace(remote=self._generate)

    def _generate(self, request: GenerationRequest) -> Ref:
        result = {
            "text": "x",
            "token_ids": [1, 2, 3],
            "finish_reason": "length",
            "usage": {"completion_tokens": 3},
            "speculation": self._counts,
        }
        return Ref(result)


class Ray:
    """One request is finished after each wait, which takes six seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def wait(self, refs: list[Ref], timeout: float) -> tuple[list[Ref], list[Ref]]:
        self.now += 6.0
        return refs[:1], refs[1:]

    def get(self, ref: Ref) -> dict[str, Any]:
        return ref.result

    def monotonic(self) -> float:
        return self.now


class Runtime:
    def __init__(self, *, compare: bool) -> None:
        self.targets = {"target": Target(COUNTS)}
        if compare:
            self.targets["plain"] = Target(None)

    def begin_trace(self) -> None:
        pass

    def check_drafters(self) -> None:
        pass


def progress(monkeypatch: pytest.MonkeyPatch, *, compare: bool) -> list[str]:
    """Returns what is said during a run of three prompts."""
    ray, said, written = Ray(), list[str](), list[dict[str, Any]]()
    monkeypatch.setattr(generate, "ray", ray)
    monkeypatch.setattr(generate, "time", ray)
    monkeypatch.setattr(generate, "_say", said.append)
    runtime: Any = Runtime(compare=compare)
    job = generate._Job(
        runtime, 3, {"max_tokens": 3, "temperature": 0.0}, 3, written.append, lambda prompt: "f"
    )
    job.run([Prompt(line=number, id=str(number), prompt="x") for number in range(1, 4)])
    assert [line["id"] for line in written] == ["1", "2", "3"]
    assert [line.get("equal_to_plain") for line in written] == [compare or None] * 3
    return said


def test_both_sides_of_a_comparison_tell_how_far_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress(monkeypatch, compare=True) == [
        f"{number} of 3 {what} after {6 * number} s, {3 * number} tokens"
        for what in ("done with drafts", "done plainly")
        for number in (1, 2, 3)
    ]


def test_lines_that_are_written_are_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress(monkeypatch, compare=False) == []
