"""What a recipe says: from which target, on which text, which drafts are made.

A recipe is a YAML file; those of ``training/recipes/`` are examples. Paths in it are relative to
the folder in which the command is run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
    block_size: int = 6
    """Slots of the longest block (dflash, dspark). Each batch draws a size from that which
    num_speculative_tokens need up to this one."""
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
    start_from: str | None = None
    """An earlier draft of the recipe, of the same method: what it learned is where this one starts,
    which has more layers. At first they add nothing."""

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
            "block_size",
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


def _check_start(draft: DraftRecipe, earlier: Sequence[DraftRecipe]) -> None:
    if draft.start_from is None:
        return
    base = next((one for one in earlier if one.name == draft.start_from), None)
    if base is None:
        raise ValueError(
            f"{draft.name} starts from '{draft.start_from}', which is no earlier draft of the "
            "recipe; name one that stands before it"
        )
    for name in ("method", "draft_vocab_size"):
        if getattr(base, name) != getattr(draft, name):
            raise ValueError(
                f"{draft.name} starts from {base.name}, so {name} must be "
                f"{getattr(base, name)} as there, not {getattr(draft, name)}"
            )
    if base.num_layers > draft.num_layers:
        raise ValueError(
            f"{draft.name} starts from {base.name}, which has {base.num_layers} layers, so "
            f"num_layers must be at least that, not {draft.num_layers}"
        )


class EvaluationConfig(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """On what the trained drafts are measured."""

    files: list[str] = []
    """JSON Lines of held-out prompts; default: ``prompts.held_out``. Only what is named there as
    well is kept out of what drafts learn from."""
    num_prompts: int = 20
    """Of each file, evenly spaced."""
    max_tokens: int = 128
    """Of an answer."""
    temperatures: tuple[float, ...] = (0.0, 1.0)
    num_speculative_tokens: int | None = None
    """K; default: each draft's own."""

    def __post_init__(self) -> None:
        for name in ("num_prompts", "max_tokens", "num_speculative_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}, it must be at least 1")
        if self.max_tokens > 1024:
            raise ValueError(f"max_tokens is {self.max_tokens}, it is 1024 at the most")
        for value in self.temperatures:
            if not 0 <= value <= 2:
                raise ValueError(f"temperatures has {value}, they lie between 0 and 2")


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
    licence: str | None = None
    """Of the drafts, for their cards: a name as the Hugging Face hub has them, like apache-2.0."""
    evaluation: EvaluationConfig = EvaluationConfig()

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
        for number, draft in enumerate(self.drafts):
            _check_start(draft, self.drafts[:number])
        names = [draft.name for draft in self.drafts]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two drafts have the name '{name}': rename one")
        stems = [file.stem for file in self.evaluation_files]
        for stem in stems:
            if stems.count(stem) > 1:
                raise ValueError(
                    f"two held-out files have the name '{stem}', which results go by: rename one, "
                    "or choose some under evaluation.files"
                )

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
    def held_out_folder(self) -> Path:
        """Answers to held-out prompts and states over them, which no draft learns from."""
        return Path(self.folder) / "held-out"

    @property
    def evaluation_files(self) -> list[Path]:
        """The held-out prompts that drafts are measured on."""
        files = self.evaluation.files or self.prompts.held_out
        return [Path(file).expanduser() for file in files]

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
        "evaluation.files": recipe.evaluation.files,
    }
    for key, files in named.items():
        for file in files:
            if not Path(file).expanduser().exists():
                raise ConfigError(
                    f"{path}: {key} names {file}, which does not exist in {Path.cwd()}"
                )
    return recipe
