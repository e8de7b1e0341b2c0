"""The stages that make what drafts learn from: the target's answers, and its states over them.

What runs in a process of its own stands at the end, and loads torch and vLLM there only.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import models
from paceline.errors import ConfigError, EnvironmentError_, InputError
from paceline.training import shards
from paceline.training.answers import Answer, answer_files, read_answers
from paceline.training.generate import VllmEngine, generate
from paceline.training.held_out import HeldOut
from paceline.training.parts import Share, run_parts
from paceline.training.progress import say
from paceline.training.prompt_rows import read_texts
from paceline.training.prompts import encoder, load_prompts, load_tokenizer, save_prompts, select
from paceline.training.recipe import Recipe, default_layers
from paceline.training.shards import Plan

if TYPE_CHECKING:
    import torch

BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def answers(recipe: Recipe, given: list[Share]) -> None:
    """Stage ``answers``: the target answers the recipe's prompts."""
    model = models.resolve_target(recipe.target, recipe.dtype)
    prompts = select(recipe.prompts, encoder(model), recipe.seed, say)
    there = {one.id for one in _all_answers([Path(p).expanduser() for p in recipe.more_answers])}
    if there:
        prompts = [prompt for prompt in prompts if prompt.id not in there]
        say(f"{len(prompts):,} of them have no answer in more_answers")
    recipe.answers_folder.mkdir(parents=True, exist_ok=True)
    save_prompts(recipe.prompts_file, prompts)
    run_parts(_answer, recipe, given)


def states(recipe: Recipe, given: list[Share]) -> None:
    """Stage ``states``: what the target computes over all answers that are there."""
    model = models.resolve_target(recipe.target, recipe.dtype)
    config = text_config(model)
    layers = tuple(recipe.layers or default_layers(config.num_hidden_layers))
    if not all(0 <= layer < config.num_hidden_layers for layer in layers):
        raise ConfigError(
            f"the recipe's layers are {list(layers)}, but {recipe.target} has "
            f"{config.num_hidden_layers}, counted from 0"
        )
    folder = recipe.states_folder
    wanted = Plan(target=recipe.target, dtype=recipe.dtype, layers=layers)
    plan = shards.load_plan(folder) or wanted
    shards.check_plan(plan, wanted, folder)
    lengths = _lengths(recipe, model)
    if not lengths:
        raise InputError(
            f"there are no answers in {recipe.answers_folder}: run the stage answers first"
        )
    plan = shards.extend(plan, lengths, recipe.seed)
    missing = plan.missing(folder)
    num_tokens = sum(lengths.get(one, 0) for index in missing for one in plan.shards[index])
    say(
        f"{len(lengths):,} answers in {len(plan.shards):,} shards, of which {len(missing):,} with "
        f"{num_tokens:,} tokens are to be computed"
    )
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        _check_space(folder, num_tokens * (len(layers) + 1) * config.hidden_size, recipe.dtype)
        shards.save_plan(folder, plan)
        run_parts(_compute, recipe, given)


def text_config(model: str) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(model).get_text_config()


def _all_answers(paths: list[Path]) -> Iterator[Answer]:
    for file in answer_files(paths):
        yield from read_answers(file)


def _lengths(recipe: Recipe, model: str) -> dict[str, int]:
    """Returns the number of tokens of each answer with its prompt, without those to held-out
    prompts: whoever gave the answers may not have known what is held out here."""
    held_out = HeldOut(text for file in recipe.prompts.held_out for text in read_texts(Path(file)))
    tokenizer = load_tokenizer(model)
    lengths: dict[str, int] = {}
    left_out = 0
    for answer in _all_answers(recipe.answer_paths):
        if held_out.shares(tokenizer.decode(answer.prompt_ids, skip_special_tokens=True)):
            left_out += 1
        else:
            lengths[answer.id] = len(answer.prompt_ids) + len(answer.answer_ids)
    if left_out:
        say(f"{left_out:,} answers are left out: their prompts are like held-out ones")
    return lengths


def _check_space(folder: Path, num_values: int, dtype: str) -> None:
    needed = num_values * _BYTES[dtype] / 1e9
    free = shutil.disk_usage(folder).free / 1e9
    if needed > free:
        raise EnvironmentError_(
            f"the states take {needed:.1f} GB, and {folder} has {free:.1f} GB of free space: free "
            "some, or lower answers.max_tokens"
        )
    say(f"they take {needed:.1f} GB in {folder}")


def _answer(recipe: Recipe, share: Share) -> None:
    model = models.resolve_target(recipe.target, recipe.dtype)
    start = functools.partial(
        VllmEngine, model, recipe.dtype, recipe.prompts.max_tokens, recipe.answers
    )
    generate(
        load_prompts(recipe.prompts_file),
        recipe.answers_folder,
        recipe.answers,
        start,
        part=share.part,
        parts=share.parts,
    )


def _compute(recipe: Recipe, share: Share) -> None:
    plan = shards.load_plan(recipe.states_folder)
    assert plan is not None
    shards.compute_shards(
        plan,
        recipe.states_folder,
        _all_answers(recipe.answer_paths),
        functools.partial(load_body, recipe, share.device),
        part=share.part,
        parts=share.parts,
        max_batch_tokens=BATCH_TOKENS[share.device],
    )


def load_body(recipe: Recipe, device: str) -> torch.nn.Module:
    """The target without its head."""
    import torch
    from transformers import AutoModel

    model = models.resolve_target(recipe.target, recipe.dtype)
    body: torch.nn.Module = AutoModel.from_pretrained(model, dtype=getattr(torch, recipe.dtype))
    return body.to(device).eval()
