"""The offline chain: passes are played as a training's held-out figure plays them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from paceline.config import parse
from paceline.errors import InputError
from paceline.training import offline
from paceline.training.answers import Answer, read_answers
from paceline.training.generate import Question
from paceline.training.parts import Share
from paceline.training.recipe import Recipe
from paceline.training.shards import Plan, compute_shards, extend, load_plan, save_plan, shard_file
from tests.tiny import VOCAB_SIZE, add_tokenizer, make_tiny_llama

if TYPE_CHECKING:
    from torch import Tensor, nn

    from paceline.training.corpus import Batch
    from paceline.training.objective import Loss
    from paceline.training.states import States

torch = pytest.importorskip("torch")

CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
NUM_DISTINCT = 4
ANSWER_TOKENS = 12


def sequence(num_prompt: int, num_answer: int) -> States:
    from paceline.training.states import States

    size = num_prompt + num_answer
    return States(
        tokens=torch.arange(size),
        num_prompt=num_prompt,
        greedy=True,
        aux=torch.zeros(size, 4),
        final=torch.zeros(size, 2),
    )


class Scripted:
    """Right where a seeded generator says so, by the token at which a draft begins."""

    def __init__(self, seed: int) -> None:
        self.table = torch.rand(64, 3, generator=torch.Generator().manual_seed(seed)) < 0.7

    @property
    def model(self) -> nn.Module:
        raise AssertionError("the chain asks for drafts only")

    def loss(self, batch: Batch) -> Loss:
        raise AssertionError("the chain asks for drafts only")

    def right(self, batch: Batch, num_steps: int) -> Tensor:
        # Behind the text's end nothing is right.
        left = batch.lengths[:, None, None] - batch.rows[..., None] - 2
        within: Tensor = torch.arange(num_steps) < left
        found: Tensor = (self.table[batch.rows][..., :num_steps] & within).cumprod(-1).bool()
        return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [1, 3])
def test_the_passes_are_those_of_the_held_out_figure(seed: int, k: int) -> None:
    from paceline.training.corpus import collate
    from paceline.training.objective import Rounds

    # More than a batch; answers of one token have no pass.
    texts = [sequence(2 + i % 3, 1 + (5 * i) % 23) for i in range(11)]
    objective = Scripted(seed)
    counts = offline.play(objective, texts, k, torch.device("cpu"))
    rounds = Rounds()
    for one in texts:
        if len(one.tokens) - one.num_prompt > 1:
            batch = collate([one])
            rounds.add(objective.right(batch, k), batch.valid)
    assert counts.passes == rounds.rounds
    assert counts.accepted == rounds.accepted
    # Each token of the text but the prefill's comes from one pass.
    assert counts.tokens == sum(len(one.tokens) - one.num_prompt - 1 for one in texts)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    folder = make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model")
    add_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def answer(model: Path) -> Callable[[list[int]], list[int]]:
    """The target's greedy answer to a prompt."""
    from transformers import AutoModelForCausalLM

    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    def ask(ids: list[int]) -> list[int]:
        rows = list(ids)
        with torch.inference_mode():
            for _ in range(ANSWER_TOKENS):
                rows.append(int(target(torch.tensor([rows])).logits[0, -1].argmax()))
        return rows[len(ids) :]

    return ask


class FakeEngine:
    """Answers as the target does, one question at a time."""

    def __init__(self, answer: Callable[[list[int]], list[int]]) -> None:
        self.answer = answer
        self.waiting: list[Question] = []

    def ask(self, question: Question) -> None:
        assert question.temperature == 0
        self.waiting.append(question)

    def step(self) -> list[Answer]:
        prompt = self.waiting.pop().prompt
        return [
            Answer(
                id=prompt.id,
                category=prompt.category,
                temperature=0.0,
                prompt_ids=prompt.ids,
                answer_ids=self.answer(prompt.ids),
                finish="length",
            )
        ]


