"""``python -m paceline.training RECIPE [STAGE …]``: from a recipe to drafts, stage by stage."""

from __future__ import annotations

import argparse
import importlib
import signal
from collections.abc import Sequence
from typing import NoReturn

from paceline.errors import ConfigError, PacelineError, UserError
from paceline.training.parts import INTERRUPTED, shares
from paceline.training.progress import say
from paceline.training.recipe import load_recipe

STAGES = {
    "answers": ("paceline.training.text_stages", "the target answers the prompts"),
    "states": ("paceline.training.text_stages", "the target's hidden states over its answers"),
    "train": ("paceline.training.train", "the drafts are trained and written"),
    "evaluate": ("paceline.training.evaluate", "the drafts are measured, and get their cards"),
}
"""In their order: each stage's module, which has a function of the stage's name, and what it does.
The function takes the recipe and the shares of the processes; it goes on where it was interrupted.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 0, 1 if something failed, 2 if the user has something to
    correct, 130 if interrupted."""
    arguments = _parser().parse_args(argv)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminate)
    try:
        recipe = load_recipe(arguments.recipe)
        for name in arguments.stages:
            if name not in STAGES:
                raise ConfigError(f"there is no stage '{name}'; there are {', '.join(STAGES)}")
        chosen = [stage for stage in STAGES if stage in (arguments.stages or STAGES)]
        if arguments.processes < 1:
            raise ConfigError(f"--processes is {arguments.processes}, it must be at least 1")
        given = shares(arguments.processes, arguments.device)
        for stage in chosen:
            say(f"stage {stage}")
            module = importlib.import_module(STAGES[stage][0])
            getattr(module, stage)(recipe, given)
    except PacelineError as error:
        say(f"error: {error}")
        return 2 if isinstance(error, UserError) else 1
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "paceline":
            raise
        say(
            f"error: training needs the package {package}, which is not installed here; install "
            "Paceline with its extras cpu or gpu and training"
        )
        return 2
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from here")
        return INTERRUPTED
    return 0


def _terminate(number: int, frame: object) -> NoReturn:
    """Ends on SIGTERM and SIGHUP as on Ctrl-C: in order, with nothing left running."""
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    stages = "\n".join(f"  {name:10} {what}" for name, (_, what) in STAGES.items())
    parser = argparse.ArgumentParser(
        prog="python -m paceline.training",
        description="Makes drafts for a target, as a recipe says.",
        epilog=f"stages:\n{stages}\n\nAn interrupted command goes on when it is given again.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", metavar="RECIPE", help="YAML file, see training/recipes/")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="default: all, in order")
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="that share the stages answers and states; on CPU one per core, on GPUs at most one "
        "each (default: 1)",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: cuda (ROCm as well) if there is one"
    )
    return parser
