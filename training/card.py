"""The model card of a trained draft: what it is, how it was made, what it is worth, how it is used.

The layout is that of the Hugging Face hub; ``paceline.cards`` reads it back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from paceline import models
from paceline.cards import Card, Method, card_text
from paceline.drafter.config import METHODS
from paceline.training.acceptance import Measurement, over_all_sets, table
from paceline.training.learned import Learned
from paceline.training.recipe import DraftRecipe, Recipe

LICENCES = {"apache-2.0": "Apache-2.0", "mit": "MIT"}

PAPERS = {
    "dflash": "DFlash (arXiv 2602.06036)",
    "draft_model": "a small language model (arXiv 2211.17192)",
    "dspark": "DSpark (github.com/deepseek-ai/DeepSpec)",
    "eagle3": "EAGLE-3 (arXiv 2503.01840)",
    "mtp": "multi-token prediction, in MiMo's layout (arXiv 2505.07608)",
}
"""What a card says of each method, and where it is explained."""


class Curve(msgspec.Struct, frozen=True):
    """The last held-out figure of a training."""

    rows: int
    seconds: float
    mean_acceptance_length: float
    acceptance_per_position: list[float]


def method_of(draft: DraftRecipe) -> Method:
    """The method's name in vLLM and Paceline."""
    return "draft_model" if draft.method == "causal_lm" else draft.method


def read_curve(path: Path) -> Curve | None:
    """Returns the end of the curve that a training wrote; None where there is none."""
    if not path.is_file():
        return None
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    return msgspec.json.decode(lines[-1], type=Curve) if lines else None


def make_card(
    recipe: Recipe,
    draft: DraftRecipe,
    learned: Learned,
    curve: Curve | None,
    measured: Sequence[Measurement],
) -> str:
    """Returns the card's text.

    Args:
        measured: Results for these weights, in the order in which they are to be shown.
    """
    card = Card(
        name=draft.name,
        target=_public_name(recipe.target),
        method=method_of(draft),
        num_speculative_tokens=draft.num_speculative_tokens,
        mean_acceptance_length=_headline(measured, draft.num_speculative_tokens),
    )
    sections = [
        f"# {draft.name}",
        _what(card),
        "## Use",
        _use(card),
        "## Figures",
        _figures(measured),
        "## Training",
        _training(recipe, draft, learned, curve),
        "## Data",
        _data(learned),
        "## Licence",
        _licence(recipe),
        "## Limits",
        _limits(card, learned),
    ]
    return card_text(_front_matter(recipe, card), card, "\n\n".join(sections) + "\n")


def _front_matter(recipe: Recipe, card: Card) -> dict[str, Any]:
    values: dict[str, Any] = {"license": recipe.licence or "unknown"}
    base = _hub_id(recipe.target)
    if base:
        values["base_model"] = base
    datasets = [source.dataset for source in recipe.prompts.sources if "/" in source.dataset]
    if datasets:
        values["datasets"] = datasets
    values["pipeline_tag"] = "text-generation"
    values["tags"] = ["speculative-decoding", card.method]
    return values


def _public_name(target: str) -> str:
    """An alias and a hub id as they are; of a folder its name, since its place is nobody's."""
    path = Path(target).expanduser()
    return path.resolve().name if path.is_dir() and target not in models.ALIASES else target


def _hub_id(target: str) -> str:
    spec = models.ALIASES.get(target)
    if spec is not None:
        return spec.hub_id
    return target if "/" in target and not Path(target).expanduser().is_dir() else ""


def _headline(measured: Sequence[Measurement], k: int) -> float | None:
    """The greedy figure over all sets; vLLM's, where vLLM has measured."""
    greedy = [one for one in measured if one.temperature == 0 and one.k == k]
    for source in ("vllm", "offline"):
        for total, _ in over_all_sets(one for one in greedy if one.source == source):
            assert total.counts is not None, "it is a sum"
            return round(total.counts.mean_acceptance_length, 3)
    return None


def _what(card: Card) -> str:
    return (
        f"A draft for speculative decoding with the target {card.target}, by the method "
        f"`{card.method}`: {PAPERS[card.method]}. It proposes {card.num_speculative_tokens} tokens "
        "at a time, which the target verifies; alone it is of no use. It learned from answers that "
        "the target itself gave."
    )


def _use(card: Card) -> str:
    drafter = (
        "```yaml\n"
        f"target:\n  model: {card.target}\n"
        f"drafters:\n  - name: draft\n    method: {card.method}\n    model: {card.name}\n"
        f"    num_speculative_tokens: {card.num_speculative_tokens}\n"
        "```"
    )
    if card.method in METHODS:
        ours = (
            "In a configuration of Paceline, by its alias if it is shipped, else by its folder:\n\n"
            f"{drafter}"
        )
    else:
        ours = f"The drafters of Paceline did not have `{card.method}` when this card was written."
    return f"{ours}\n\n{_use_in_vllm(card)}"


