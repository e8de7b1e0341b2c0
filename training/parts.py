"""The same work in several processes of this machine, each of which does its share of it.

On CPU each has one thread: several such processes beat one with several threads, which wait for
each other in every layer. On GPUs each has a device of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, MutableMapping
from typing import TypeVar

import msgspec

from paceline.errors import ConfigError, PacelineError, RequestFailedError, UserError
from paceline.training.progress import say

RecipeT = TypeVar("RecipeT")

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of the work is one process's own, and where it computes."""

    part: int
    """From 0."""
    parts: int
    device: str
    """"cpu" or "cuda"; under ROCm, too, torch calls it cuda."""
    variable: str = ""
    """Environment variable that says which GPUs a process sees; "": all."""
    visible: str = ""
    """Its value for this process."""


def shares(parts: int, device: str | None) -> list[Share]:
    """Hands out the work; ``device`` None: GPUs if there are any.

    Raises:
        ConfigError: there are fewer GPUs than parts.
    """
    import torch

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" or parts == 1:
        return [Share(part=part, parts=parts, device=device) for part in range(parts)]
    variable, names = visible_gpus(
        os.environ, torch.cuda.device_count(), is_rocm=torch.version.hip is not None
    )
    if parts > len(names):
        raise ConfigError(
            f"--processes is {parts}, but there are {len(names)} GPUs, and each process needs one"
        )
    return [
        Share(part=part, parts=parts, device=device, variable=variable, visible=names[part])
        for part in range(parts)
    ]


def visible_gpus(
    environ: MutableMapping[str, str], count: int, *, is_rocm: bool
) -> tuple[str, list[str]]:
    """Returns the variable that narrows the choice of GPUs, and its values for one GPU each.

    A choice that the user has made is narrowed further, in the variable that it was made in.
    """
    own = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if is_rocm else ("CUDA_VISIBLE_DEVICES",)
    for variable in own:
        if environ.get(variable):
            return variable, [name.strip() for name in environ[variable].split(",")][:count]
    return own[0], [str(index) for index in range(count)]


def run_parts(work: Callable[[RecipeT, Share], None], recipe: RecipeT, given: list[Share]) -> None:
    """Calls ``work(recipe, share)`` for each share in a process of its own, and waits for all.

    ``work`` must be a module's function, and importing that module must load neither torch nor
    vLLM: what these read from the environment is set before it is called.

    Raises:
        UserError: a process ended with one; it has said so.
        RequestFailedError: a process ended in another way.
    """
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_run, args=(work, recipe, share)) for share in given]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
                process.join()
    codes = [process.exitcode for process in processes]
    if INTERRUPTED in codes:
        raise KeyboardInterrupt
    if 2 in codes:
        raise UserError("this stage is not finished; the lines above say why")
    for share, code in zip(given, codes, strict=True):
        if code:
            raise RequestFailedError(
                f"process {share.part + 1} of {share.parts} ended with code {code}: see above, and "
                "run the same command again to go on from there"
            )


def _run(work: Callable[[RecipeT, Share], None], recipe: RecipeT, share: Share) -> None:
    prepare_environment(os.environ)
    if share.variable:
        os.environ[share.variable] = share.visible
    try:
        work(recipe, share)
    except PacelineError as error:
        say(f"error: {error}")
        sys.exit(2 if isinstance(error, UserError) else 1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception:  # the outermost place of this process
        traceback.print_exc()
        sys.exit(1)


def prepare_environment(environ: MutableMapping[str, str]) -> None:
    """Sets what torch and vLLM read when they are imported, unless the user has set it."""
    for name, value in {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # all processes would be bound to the same core
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
    }.items():
        environ.setdefault(name, value)
