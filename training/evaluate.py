"""The stage that measures a recipe's drafts on its held-out prompts, and writes their cards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from paceline.cards import CARD_FILE
from paceline.errors import InputError, RequestFailedError, UserError
from paceline.training import offline
from paceline.training.acceptance import Measurement, append_result, digest, read_results
from paceline.training.acceptance_vllm import cannot_run
from paceline.training.card import make_card, method_of, read_curve
from paceline.training.learned import Learned, learned
from paceline.training.parts import Share, prepare_environment
from paceline.training.progress import say
from paceline.training.recipe import DraftRecipe, Recipe
from paceline.training.train import TRAINING

RESULTS_FILE = "acceptance.jsonl"


def evaluate(recipe: Recipe, given: list[Share]) -> None:
    """Stage ``evaluate``: each trained draft in vLLM where that runs it here, else offline.

    What has been measured of the same weights in the same way is not measured again.

    Raises:
        InputError: no draft of the recipe has been trained.
        RequestFailedError: a measurement ended in an unforeseen way.
    """
    trained = [draft for draft in recipe.drafts if _weights(recipe, draft).is_file()]
    if not trained:
        raise InputError(
            f"there are no drafts in {recipe.drafts_folder}: run the stage train first"
        )
    for draft in recipe.drafts:
        if draft not in trained:
            say(f"{draft.name} has not been trained yet and is left out")
    if not recipe.evaluation_files:
        say("nothing is measured: the recipe names no files under evaluation or prompts.held_out")
    numbers = learned(recipe)
    for draft in trained:
        if recipe.evaluation_files:
            reason = cannot_run(method_of(draft), on_cpu=given[0].device == "cpu")
            if reason:
                say(f"{draft.name} is measured offline: {reason}")
                _measure_offline(recipe, draft, given)
            else:
                _measure_in_vllm(recipe, draft, given[0])
        write_card(recipe, draft, numbers)


def write_card(recipe: Recipe, draft: DraftRecipe, numbers: Learned) -> None:
    """Writes the card of a draft with what has been measured of its present weights."""
    folder = recipe.drafts_folder / draft.name
    curve = read_curve(folder / TRAINING / "held_out.jsonl")
    text = make_card(recipe, draft, numbers, curve, _results(recipe, draft))
    (folder / CARD_FILE).write_text(text, encoding="utf-8")
    say(f"{draft.name}: its card is {folder / CARD_FILE}")


def command(recipe: Recipe, draft: DraftRecipe) -> list[str]:
    """Returns the arguments of the process that measures a draft in vLLM."""
    evaluation = recipe.evaluation
    folder = recipe.drafts_folder / draft.name
    k = evaluation.num_speculative_tokens or draft.num_speculative_tokens
    options = {
        "target": recipe.target,
        "draft": folder.absolute(),
        "method": method_of(draft),
        "num-speculative-tokens": k,
        "temperatures": ",".join(f"{value:g}" for value in evaluation.temperatures),
        "num-prompts": evaluation.num_prompts,
        "max-tokens": evaluation.max_tokens,
        "dtype": recipe.dtype,
        "output": folder / RESULTS_FILE,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    module = "paceline.training.acceptance_vllm"
    return [sys.executable, "-m", module, *words, *map(str, recipe.evaluation_files)]


def _measure_in_vllm(recipe: Recipe, draft: DraftRecipe, share: Share) -> None:
    environ = dict(os.environ)
    prepare_environment(environ)
    if share.variable:
        environ[share.variable] = share.visible
    say(f"{draft.name} is measured in vLLM")
    process = subprocess.Popen(command(recipe, draft), env=environ)
    try:
        code = process.wait()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait()
    if code == 2:
        raise UserError("this stage is not finished; the lines above say why")
    if code:
        raise RequestFailedError(
            f"measuring {draft.name} ended with code {code}: see above, and run the same command "
            "again to go on from there"
        )


def _measure_offline(recipe: Recipe, draft: DraftRecipe, given: list[Share]) -> None:
    path = recipe.drafts_folder / draft.name / RESULTS_FILE
    there = {one.key for one in read_results(path)}
    if all(key in there for key in offline.keys(recipe, draft)):
        return
    offline.prepare(recipe, given)
    for one in offline.measure(recipe, draft, given[0].device):
        if one.key not in there:
            append_result(path, one)


def _results(recipe: Recipe, draft: DraftRecipe) -> list[Measurement]:
    """What was measured of the present weights as the recipe says, whatever the K."""
    folder = recipe.drafts_folder / draft.name
    wanted = (digest(folder), recipe.evaluation.num_prompts, recipe.evaluation.max_tokens)
    found = [
        one
        for one in read_results(folder / RESULTS_FILE)
        if (one.weights, one.num_prompts, one.max_tokens) == wanted
    ]
    return sorted(found, key=lambda one: (one.source != "vllm", one.temperature))


def _weights(recipe: Recipe, draft: DraftRecipe) -> Path:
    return recipe.drafts_folder / draft.name / "model.safetensors"
