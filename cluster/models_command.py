"""``paceline models``: the aliases, the cache, and the shipped drafts."""

from __future__ import annotations

import argparse
import sys

from paceline import models, shipped


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    if arguments.action == "fetch":
        folder = models.fetch(arguments.alias, arguments.dtype, _say)
        print(folder)
        return 0
    for model in models.list_models():
        state = model.problem or str(model.folder)
        print(f"{model.spec.alias:<28} {model.dtype:<11} {state}")
    for draft in shipped.list_drafts():
        print(_draft_line(draft))
    if not shipped.have_folder():
        print(shipped.NO_FOLDER)
    return 0


def _draft_line(draft: shipped.ShippedDraft) -> str:
    card = draft.card
    method, target = (card.method, card.target) if card else ("?", "?")
    length = card.mean_acceptance_length if card else None
    figure = f"{length:.2f} tokens a pass" if length else "not measured"
    state = draft.problem or str(draft.folder)
    return f"{draft.alias:<28} {method:<11} for {target}, {draft.size_mb:.1f} MB, {figure}  {state}"


def _say(text: str) -> None:
    print(f"paceline: {text}", file=sys.stderr, flush=True)
