"""``paceline models``: the aliases and the cache."""

from __future__ import annotations

import argparse
import sys

from paceline import models


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    if arguments.action == "fetch":
        folder = models.fetch(arguments.alias, arguments.dtype, _say)
        print(folder)
        return 0
    for model in models.list_models():
        state = model.problem or str(model.folder)
        print(f"{model.spec.alias:<28} {model.dtype:<10} {state}")
    return 0


def _say(text: str) -> None:
    print(f"paceline: {text}", file=sys.stderr, flush=True)
