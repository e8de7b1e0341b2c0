"""The command: errors in one sentence, and the stages with a real engine and a tiny target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.training.command import main
from paceline.training.parts import visible_gpus
from tests.tiny import add_tokenizer, make_tiny_llama

CHAT_TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}] {{ message.content }} {% endfor %}"
)


def _recipe(folder: Path, **changed: object) -> str:
    recipe: dict[str, object] = {
        "target": str(folder / "model"),
        "dtype": "float32",
        "folder": str(folder / "data"),
        "prompts": {"sources": [{"file": str(folder / "prompts.jsonl")}], "max_tokens": 48},
        "answers": {"max_answer_tokens": 8, "kv_cache_gib": 0.1},
        "layers": [0, 1],
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe | changed))
    return str(path)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A folder with a model that can chat, and prompts."""
    pytest.importorskip("transformers")
    make_tiny_llama(tmp_path / "model")
    add_tokenizer(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    rows = [{"id": f"p{i}", "prompt": f"question {i}"} for i in range(6)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_an_unknown_stage(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([_recipe(target), "answer"]) == 2
    assert "error: there is no stage 'answer'; there are answers, states" in capsys.readouterr().err


def test_states_without_answers(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([_recipe(target), "states", "--device", "cpu"]) == 2
    assert "run the stage answers first" in capsys.readouterr().err


def test_a_layer_that_does_not_exist(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([_recipe(target, layers=[0, 2]), "states", "--device", "cpu"]) == 2
    assert "layers are [0, 2]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environ", "is_rocm", "expected"),
    [
        ({}, False, ("CUDA_VISIBLE_DEVICES", ["0", "1"])),
        ({}, True, ("HIP_VISIBLE_DEVICES", ["0", "1"])),
        ({"CUDA_VISIBLE_DEVICES": "4, 6"}, False, ("CUDA_VISIBLE_DEVICES", ["4", "6"])),
        ({"CUDA_VISIBLE_DEVICES": "4,6"}, True, ("CUDA_VISIBLE_DEVICES", ["4", "6"])),
        ({"HIP_VISIBLE_DEVICES": "5,7"}, True, ("HIP_VISIBLE_DEVICES", ["5", "7"])),
        ({"HIP_VISIBLE_DEVICES": "5,7"}, False, ("CUDA_VISIBLE_DEVICES", ["0", "1"])),
    ],
)
def test_each_process_sees_one_gpu(
    environ: dict[str, str], is_rocm: bool, expected: tuple[str, list[str]]
) -> None:
    assert visible_gpus(environ, 2, is_rocm=is_rocm) == expected


@pytest.mark.slow
def test_answers_and_states(target: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("vllm")
    from paceline.training.answers import answer_files, read_answers
    from paceline.training.shards import load_plan, shard_file
    from paceline.training.states import read_shard

    given = {
        "id": "p0",
        "category": "",
        "temperature": 0.0,
        "prompt_ids": [3, 4],
        "answer_ids": [5],
        "finish": "stop",
    }
    (target / "given.jsonl").write_text(json.dumps(given) + "\n")
    recipe = _recipe(target, more_answers=[str(target / "given.jsonl")])
    assert main([recipe, "answers", "states", "--device", "cpu"]) == 0

    files = answer_files([target / "data" / "answers"])
    answers = {answer.id: answer for file in files for answer in read_answers(file)}
    assert sorted(answers) == ["p1", "p2", "p3", "p4", "p5"]
    for answer in answers.values():
        assert len(answer.answer_ids) == 8
        assert answer.finish == "length"
        # One token per character, the template's included.
        assert len(answer.prompt_ids) == len("[user] question 1 ")
    assert sorted(answer.temperature for answer in answers.values()) == [0, 0, 0.7, 0.7, 0.7]

    plan = load_plan(target / "data" / "states")
    assert plan is not None
    assert sorted(len(shard) for shard in plan.shards) == [1, 5]
    for index, names in enumerate(plan.shards):
        shard = read_shard(shard_file(target / "data" / "states", index))
        for one, name in zip(shard, names, strict=True):
            whole = (
                answers[name].prompt_ids + answers[name].answer_ids if name != "p0" else [3, 4, 5]
            )
            assert one.tokens.tolist() == whole

    capfd.readouterr()
    assert main([recipe, "answers", "states", "--device", "cpu"]) == 0
    told = capfd.readouterr().err
    assert "there are answers enough already" in told
    assert "of which 0 with 0 tokens are to be computed" in told
