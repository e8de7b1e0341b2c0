"""What a recipe says: from which target, on which text, which drafts are made.

A recipe is a YAML file; those of ``training/recipes/`` are examples. Paths in it are relative to
the folder in which the command is run.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from paceline.config import Config, load
from paceline.errors import ConfigError
from paceline.training.generate import GenerationConfig
from paceline.training.prompts import PromptsConfig

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


class DraftRecipe(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One draft that is to be trained."""

    name: str
    """Of its folder."""
    method: Literal["causal_lm", "dflash", "dspark", "eagle3", "mtp"]
    """How it drafts; causal_lm is a small language model of its own."""
    num_layers: int = 1
    """Transformer layers; causal_lm needs two."""
    draft_vocab_size: int | None = None
    """It can propose the target's most frequent tokens only, so many; default: all of them."""
    num_speculative_tokens: int = 4
    """Steps that are trained, and K of the held-out figure; as many as will be drafted."""
    passes: float = 2.0
    """How often the answers are gone through."""
    max_minutes: float | None = None
    """Of training, all starts together; default: until the passes are done."""
    rows_per_step: int = 1024
    """Positions of answers in a batch."""
    share: float = 0.5
    """Of a batch's rows, how many are drafted behind in each step after the first (eagle3, mtp), or
    at all (dflash, dspark): fewer cost less, and more text is seen in the same time."""
    learning_rate: float | None = None
    """At its highest; default: the method's own."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"name is '{self.name}', but it becomes a folder's: use letters, digits, - and ."
            )
        if self.num_layers < 1:
            raise ValueError(f"num_layers is {self.num_layers}, it must be at least 1")
        if self.method == "causal_lm" and self.num_layers < 2:
            raise ValueError(f"num_layers is {self.num_layers}, a causal_lm needs at least 2")
        for name in (
            "draft_vocab_size",
            "learning_rate",
            "max_minutes",
            "num_speculative_tokens",
            "passes",
            "rows_per_step",
            "share",
        ):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}, it must be above 0")
        if self.share > 1:
            raise ValueError(f"share is {self.share}, it is 1 at the most")


class Recipe(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that makes drafts for one target."""

    target: str
    """An alias (``paceline models list``), a local Hugging Face folder, or a hub id."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Precision of the target: that in which it is served."""
    folder: str
    """Where prompts, answers, states and drafts are kept; made if it is not there."""
    seed: int = 0
    """Of everything that is chosen by chance, except the sampled answers."""
    prompts: PromptsConfig
    answers: GenerationConfig = GenerationConfig()
    more_answers: list[str] = []
    """Files or folders of answers that this target gave before: their prompts are not asked again,
    and drafts learn from them as well."""
    layers: list[int] | None = None
    """Whose inputs drafts may read, counted from 0; default, as in EAGLE-3: 2, half of them, and
    all but 3."""
    drafts: list[DraftRecipe] = []

    def __post_init__(self) -> None:
        for name in ("target", "folder"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name} is empty; name one")
        if self.layers is not None and (
            not self.layers
            or self.layers != sorted(set(self.layers))
            or not all(layer >= 0 for layer in self.layers)
        ):
            raise ValueError(f"layers is {self.layers}; they are numbers from 0, each once, rising")
        names = [draft.name for draft in self.drafts]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two drafts have the name '{name}': rename one")

    @property
    def prompts_file(self) -> Path:
        """What the target is asked."""
        return Path(self.folder) / "prompts.jsonl"

    @property
    def answers_folder(self) -> Path:
        """The target's answers, one file per process."""
        return Path(self.folder) / "answers"

    @property
    def states_folder(self) -> Path:
        """What the target computed over them."""
        return Path(self.folder) / "states"

    @property
    def drafts_folder(self) -> Path:
        """The drafts, one folder each."""
        return Path(self.folder) / "drafts"

    @property
    def answer_paths(self) -> list[Path]:
        """All answers that drafts learn from, as far as they are there."""
        own = [self.answers_folder] if self.answers_folder.is_dir() else []
        return [*(Path(path).expanduser() for path in self.more_answers), *own]


def default_layers(num_hidden_layers: int) -> tuple[int, ...]:
    """The layers whose inputs EAGLE-3 reads, where nobody says otherwise."""
    return (2, num_hidden_layers // 2, num_hidden_layers - 3)


def load_recipe(path: str | Path) -> Recipe:
    """Reads a recipe.

    Raises:
        ConfigError: it cannot be read, is no recipe, or names a file that is not there.
    """
    recipe = load(path, Recipe)
    named = {
        "prompts.held_out": recipe.prompts.held_out,
        "prompts.sources": [source.file for source in recipe.prompts.sources if source.file],
        "more_answers": recipe.more_answers,
    }
    for key, files in named.items():
        for file in files:
            if not Path(file).expanduser().exists():
                raise ConfigError(
                    f"{path}: {key} names {file}, which does not exist in {Path.cwd()}"
                )
    return recipe
