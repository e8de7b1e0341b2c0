"""What a draft is worth, by the training's own chain: the passes that speculation would make are
played over the target's greedy answers to held-out prompts.

    python -m paceline.training.offline RECIPE [DRAFT …]

For drafts that vLLM cannot run here, and to check the two against each other where it can. Only
greedy: at a temperature above 0 what is accepted depends on more than the answer. The answers and
states are kept apart from those that drafts learn from, and made once for all drafts.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from paceline import models
from paceline.errors import InputError, UserError
from paceline.training import shards
from paceline.training.acceptance import Counts, Measurement, count, digest, table
from paceline.training.acceptance_vllm import (
    chosen,
    max_model_len,
    prompt_ids,
    prompt_room,
)
from paceline.training.answers import Answer, answer_files, read_answers
from paceline.training.card import method_of
from paceline.training.generate import VllmEngine, generate
from paceline.training.parts import Share, run_parts, shares
from paceline.training.progress import say
from paceline.training.prompts import Prompt, load_prompts, load_tokenizer, save_prompts
from paceline.training.recipe import DraftRecipe, Recipe, default_layers, load_recipe
from paceline.training.shards import Plan
from paceline.training.text_stages import BATCH_TOKENS, load_body, text_config
from paceline.training.train import TRAINING, load_vocabulary

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from paceline.training.corpus import Batch
    from paceline.training.objective import Objective
    from paceline.training.states import States

_PER_BATCH = 8
"""Sequences that are drafted together."""


def prepare(recipe: Recipe, given: list[Share]) -> None:
    """Makes the greedy answers to the held-out prompts and the states over them, as far as they are
    not there."""
    model = models.resolve_target(recipe.target, recipe.dtype)
    tokenizer = load_tokenizer(model)
    evaluation = recipe.evaluation
    room = prompt_room(model, evaluation.max_tokens, _most_drafted(recipe))
    prompts = [
        Prompt(
            id=f"{file.stem}/{row.id}",
            category=file.stem,
            ids=prompt_ids(tokenizer, row, room),
        )
        for file in recipe.evaluation_files
        for row in chosen(file, evaluation.num_prompts)
    ]
    _answers_folder(recipe).mkdir(parents=True, exist_ok=True)
    save_prompts(_prompts_file(recipe), prompts)
    there = {one.id for one in _answers(recipe)}
    if any(prompt.id not in there for prompt in prompts):
        say(f"the target answers {len(prompts):,} held-out prompts")
        run_parts(_answer, recipe, given)

    folder = _states_folder(recipe)
    trained = shards.load_plan(recipe.states_folder)
    layers = trained.layers if trained else tuple(recipe.layers or ())
    layers = layers or default_layers(text_config(model).num_hidden_layers)
    wanted = Plan(target=recipe.target, dtype=recipe.dtype, layers=layers)
    plan = shards.load_plan(folder) or wanted
    shards.check_plan(plan, wanted, folder)
    plan = shards.extend(plan, [prompt.id for prompt in prompts], recipe.seed)
    if plan.missing(folder):
        shards.save_plan(folder, plan)
        run_parts(_compute, recipe, given)


def measure(recipe: Recipe, draft: DraftRecipe, device: str) -> list[Measurement]:
    """Plays the passes of one draft over what ``prepare`` made; one measurement for each file.

    Raises:
        InputError: the draft has not been trained here.
    """
    import torch

    if device == "cpu":
        torch.set_num_threads(1)
    objective = _trained(recipe, draft, device)
    states = _states(recipe)
    found = []
    for key in keys(recipe, draft):
        started = time.process_time()
        mine = [one for name, one in states.items() if name.startswith(f"{key.workload}/")]
        counts = play(objective, mine, key.k, torch.device(device))
        seconds = round(time.process_time() - started, 2)
        found.append(msgspec.structs.replace(key, counts=counts, cpu_s=seconds))
    return found


def keys(recipe: Recipe, draft: DraftRecipe) -> list[Measurement]:
    """Returns what ``measure`` measures, without results."""
    evaluation = recipe.evaluation
    return [
        Measurement(
            draft=draft.name,
            weights=digest(recipe.drafts_folder / draft.name),
            method=method_of(draft),
            k=evaluation.num_speculative_tokens or draft.num_speculative_tokens,
            dtype=recipe.dtype,
            workload=file.stem,
            temperature=0.0,
            num_prompts=evaluation.num_prompts,
            max_tokens=evaluation.max_tokens,
            source="offline",
        )
        for file in recipe.evaluation_files
    ]


def play(objective: Objective, states: list[States], k: int, device: torch.device) -> Counts:
    """Counts the passes over greedy answers, as the held-out figure of a training does."""
    import torch

    from paceline.training.corpus import collate, num_rows

    total = Counts.none(k)
    usable = sorted((one for one in states if num_rows(one) > 0), key=num_rows)
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16):
        for at in range(0, len(usable), _PER_BATCH):
            batch = collate(usable[at : at + _PER_BATCH]).to(device)
            _add(total, objective.right(batch, k).cpu(), batch)
    return total


def _add(total: Counts, right: Tensor, batch: Batch) -> None:
    """``right`` is bool [batch, rows, k]."""
    from paceline.training.objective import played

    k = right.shape[-1]
    rows = batch.valid.sum(1).tolist()
    for lengths, num_rows in zip(right.sum(-1).tolist(), rows, strict=True):
        accepted = list(played(lengths, num_rows))
        # The text's first token comes from the prefill.
        total.add(count(num_rows + 1, [k] * len(accepted), accepted, k))


def _trained(recipe: Recipe, draft: DraftRecipe, device: str) -> Objective:
    import torch

    from paceline.training.methods import make
    from paceline.training.objective import Vocabulary
    from paceline.training.target import Target, target_folder
    from paceline.training.trainer import CHECKPOINT, load_checkpoint

    folder = recipe.drafts_folder / draft.name
    checkpoint = folder / TRAINING / CHECKPOINT
    if not checkpoint.is_file():
        raise InputError(
            f"{checkpoint} is not there, and the offline chain plays what it holds: run the stage "
            "train"
        )
    target = Target(target_folder(recipe.target, recipe.dtype))
    plan = shards.load_plan(recipe.states_folder)
    assert plan is not None, "the draft was trained from them"
    ids = load_vocabulary(folder)
    assert ids is not None, "it is written before the checkpoint"
    vocabulary = Vocabulary(ids, target.head.to(torch.device(device)))
    objective = make(draft, target, vocabulary, plan.layers, None, recipe.seed).objective
    load_checkpoint(checkpoint, objective.model)
    objective.model.to(torch.device(device))
    return objective


def _states(recipe: Recipe) -> dict[str, States]:
    """The states over the answers to the recipe's present choice of prompts, by their ids."""
    from paceline.training.states import read_shard

    folder = _states_folder(recipe)
    plan = shards.load_plan(folder)
    assert plan is not None, "they were prepared"
    wanted = {prompt.id for prompt in load_prompts(_prompts_file(recipe))}
    return {
        name: one
        for index, names in enumerate(plan.shards)
        for name, one in zip(names, read_shard(shards.shard_file(folder, index)), strict=True)
        if name in wanted
    }


