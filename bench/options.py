"""The options of ``paceline bench``, read and checked."""

from __future__ import annotations

import argparse
import hashlib
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from paceline import models
from paceline.bench.matrix import Load
from paceline.bench.systems import System, parse_systems
from paceline.cluster.config import PacelineConfig
from paceline.errors import ConfigError, InputError, ModelError
from paceline.messages import MAX_SPECULATIVE_TOKENS
from paceline.verifier.config import TargetConfig

DTYPES: tuple[str, ...] = typing.get_args(typing.get_type_hints(TargetConfig)["dtype"])

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What to measure, and how often."""

    systems: list[System]
    num_speculative_tokens: list[int]
    dtypes: list[str]
    loads: list[Load]
    workload: Path
    categories: list[str] | None
    num_prompts: int
    max_tokens: int
    repeats: int
    output: Path
    resume: bool
    trace: Path | None
    """Where a trace of the measured part goes; None: there is none."""


def read_options(arguments: argparse.Namespace, config: PacelineConfig) -> Options:
    """Checks the command line against the configuration.

    Raises:
        ConfigError: an option's value is not possible.
    """
    most = config.target.max_num_seqs
    concurrency = _numbers(arguments.concurrency, "--concurrency", int, 1, most)
    temperatures = _numbers(arguments.temperature, "--temperature", float, 0, 2)
    dtypes = _items(arguments.dtype or config.target.dtype, "--dtype")
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise ConfigError(f"--dtype names '{dtype}'; there are {', '.join(DTYPES)}")
    for name in ("num_prompts", "max_tokens", "repeats"):
        if getattr(arguments, name) < 1:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} is {getattr(arguments, name)}, it must be at least 1")
    longest = _max_model_len(config.target)
    if longest is not None and arguments.max_tokens >= longest:
        raise ConfigError(
            f"--max-tokens is {arguments.max_tokens}, but a request has at most {longest} tokens, "
            "prompt included; lower it, or raise target.max_model_len"
        )
    if not arguments.output.strip():
        raise ConfigError("--output is empty; name a new folder")
    systems = parse_systems(arguments.systems, config)
    _check_scripted(systems, temperatures, config)
    return Options(
        systems=systems,
        num_speculative_tokens=_numbers(
            arguments.num_speculative_tokens,
            "--num-speculative-tokens",
            int,
            1,
            MAX_SPECULATIVE_TOKENS,
        ),
        dtypes=dtypes,
        loads=[Load(concurrency=c, temperature=t) for t in temperatures for c in concurrency],
        workload=Path(arguments.workload),
        categories=_items(arguments.categories, "--categories") if arguments.categories else None,
        num_prompts=arguments.num_prompts,
        max_tokens=arguments.max_tokens,
        repeats=arguments.repeats,
        output=Path(arguments.output),
        resume=arguments.resume,
        trace=Path(arguments.trace) if arguments.trace is not None else None,
    )


def record(options: Options, config: PacelineConfig) -> dict[str, Any]:
    """Returns all that decides what is measured, for the results; without paths.

    Raises:
        InputError: the workload cannot be read.
    """
    try:
        digest = hashlib.sha256(options.workload.read_bytes()).hexdigest()
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise InputError(f"the workload {options.workload} cannot be read: {reason}") from error
    settings: dict[str, Any] = msgspec.to_builtins(config)
    del settings["speculation"]["record"]  # a path, and nothing is recorded here
    for section in (settings["target"], *settings["drafters"]):
        for name in ("model", "scripted_answers"):
            if section.get(name):
                section[name] = Path(section[name]).name
    return {
        "systems": [str(system) for system in options.systems],
        "num_speculative_tokens": options.num_speculative_tokens,
        "dtype": options.dtypes,
        "concurrency": sorted({load.concurrency for load in options.loads}),
        "temperature": sorted({load.temperature for load in options.loads}),
        "workload": {"name": options.workload.name, "sha256": digest},
        "categories": options.categories,
        "num_prompts": options.num_prompts,
        "max_tokens": options.max_tokens,
        "repeats": options.repeats,
        "config": {name: settings[name] for name in ("target", "drafters", "speculation")},
    }


def _max_model_len(target: TargetConfig) -> int | None:
    """Returns the most tokens of a request; None where only the actors can tell."""
    if target.max_model_len is not None:
        return target.max_model_len
    try:
        longest = models.read_config(models.resolve(target.model, target.dtype))
    except ModelError:
        return None
    positions = longest.get("max_position_embeddings")
    return positions if isinstance(positions, int) else None


def _check_scripted(
    systems: Sequence[System], temperatures: Sequence[float], config: PacelineConfig
) -> None:
    scripted = {d.name for d in config.drafters if d.method == "scripted"}
    for system in systems:
        if system.drafter in scripted and max(temperatures) > 0:
            raise ConfigError(
                f"{system} follows plain decoding's answers, which at a temperature above 0 are "
                f"others each time; leave it out of --systems, or {max(temperatures):g} out of "
                "--temperature"
            )


def _items(text: str, option: str) -> list[str]:
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise ConfigError(f"{option} is '{text}', which has an empty item between its commas")
    return list(dict.fromkeys(items))


def _numbers(
    text: str, option: str, kind: Callable[[str], ValueT], least: int, most: int
) -> list[ValueT]:
    numbers = []
    for item in _items(text, option):
        try:
            number: Any = kind(item)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise ConfigError(f"{option} names '{item}', which is not {what}") from None
        if not least <= number <= most:
            limit = "target.max_num_seqs" if option == "--concurrency" else str(most)
            value = f" ({most})" if option == "--concurrency" else ""
            raise ConfigError(f"{option} names {item}, it lies between {least} and {limit}{value}")
        numbers.append(number)
    return list(dict.fromkeys(numbers))
