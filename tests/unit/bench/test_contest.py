"""The measuring loop, with actors that answer as told and no Ray."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from paceline.bench import contest
from paceline.bench.contest import Contest, Script, first_difference
from paceline.bench.matrix import Load
from paceline.bench.store import Difference, Run, Store
from paceline.cluster.inputs import Prompt
from paceline.cluster.runtime import Runtime
from paceline.errors import InputError, RefusedError, UserError
from paceline.verifier.engine import GenerationRequest
from tests.unit.bench.made import NGRAM_CONTENDER, PLAIN_CONTENDER, counts

PLAIN, NGRAM = str(PLAIN_CONTENDER), str(NGRAM_CONTENDER)
RUN = Run(arguments={}, environment={}, max_resident=2, load_average=[])
Answer = Callable[[str, GenerationRequest], list[int]]


@dataclass(frozen=True, eq=False)
class Ref:
    """What a call of an actor returns."""

    name: str
    request: GenerationRequest


class ScriptedRay:
    """Stands for the module."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.calls: list[tuple[str, GenerationRequest]] = []
        self.most_pending = 0

    def wait(self, refs: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        self.most_pending = max(self.most_pending, len(refs))
        return refs[:1], refs[1:]

    def get(self, ref: Any) -> Any:
        if isinstance(ref, list):
            return [self.get(one) for one in ref]
        name, request = ref.name, ref.request
        tokens = self._answer(name, request)
        return {
            "token_ids": tokens,
            "prompt_token_ids": request.prompt_token_ids or [ord(c) for c in request.prompt or ""],
            "seconds_to_first_token": 0.5,
            "events": [(0.5, 1), (0.75, len(tokens) - 1)],
            "speculation": counts() if name == NGRAM else None,
            "top_two_gaps": [0.125],
        }


class ScriptedActor:
    """A target; ``generate.remote`` is all that is called."""

    def __init__(self, name: str, ray: ScriptedRay) -> None:
        self._name = name
        self._ray = ray
        self.generate = self

    def remote(self, request: GenerationRequest) -> Ref:
        self._ray.calls.append((self._name, request))
        return Ref(self._name, request)


class ScriptedRuntime:
    """Holds the targets."""

    def __init__(self, ray: ScriptedRay) -> None:
        self.targets = {name: ScriptedActor(name, ray) for name in (PLAIN, NGRAM)}
        self.problem: UserError | None = None

    def check_drafters(self) -> None:
        if self.problem is not None:
            raise self.problem


class Rig:
    """A contest of two over prompts named a, b, c, …"""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        answer: Answer,
        num_prompts: int = 2,
        scripted: bool = False,
    ) -> None:
        self.ray = ScriptedRay(answer)
        monkeypatch.setattr(contest, "ray", self.ray)
        with Store.open(folder, RUN, resume=True) as self.store:
            pass  # what adds to it needs no lock
        self.num_finished = 0
        self.runtime = ScriptedRuntime(self.ray)
        self.answers = folder / "answers.jsonl"
        self.contest = Contest(
            group=0,
            contenders=[PLAIN_CONTENDER, NGRAM_CONTENDER],
            runtime=cast(Runtime, self.runtime),
            prompts=[
                Prompt(line=i, id=name, prompt=name, sampling={"max_tokens": 7, "top_k": 3})
                for i, name in enumerate("abcdefghijkl"[:num_prompts])
            ],
            max_tokens=16,
            store=self.store,
            script=Script(contenders=frozenset([NGRAM] if scripted else []), path=self.answers),
            finished=self.count,
        )

    def count(self, number: int) -> None:
        self.num_finished += number

    def run(self, concurrency: int = 1, temperature: float = 0.0, repeat: int = 0) -> None:
        self.contest.run(Load(concurrency=concurrency, temperature=temperature), repeat)

    def order(self) -> list[tuple[str, str | None]]:
        return [(name, request.prompt) for name, request in self.ray.calls]


def always(*tokens: int) -> Answer:
    return lambda name, request: list(tokens)


def test_everybody_is_measured_and_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, monkeypatch, always(1, 2, 3))
    rig.run()
    plain, ngram = list(rig.store)
    assert (plain.contender, ngram.contender) == (PLAIN, NGRAM)
    assert rig.num_finished == 2
    assert [request.id for request in ngram.requests] == ["a", "b"]
    assert ngram.requests[0].token_ids == [1, 2, 3]
    assert ngram.requests[0].events == [(0.5, 1), (0.75, 2)]
    assert ngram.requests[0].counts == counts()
    assert (plain.differences, ngram.differences) == (None, [])


def test_the_loads_sampling_wins_over_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, monkeypatch, always(1), num_prompts=1)
    rig.run(temperature=0.5)
    for _, request in rig.ray.calls:
        assert request.sampling == {"max_tokens": 16, "top_k": 3, "temperature": 0.5}
        assert request.detailed
    ids = [request.request_id for _, request in rig.ray.calls]
    assert len(set(ids)) == len(ids)