def _most_drafted(recipe: Recipe) -> int:
    own = recipe.evaluation.num_speculative_tokens
    return own or max(draft.num_speculative_tokens for draft in recipe.drafts)


def _folder(recipe: Recipe) -> Path:
    # Answers of another length are other answers.
    return recipe.held_out_folder / f"{recipe.evaluation.max_tokens}-tokens"


def _prompts_file(recipe: Recipe) -> Path:
    return _folder(recipe) / "prompts.jsonl"


def _answers_folder(recipe: Recipe) -> Path:
    return _folder(recipe) / "answers"


def _states_folder(recipe: Recipe) -> Path:
    return _folder(recipe) / "states"


def _answers(recipe: Recipe) -> list[Answer]:
    files = answer_files([_answers_folder(recipe)])
    return [answer for file in files for answer in read_answers(file)]


def _answer(recipe: Recipe, share: Share) -> None:
    config = msgspec.structs.replace(
        recipe.answers,
        greedy_share=1.0,
        max_answer_tokens=recipe.evaluation.max_tokens,
        max_tokens=None,
        max_minutes=None,
    )
    model = models.resolve_target(recipe.target, recipe.dtype)
    longest = max_model_len(model) - config.max_answer_tokens
    generate(
        load_prompts(_prompts_file(recipe)),
        _answers_folder(recipe),
        config,
        functools.partial(VllmEngine, model, recipe.dtype, longest, config),
        part=share.part,
        parts=share.parts,
    )


def _compute(recipe: Recipe, share: Share) -> None:
    folder = _states_folder(recipe)
    plan = shards.load_plan(folder)
    assert plan is not None
    shards.compute_shards(
        plan,
        folder,
        iter(_answers(recipe)),
        functools.partial(load_body, recipe, share.device),
        part=share.part,
        parts=share.parts,
        max_batch_tokens=BATCH_TOKENS[share.device],
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs the chain and shows its figures; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m paceline.training.offline")
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("drafts", nargs="*", metavar="DRAFT", help="default: all of the recipe")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    options = parser.parse_args(arguments)
    try:
        recipe = load_recipe(options.recipe)
        names = options.drafts or [draft.name for draft in recipe.drafts]
        for name in names:
            if name not in [draft.name for draft in recipe.drafts]:
                raise InputError(f"the recipe has no draft '{name}': name one of it")
        given = shares(1, options.device)
        prepare(recipe, given)
        device = given[0].device
        drafts = [draft for draft in recipe.drafts if draft.name in names]
        print(table(one for draft in drafts for one in measure(recipe, draft, device)))
    except UserError as error:
        say(f"error: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
