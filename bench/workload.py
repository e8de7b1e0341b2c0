"""The prompts of a measurement, from a JSONL file."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from paceline.cluster.inputs import BrokenLine, Prompt, read_prompts
from paceline.errors import InputError


def load_workload(path: Path, categories: Sequence[str] | None) -> list[Prompt]:
    """Reads all prompts of the categories (None: of all), interleaved over the categories.

    Any first part of the result holds the categories in equal numbers, as far as they reach, so
    that a few prompts of a file that is sorted by category are a fair sample of it.

    Raises:
        InputError: the file cannot be read, has a broken line, or has no such category.
    """
    by_category: dict[str, list[Prompt]] = {}
    for prompt in read_prompts(path):
        if isinstance(prompt, BrokenLine):
            raise InputError(f"the workload {path}, line {prompt.line}: {prompt.reason}")
        by_category.setdefault(prompt.category, []).append(prompt)
    if not by_category:
        raise InputError(
            f"the workload {path} is empty; each line is a JSON object with 'prompt' or 'messages'"
        )
    for category in categories or ():
        if category not in by_category:
            known = ", ".join(name for name in by_category if name) or "none"
            raise InputError(
                f"--categories names '{category}', which no line of {path} has; it has {known}"
            )
    chosen = [
        prompts for name, prompts in by_category.items() if not categories or name in categories
    ]
    rounds = itertools.zip_longest(*chosen)
    return [prompt for turn in rounds for prompt in turn if prompt is not None]
