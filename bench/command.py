"""``paceline bench``: the same prompts through several systems, which take turns."""

from __future__ import annotations

import argparse
from pathlib import Path

from paceline.bench import environment
from paceline.bench.cells import cell
from paceline.bench.contest import Contest, Script
from paceline.bench.matrix import Contender, contenders, groups
from paceline.bench.options import Options, read_options, record
from paceline.bench.progress import Progress, say
from paceline.bench.residency import find_room, num_resident
from paceline.bench.sides import expected_hits, method, side
from paceline.bench.store import ANSWERS_FILE, Run, Store
from paceline.bench.table import table
from paceline.bench.workload import load_workload
from paceline.cluster.config import PacelineConfig, load_config
from paceline.cluster.inputs import Prompt
from paceline.cluster.runtime import Runtime, check_sides
from paceline.cluster.tracing import check_trace, traced


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit code: 1 if some prompts failed, else 0."""
    config = load_config(arguments.config)
    options = read_options(arguments, config)
    check_trace(options.trace)
    prompts = load_workload(options.workload, options.categories)
    if len(prompts) < options.num_prompts:
        say(f"the workload has {len(prompts)} prompts, not {options.num_prompts}; all are used")
    prompts = prompts[: options.num_prompts]
    everybody = contenders(options.systems, options.num_speculative_tokens, options.dtypes)
    sides = [side(contender, config, _answers(options)) for contender in everybody]
    check_sides(config, sides)  # now, and not when a contender's turn comes, hours later
    room = find_room(config)
    run = Run(
        arguments=record(options, config),
        environment={**environment.environment(config.target), "cluster": room.cluster},
        max_resident=num_resident(config, sides, room),
        load_average=environment.load_average(),
    )
    with Store.open(options.output, run, resume=options.resume) as store:
        parts = groups(everybody, store.run.max_resident)
        with traced(options.trace, say) as trace:
            _measure(config, options, prompts, parts, store, trace)
        cells = [
            cell(
                contender,
                load,
                method(contender, config),
                store,
                expected_hit_rate=expected_hits(contender, config),
            )
            for load in options.loads
            for contender in everybody
        ]
        store.write_results(
            {
                "environment": {
                    **store.run.environment,
                    "load_average_at_start": store.run.load_average,
                    "max_resident_engines": store.run.max_resident,
                },
                "arguments": store.run.arguments,
                "cells": cells,
            }
        )
    print(table(cells))
    num_errors = max(one["num_errors"] for one in cells)
    if num_errors:
        say(f"{num_errors} of {len(prompts)} prompts could not be served")
    return 1 if num_errors else 0


def _measure(
    config: PacelineConfig,
    options: Options,
    prompts: list[Prompt],
    parts: list[list[Contender]],
    store: Store,
    trace: Path | None,
) -> None:
    rounds = [(repeat, load) for repeat in range(options.repeats) for load in options.loads]
    per_contender = len(rounds)
    total = per_contender * sum(len(part) for part in parts)
    progress: Progress | None = None
    for number, part in enumerate(parts):
        num_done = sum(1 for measurement in store if measurement.group == number)
        if num_done == per_contender * len(part):
            continue
        if len(parts) > 1:
            say(f"group {number + 1} of {len(parts)}: {', '.join(str(c) for c in part)}")
        sides = [side(contender, config, _answers(options)) for contender in part]
        scripted = frozenset(str(c) for c in part if method(c, config) == "scripted")
        folder = None if trace is None else trace / f"group-{number}"
        with Runtime(config, sides=sides, progress=say, trace=folder) as runtime:
            progress = progress or Progress(total, len(store))
            contest = Contest(
                group=number,
                contenders=part,
                runtime=runtime,
                prompts=prompts,
                max_tokens=options.max_tokens,
                store=store,
                script=Script(contenders=scripted, path=_answers(options)),
                finished=progress.finished,
            )
            contest.warm_up(max(load.concurrency for load in options.loads))
            runtime.begin_trace()
            for repeat, load in rounds:
                contest.run(load, repeat)


def _answers(options: Options) -> Path:
    return options.output.absolute() / ANSWERS_FILE