def test_blocks_alternate_and_the_first_place_rotates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, monkeypatch, always(1), num_prompts=10)
    rig.run()
    turns = [(PLAIN, "abcd"), (NGRAM, "abcd"), (NGRAM, "efgh"), (PLAIN, "efgh")]
    turns += [(PLAIN, "ij"), (NGRAM, "ij")]
    assert rig.order() == [(name, prompt) for name, block in turns for prompt in block]
    rig.ray.calls.clear()
    rig.run(repeat=1)
    assert rig.order()[0] == (NGRAM, "a")


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_than_so_many_are_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    rig = Rig(tmp_path, monkeypatch, always(1), num_prompts=8)
    rig.run(concurrency=concurrency)
    assert rig.ray.most_pending == concurrency


def test_a_prompt_that_cannot_be_served_is_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(name: str, request: GenerationRequest) -> list[int]:
        if request.prompt == "a":
            raise InputError("the prompt is too long")
        return [1]

    rig = Rig(tmp_path, monkeypatch, answer)
    rig.run()
    for measurement in rig.store:
        assert [r.error for r in measurement.requests] == ["the prompt is too long", None]


def test_a_difference_comes_with_plain_decodings_gap_at_that_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(name: str, request: GenerationRequest) -> list[int]:
        return [5, 6, 9] if name == NGRAM and request.prompt == "b" else [5, 6, 7]

    rig = Rig(tmp_path, monkeypatch, answer)
    rig.run()
    assert list(rig.store)[1].differences == [Difference(id="b", position=2, top_two_gap=0.125)]
    name, asked = rig.ray.calls[-1]
    assert name == PLAIN
    assert asked.prompt_token_ids == [ord("b"), 5, 6]
    assert asked.sampling == {"max_tokens": 1, "temperature": 0, "logprobs": 2}
    num_calls = len(rig.ray.calls)
    rig.run(repeat=1)
    assert len(rig.ray.calls) == num_calls + 4, "the same place is looked up once"


def test_samples_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, monkeypatch, lambda name, request: [len(name)])
    rig.run(temperature=0.5)
    assert [measurement.differences for measurement in rig.store] == [None, None]


def test_what_is_in_the_store_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, monkeypatch, always(1))
    rig.run()
    path = tmp_path / "measurements.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])  # plain's alone
    again = Rig(tmp_path, monkeypatch, always(1))
    again.run()
    assert again.order() == [(NGRAM, "a"), (NGRAM, "b")]
    assert [m.differences for m in again.store] == [None, []]
    again.run()
    assert again.num_finished == 1


def test_a_warm_up_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, monkeypatch, always(1))
    rig.contest.warm_up(concurrency=3)
    assert [name for name, _ in rig.ray.calls] == [PLAIN] * 3 + [NGRAM] * 3
    assert len(rig.store) == 0


def test_a_drafter_that_gives_up_while_everybody_is_busy_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(name: str, request: GenerationRequest) -> list[int]:
        rig.runtime.problem = RefusedError("another vocabulary")
        return [1]

    rig = Rig(tmp_path, monkeypatch, answer)
    with pytest.raises(RefusedError, match="another vocabulary"):
        rig.run()
    assert rig.order() == [(PLAIN, "a")] and len(rig.store) == 0


def answers(path: Path) -> list[tuple[list[int], list[int]]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["prompt_ids"], line["token_ids"]) for line in lines]


def test_a_scripted_drafter_finds_plain_decodings_answers_when_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    concurrency = 1

    def answer(name: str, request: GenerationRequest) -> list[int]:
        if name == NGRAM:
            expected = [([ord(p)], [ord(p), concurrency]) for p in "abcdef"]
            assert answers(rig.answers) == expected
        return [ord(request.prompt or ""), concurrency]

    rig = Rig(tmp_path, monkeypatch, answer, num_prompts=6, scripted=True)
    rig.run()
    assert rig.order()[:7] == [*((PLAIN, p) for p in "abcdef"), (PLAIN, "a")]
    assert len(rig.ray.calls) == 3 * 6
    concurrency = 2
    rig.run(concurrency=2)  # where a tie may fall otherwise
    concurrency = 1
    rig.run(repeat=1)
    assert len(rig.ray.calls) == 3 * 6 + 3 * 6 + 2 * 6, "once for each load"


def test_a_prompt_that_plain_decoding_cannot_serve_has_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(name: str, request: GenerationRequest) -> list[int]:
        if request.prompt == "a":
            raise InputError("the prompt is too long")
        return [1]

    rig = Rig(tmp_path, monkeypatch, answer, scripted=True)
    rig.run()
    assert answers(rig.answers) == [([ord("b")], [1])]


def test_going_on_with_scripted_drafters_begins_with_the_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Rig(tmp_path, monkeypatch, always(1), scripted=True).run()
    path = tmp_path / "measurements.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])  # plain's alone
    again = Rig(tmp_path, monkeypatch, always(1), scripted=True)
    again.answers.unlink()
    again.run()
    assert again.order() == [(PLAIN, "a"), (PLAIN, "b"), (NGRAM, "a"), (NGRAM, "b")]
    assert len(answers(again.answers)) == 2
    again.run()
    assert len(again.ray.calls) == 4, "who has nothing to measure needs no answers"


def test_without_scripted_drafters_no_answers_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, monkeypatch, always(1))
    rig.run()
    assert not rig.answers.exists() and len(rig.ray.calls) == 4


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 3], 1), ([1], [], 0)],
)
def test_the_first_difference(ours: list[int], theirs: list[int], expected: int | None) -> None:
    assert first_difference(ours, theirs) == expected
