"""The target answers prompts itself: the text that a draft learns from.

vLLM in this process, with as many requests in a pass as it takes: a new one is handed in as soon as
one has ended. A draft has to be trained on what its target says when it is served, so the numbers
are computed in the dtype that it is served in.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from paceline.config import Config
from paceline.training.answers import Answer, AnswerWriter, answer_files, read_answers
from paceline.training.progress import Progress, say
from paceline.training.prompts import Prompt


class GenerationConfig(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the target answers, and when it has answered enough."""

    max_answer_tokens: int = 256
    """Longer answers are cut off there."""
    greedy_share: float = 0.5
    """Of the prompts; the others are answered at ``temperature``."""
    temperature: float = 0.7
    max_tokens: int | None = None
    """Answer tokens, of all processes and starts together; default: all prompts are answered."""
    max_minutes: float | None = None
    """Of wall time for one start; what is being answered then is still finished."""
    max_num_seqs: int = 128
    """Requests in one pass."""
    kv_cache_gib: float = 2.0
    """Memory for the KV cache of each process on CPU; on a GPU vLLM sizes it itself."""
    engine_args: dict[str, Any] = {}
    """Further arguments of vLLM's ``EngineArgs``, passed on as they are."""

    def __post_init__(self) -> None:
        if not 0 <= self.greedy_share <= 1:
            raise ValueError(f"greedy_share is {self.greedy_share}, it lies between 0 and 1")
        if not 0 < self.temperature <= 2:
            raise ValueError(
                f"temperature is {self.temperature}, it lies above 0 and up to 2; "
                "for greedy answers set greedy_share to 1"
            )
        for name in ("max_answer_tokens", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be at least 1")
        for name in ("max_tokens", "max_minutes", "kv_cache_gib"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}, it must be above 0")


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt and how it is to be answered."""

    prompt: Prompt
    temperature: float


class Engine(Protocol):
    """What answers. Questions are told apart by their prompt's id, which must be unique."""

    def ask(self, question: Question) -> None:
        """Begins to answer."""

    def step(self) -> list[Answer]:
        """Computes one pass; returns the answers that ended in it."""


def questions(prompts: list[Prompt], greedy_share: float, temperature: float) -> list[Question]:
    """Spreads greedy and sampled answers evenly; the same prompts give the same questions."""
    asked = []
    for index, prompt in enumerate(prompts):
        greedy = int((index + 1) * greedy_share) > int(index * greedy_share)
        asked.append(Question(prompt=prompt, temperature=0.0 if greedy else temperature))
    return asked


def part_file(folder: Path, part: int, parts: int) -> Path:
    """Where process ``part`` (from 0) of ``parts`` writes."""
    return folder / f"answers-{part:02}-of-{parts:02}.jsonl"


def generate(
    prompts: list[Prompt],
    folder: Path,
    config: GenerationConfig,
    start: Callable[[], Engine],
    *,
    part: int = 0,
    parts: int = 1,
    tell: Callable[[str], None] = say,
    clock: Callable[[], float] | None = None,
) -> None:
    """Answers this part's share of the prompts into its file in ``folder``.

    What any file there has an answer to is left out, so that the same call goes on after an
    interruption, with any number of parts. ``start`` loads the engine, if there is work for one.
    """
    with AnswerWriter(part_file(folder, part, parts)) as writer:
        there: set[str] = set()
        tokens_left = config.max_tokens or float("inf")
        for file in answer_files([folder]):
            for answer in read_answers(file):
                there.add(answer.id)
                tokens_left -= len(answer.answer_ids)
        every = questions(prompts, config.greedy_share, config.temperature)[part::parts]
        waiting = deque(question for question in every if question.prompt.id not in there)
        if not waiting or tokens_left <= 0:
            tell("there are answers enough already")
            return
        engine = start()
        progress = Progress(
            "answers",
            len(every),
            done=len(every) - len(waiting),
            max_tokens=tokens_left / parts,
            max_seconds=config.max_minutes * 60 if config.max_minutes else float("inf"),
            tell=tell,
            **({"clock": clock} if clock else {}),
        )
        running = 0
        while running or (waiting and not progress.is_over):
            while waiting and running < config.max_num_seqs and not progress.is_over:
                engine.ask(waiting.popleft())
                running += 1
            answers = engine.step()
            running -= len(answers)
            for answer in answers:
                writer.write(answer)
            progress.count(len(answers), sum(len(answer.answer_ids) for answer in answers))
        progress.report()


class VllmEngine:
    """vLLM, in this process; see ``parts.prepare_environment``."""

    def __init__(
        self, model: str, dtype: str, max_prompt_tokens: int, config: GenerationConfig
    ) -> None:
        """Loads ``model``, a folder or a hub id."""
        from vllm import EngineArgs, SamplingParams
        from vllm.platforms import current_platform
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.llm_engine import LLMEngine

        arguments: dict[str, Any] = {
            "model": model,
            "dtype": dtype,
            "max_model_len": max_prompt_tokens + config.max_answer_tokens,
            "max_num_seqs": config.max_num_seqs,
            "disable_log_stats": True,
        }
        if current_platform.is_cpu():
            # The second runner needs Triton there, which is rare.
            os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
            arguments["enforce_eager"] = True  # compilation takes minutes on a CPU
            arguments["distributed_executor_backend"] = "uni"
            arguments["kv_cache_memory_bytes"] = int(config.kv_cache_gib * (1 << 30))
        self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments | config.engine_args))
        self._asked: dict[str, Question] = {}

        def sampling(temperature: float) -> Any:
            return SamplingParams(
                temperature=temperature,
                max_tokens=config.max_answer_tokens,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )

        self._sampling = sampling

    def ask(self, question: Question) -> None:
        prompt = question.prompt
        self._asked[prompt.id] = question
        self._engine.add_request(
            prompt.id, {"prompt_token_ids": prompt.ids}, self._sampling(question.temperature)
        )

    def step(self) -> list[Answer]:
        answers = []
        for output in self._engine.step():
            if not output.finished:
                continue
            question = self._asked.pop(output.request_id)
            answers.append(
                Answer(
                    id=question.prompt.id,
                    category=question.prompt.category,
                    temperature=question.temperature,
                    prompt_ids=question.prompt.ids,
                    answer_ids=list(output.outputs[0].token_ids),
                    finish=str(output.outputs[0].finish_reason),
                )
            )
        return answers