@pytest.fixture
def recipe(
    model: Path,
    answer: Callable[[list[int]], list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Recipe:
    """A recipe whose states are computed; the engine is a fake one in this process."""
    from transformers import AutoModel

    for name in ("chat", "code"):
        rows = [{"id": i, "prompt": f"{name} {i}"} for i in range(3)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text)
    values: dict[str, Any] = {
        "target": str(model),
        "dtype": "float32",
        "folder": str(tmp_path / "data"),
        "prompts": {"sources": [{"dataset": "org/q"}]},
        "layers": [0, 1],
        "evaluation": {
            "files": [str(tmp_path / "chat.jsonl"), str(tmp_path / "code.jsonl")],
            "max_tokens": ANSWER_TOKENS,
            "num_prompts": 2,
        },
        "drafts": [
            {
                "name": "d",
                "method": "eagle3",
                "num_speculative_tokens": 3,
                "draft_vocab_size": 96,
                "passes": 10,
                "rows_per_step": 64,
            }
        ],
    }
    one = parse(values, Recipe, "here")
    # Few distinct prompts, so that those that are held apart were learned, and drafts are right.
    given = {number: [number + 1, 5, 9] for number in range(NUM_DISTINCT)}
    said = {number: answer(ids) for number, ids in given.items()}
    answers = [
        Answer(
            id=f"a{i}",
            category="",
            temperature=0.0,
            prompt_ids=given[i % NUM_DISTINCT],
            answer_ids=said[i % NUM_DISTINCT],
            finish="length",
        )
        for i in range(40)
    ]
    plan = Plan(target=str(model), dtype="float32", layers=(0, 1))
    plan = extend(plan, [one.id for one in answers], 0)
    save_plan(one.states_folder, plan)
    body = AutoModel.from_pretrained(model, dtype=torch.float32).eval()
    compute_shards(plan, one.states_folder, iter(answers), lambda: body)
    monkeypatch.setattr(offline, "VllmEngine", lambda *_: FakeEngine(answer))
    monkeypatch.setattr(offline, "run_parts", lambda work, recipe, given: work(recipe, given[0]))
    return one


def test_a_trained_draft_is_played_as_it_was_validated(recipe: Recipe) -> None:
    from paceline.training.corpus import Corpus
    from paceline.training.objective import Vocabulary
    from paceline.training.states import read_shard
    from paceline.training.target import top_tokens
    from paceline.training.train import train_draft

    draft = recipe.drafts[0]
    with pytest.raises(InputError, match="run the stage train"):
        offline.measure(recipe, draft, "cpu")
    train_draft(recipe, draft, "cpu")
    folder = recipe.drafts_folder / "d"
    curve = (folder / "training" / "held_out.jsonl").read_text().splitlines()
    last = json.loads(curve[-1])
    objective = offline._trained(recipe, draft, "cpu")
    vocabulary = getattr(objective, "vocabulary", None)
    assert isinstance(vocabulary, Vocabulary)
    occurring, _ = Corpus(recipe.states_folder).counts(VOCAB_SIZE)
    assert vocabulary.ids.equal(top_tokens(occurring, 96))
    apart = [one for one in read_shard(shard_file(recipe.states_folder, 0)) if one.greedy]
    counts = offline.play(objective, apart, 3, torch.device("cpu"))
    assert counts.unconditional[0] > 0.1, "it learned something"
    found = [number / counts.passes for number in counts.accepted]
    assert found == pytest.approx(last["acceptance_per_position"])

    given = [Share(part=0, parts=1, device="cpu")]
    offline.prepare(recipe, given)
    chat, code = offline.measure(recipe, draft, "cpu")
    assert (chat.workload, code.workload) == ("chat", "code")
    assert (chat.source, chat.temperature, chat.k, chat.num_prompts) == ("offline", 0.0, 3, 2)
    assert chat.counts is not None
    assert chat.counts.tokens == 2 * (ANSWER_TOKENS - 1)
    assert [one.key for one in (chat, code)] == offline.keys(recipe, draft)


def test_held_out_answers_are_made_once_and_kept_apart(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [Share(part=0, parts=1, device="cpu")]
    offline.prepare(recipe, given)
    folder = recipe.held_out_folder / f"{ANSWER_TOKENS}-tokens"
    (file,) = (folder / "answers").iterdir()
    ids = sorted(one.id for one in read_answers(file))
    assert ids == ["chat/0", "chat/1", "code/0", "code/1"]
    assert not recipe.answers_folder.exists()
    plan = load_plan(folder / "states")
    assert plan is not None and plan.layers == (0, 1)
    assert not plan.missing(folder / "states")
    monkeypatch.setattr(offline, "run_parts", pytest.fail)
    offline.prepare(recipe, given)
