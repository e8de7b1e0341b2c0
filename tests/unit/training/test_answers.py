"""Answer files, and the loop that fills them with a scripted engine."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest

from paceline.errors import InputError
from paceline.training.answers import Answer, AnswerWriter, answer_files, read_answers
from paceline.training.generate import GenerationConfig, Question, generate, part_file, questions
from paceline.training.prompts import Prompt


def _prompts(number: int) -> list[Prompt]:
    return [Prompt(id=f"p{i}", category="c", ids=[i, i + 1]) for i in range(number)]


def _answer(question: Question, length: int = 2) -> Answer:
    return Answer(
        id=question.prompt.id,
        category=question.prompt.category,
        temperature=question.temperature,
        prompt_ids=question.prompt.ids,
        answer_ids=[7] * length,
        finish="stop",
    )


class ScriptedEngine:
    """Ends the oldest question in every pass; counts what is asked at once."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.running: list[Question] = []
        self.sizes: list[int] = []

    def ask(self, question: Question) -> None:
        self.asked.append(question.prompt.id)
        self.running.append(question)

    def step(self) -> list[Answer]:
        self.sizes.append(len(self.running))
        return [_answer(self.running.pop(0))]


def _generate(
    folder: Path,
    number: int = 10,
    *,
    part: int = 0,
    parts: int = 1,
    max_tokens: int | None = None,
) -> ScriptedEngine:
    engine = ScriptedEngine()
    config = GenerationConfig(max_num_seqs=4, max_tokens=max_tokens)
    generate(
        _prompts(number),
        folder,
        config,
        lambda: engine,
        part=part,
        parts=parts,
        tell=lambda text: None,
    )
    return engine


def _ids(folder: Path) -> list[str]:
    return [answer.id for file in answer_files([folder]) for answer in read_answers(file)]


def test_all_prompts_are_answered_and_the_batch_stays_full(tmp_path: Path) -> None:
    engine = _generate(tmp_path)
    assert engine.sizes == [4] * 7 + [3, 2, 1]
    assert _ids(tmp_path) == [f"p{i}" for i in range(10)]


def test_a_line_is_what_the_format_says(tmp_path: Path) -> None:
    _generate(tmp_path, 2)
    lines = part_file(tmp_path, 0, 1).read_text().splitlines()
    assert json.loads(lines[1]) == {
        "id": "p1",
        "category": "c",
        "temperature": 0.0,
        "prompt_ids": [1, 2],
        "answer_ids": [7, 7],
        "finish": "stop",
    }


def test_it_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    _generate(tmp_path, 3)
    file = part_file(tmp_path, 0, 1)
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])  # a crash in the middle of the third line
    assert _ids(tmp_path) == ["p0", "p1"]
    assert _generate(tmp_path, 5).asked == ["p2", "p3", "p4"]
    assert _ids(tmp_path) == ["p0", "p1", "p2", "p3", "p4"]
    assert file.read_bytes().startswith(whole)


def test_nothing_is_loaded_where_nothing_is_to_be_done(tmp_path: Path) -> None:
    _generate(tmp_path)
    assert not _generate(tmp_path).asked
    assert not _generate(tmp_path, 100, max_tokens=20).asked


def test_parts_share_the_prompts_whatever_their_number_was_before(tmp_path: Path) -> None:
    _generate(tmp_path, 4)
    first = _generate(tmp_path, 10, part=0, parts=2)
    second = _generate(tmp_path, 10, part=1, parts=2)
    assert first.asked == ["p4", "p6", "p8"]
    assert second.asked == ["p5", "p7", "p9"]


def test_it_ends_at_the_token_budget_and_finishes_what_it_began(tmp_path: Path) -> None:
    engine = _generate(tmp_path, 100, max_tokens=10)
    # Two tokens an answer: the fifth answer reaches the budget, with three running beside it.
    assert len(engine.asked) == len(_ids(tmp_path)) == 8


def test_it_ends_at_the_time_budget(tmp_path: Path) -> None:
    now = [0.0]
    engine = ScriptedEngine()
    step = engine.step

    def slow_step() -> list[Answer]:
        now[0] += 30
        return step()

    engine.step = slow_step  # type: ignore[method-assign]
    told: list[str] = []
    config = GenerationConfig(max_num_seqs=2, max_minutes=1)
    generate(_prompts(9), tmp_path, config, lambda: engine, tell=told.append, clock=lambda: now[0])
    assert engine.asked == ["p0", "p1", "p2"]
    assert told[0].startswith("1 of 9 answers, 2 tokens in 0:00:30, 0 tokens/s")
    assert told[0].endswith("about 0:00:30 left")


@pytest.mark.parametrize(
    ("share", "greedy"), [(0.5, [1, 3, 5, 7]), (0.25, [3, 7]), (1, [*range(8)]), (0, [])]
)
def test_the_greedy_share_is_spread_evenly(share: float, greedy: list[int]) -> None:
    asked = questions(_prompts(8), share, 0.7)
    assert [i for i, question in enumerate(asked) if question.temperature == 0] == greedy
    assert all(question.temperature in (0, 0.7) for question in asked)


def test_a_file_has_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with AnswerWriter(path), pytest.raises(InputError, match="another process is writing"):
        AnswerWriter(path)


def test_a_torn_line_is_cut_however_long_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * 200_000)
    AnswerWriter(path).__exit__(None, None, None)
    assert path.read_bytes() == b""
    path.write_bytes(b"first\n" + b"x" * 200_000)
    AnswerWriter(path).__exit__(None, None, None)
    assert path.read_bytes() == b"first\n"


def test_gzipped_answers_are_read(tmp_path: Path) -> None:
    line = msgspec.json.encode(_answer(questions(_prompts(1), 1, 0.7)[0])) + b"\n"
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(line))
    assert _ids(tmp_path) == ["p0"]


def test_what_is_no_answer_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "a"}\n')
    with pytest.raises(InputError, match=r"a\.jsonl, line 1, is no answer"):
        _ids(tmp_path)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        list(read_answers(tmp_path / "none.jsonl"))
