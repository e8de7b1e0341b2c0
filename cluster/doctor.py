"""``paceline doctor``: what would stand in a run's way, one line each, in the order of a start."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from paceline.cluster.config import PacelineConfig, load_config
from paceline.cluster.config_checks import check_config
from paceline.cluster.finding import Finding
from paceline.cluster.machine_checks import check_engine, check_machine, run_probe
from paceline.errors import ConfigError, EnvironmentError_, PacelineError
from paceline.verifier.probe import Probe


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit code: 2 if anything failed, else 0."""
    if arguments.self_test and arguments.config is None:
        raise ConfigError("--self-test runs a target; name its configuration with --config")
    num_failed = 0
    for finding in _findings(arguments):
        print(finding, flush=True)
        num_failed += finding.level == "fail"
    return 2 if num_failed else 0


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    yield from check_machine()
    probe = run_probe()
    yield from check_engine(probe)
    if arguments.config is None:
        return
    try:
        config = load_config(arguments.config)
    except ConfigError as error:
        yield Finding("fail", "configuration", str(error))
        return
    yield Finding("ok", "configuration", arguments.config)
    has_failed = False
    seen = None if isinstance(probe, EnvironmentError_) else probe
    for finding in check_config(config, seen):
        has_failed |= finding.level == "fail"
        yield finding
    if arguments.self_test:
        if has_failed or seen is None:
            yield Finding("fail", "self-test", "not run: mend first what has failed above")
        else:
            yield _self_test(config, seen)


def _self_test(config: PacelineConfig, probe: Probe) -> Finding:
    # Only now: everything else is told without Ray.
    from paceline.cluster.self_test import self_test

    try:
        return self_test(config, num_gpus=0 if probe.is_cpu else len(probe.devices), progress=_say)
    except PacelineError as error:
        return Finding("fail", "self-test", str(error))


def _say(text: str) -> None:
    print(f"paceline: {text}", file=sys.stderr, flush=True)