def _use_in_vllm(card: Card) -> str:
    speculation: dict[str, Any] = {"method": card.method}
    if card.method != "mtp":
        speculation["model"] = card.name
    speculation["num_speculative_tokens"] = card.num_speculative_tokens
    target = _hub_id(card.target) or card.target
    text = "In vLLM 0.32, with this folder's path:"
    if card.method == "mtp":
        target = "ASSEMBLED"
        text = (
            "vLLM takes an MTP block from the target's own checkpoint. "
            "`paceline.training.assemble.assembled(target, block)` makes one of the target's "
            "folder and this one, and returns its path:"
        )
    elif card.method == "dspark":
        text = "In vLLM 0.32 with its V2 model runner, which needs Triton, with this folder's path:"
    command = f"vllm serve {target} \\\n    --speculative-config '{json.dumps(speculation)}'"
    return f"{text}\n\n```sh\n{command}\n```"


def _figures(measured: Sequence[Measurement]) -> str:
    if not measured:
        return "Not measured yet."
    one = measured[0]
    return (
        "MAL is the mean acceptance length: the tokens of a drafted pass, the target's own bonus "
        "token included. The rate is the share of accepted drafts. A position's figure is how "
        "often the draft there was accepted, in all passes and, conditional, in those that "
        "accepted all before it. T is the temperature. vLLM verifies in the process that drafts; "
        "offline, the training's own chain plays the passes over the target's greedy answers. At "
        "most "
        f"{one.num_prompts} prompts of each set, evenly spaced, {one.max_tokens} tokens each, in "
        f"{one.dtype}; sets are named as their files. Weights {one.weights} (SHA-256).\n\n"
        f"{table(measured)}"
    )


def _training(recipe: Recipe, draft: DraftRecipe, learned: Learned, curve: Curve | None) -> str:
    vocabulary = f"{draft.draft_vocab_size:,} tokens" if draft.draft_vocab_size else "the target's"
    rate = "the method's own" if draft.learning_rate is None else f"{draft.learning_rate:g}"
    lines = [
        ("method", f"{draft.method}, {draft.num_layers} layer(s)"),
        ("draft vocabulary", vocabulary),
        ("answers", f"{learned.num_answers:,}, of which {learned.num_greedy:,} greedy"),
        ("answer tokens", f"{learned.num_tokens:,}"),
        ("rows of one pass", f"{learned.num_rows:,}"),
        ("passes asked for", f"{draft.passes:g}"),
        ("steps or block trained", f"{draft.num_speculative_tokens}"),
        ("rows a step", f"{draft.rows_per_step:,}"),
        ("learning rate", f"{rate}; warm-up, then cosine; Muon for matrices, AdamW for the rest"),
        ("target's precision", recipe.dtype),
        ("seed", f"{recipe.seed}"),
    ]
    if draft.max_minutes:
        lines.append(("ended after at most", f"{draft.max_minutes:g} minutes"))
    if curve is not None:
        positions = " ".join(f"{share:.3f}" for share in curve.acceptance_per_position)
        lines += [
            ("rows trained on", f"{curve.rows:,}"),
            ("time of training", f"{curve.seconds / 60:.0f} minutes"),
            (
                "mean acceptance length at the end",
                f"{curve.mean_acceptance_length:.3f} (positions {positions}), on greedy answers to "
                "prompts of the same kind that were held apart",
            ),
        ]
    rows = "\n".join(f"| {name} | {value} |" for name, value in lines)
    return (
        "Made by Paceline's `training/`, whose README says what each stage does.\n\n"
        f"| | |\n|---|---|\n{rows}"
    )


def _data(learned: Learned) -> str:
    if not learned.origins:
        return "The recipe names no prompts."
    rows = "\n".join(
        f"| {origin.source or 'not stated'} | {origin.licence or 'see there'} | {count:,} |"
        for origin, count in learned.origins.items()
    )
    return (
        "The target was asked these prompts; its answers are what was learned. The text is not "
        f"part of this folder.\n\n| prompts of | their licence | answers |\n|---|---|---|\n{rows}"
    )


def _licence(recipe: Recipe) -> str:
    if recipe.licence is None:
        return (
            "Not stated: the weights come from the target's and from its answers, so the target's "
            "licence is the one to begin with."
        )
    name = LICENCES.get(recipe.licence, recipe.licence)
    return f"The weights: {name}. The prompts keep their own licences, see above."


def _limits(card: Card, learned: Learned) -> str:
    return (
        f"- For {card.target} only: it reads that model's states or imitates its answers, and uses "
        "its tokenizer.\n"
        f"- It learned from {learned.num_tokens:,} answer tokens. On other kinds of text, other "
        "languages and longer contexts than those, fewer of its drafts are accepted.\n"
        "- It cannot change what the target says: its drafts are only proposals. So it has the "
        "target's knowledge, bias and errors, and none of its own."
    )
