"""The prompts that the target is to answer: from files and data sets, without the held-out ones."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from paceline.config import Config
from paceline.errors import InputError, ModelError
from paceline.training.held_out import RUN, HeldOut
from paceline.training.prompt_rows import Row, Source, read_rows, read_texts


class PromptsConfig(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the target is asked."""

    sources: list[Source]
    """Their rows are mixed."""
    held_out: list[str] = []
    """JSONL files that drafts are measured on: a prompt that shares 13 words in a row with one of
    theirs is left out."""
    min_tokens: int = 1
    """Prompts with fewer tokens, chat template included, are left out."""
    max_tokens: int = 320
    """Prompts with more tokens are left out."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError("sources is empty; name at least one file or dataset")
        if not 1 <= self.min_tokens <= self.max_tokens:
            raise ValueError(
                f"min_tokens is {self.min_tokens} and max_tokens {self.max_tokens}; they must be "
                "at least 1, and in this order"
            )


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """What the target is asked, as the token ids that it reads."""

    id: str
    category: str
    ids: list[int]


def select(
    config: PromptsConfig,
    encode: Callable[[Row], list[int] | None],
    seed: int,
    tell: Callable[[str], None],
) -> list[Prompt]:
    """Reads the sources, leaves out what must not or need not be asked, says how many, and mixes.

    The same sources give the same order, so that any first part of it is a fair sample.

    Raises:
        InputError: a source or a held-out file cannot be read, two prompts have the same id, or
            none is left.
    """
    held_out = HeldOut(text for file in config.held_out for text in read_texts(Path(file)))
    left_out: Counter[str] = Counter()
    prompts: list[Prompt] = []
    ids: set[str] = set()
    texts: set[tuple[int, ...]] = set()
    num_rows = 0
    for source in config.sources:
        for row in read_rows(source, seed):
            num_rows += 1
            if row.id in ids:
                raise InputError(
                    f"two prompts have the id '{row.id}' (one is in "
                    f"{source.file or source.dataset}): an id must be there once in all sources"
                )
            ids.add(row.id)
            if held_out.shares(row.text):
                left_out[f"share {RUN} words in a row with a held-out one"] += 1
                continue
            tokens = encode(row)
            if tokens is None:
                left_out["do not fit the chat template"] += 1
            elif len(tokens) > config.max_tokens:
                left_out[f"have over {config.max_tokens} tokens"] += 1
            elif len(tokens) < config.min_tokens:
                left_out[f"have under {config.min_tokens} tokens"] += 1
            elif tuple(tokens) in texts:
                left_out["are there twice"] += 1
            else:
                texts.add(tuple(tokens))
                prompts.append(Prompt(id=row.id, category=row.category, ids=tokens))
    reasons = "".join(f"; {count:,} {reason}" for reason, count in sorted(left_out.items()))
    tell(f"{len(prompts):,} prompts out of {num_rows:,}{reasons}")
    if not prompts:
        raise InputError("no prompt is left to be answered: widen the sources or the token limits")
    random.Random(seed).shuffle(prompts)
    return prompts


def load_tokenizer(model: str) -> Any:
    """Returns the tokenizer of a folder or hub id.

    Raises:
        ModelError: there is none.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"the tokenizer of {model} cannot be loaded ({reason}): name a model that has one"
        ) from error


def encoder(model: str) -> Callable[[Row], list[int] | None]:
    """Returns what turns a row into the target's token ids, with its chat template; into None if
    the template refuses it.

    Raises:
        ModelError: there is no tokenizer, or it has no chat template.
    """
    from jinja2 import TemplateError

    tokenizer = load_tokenizer(model)
    if not tokenizer.chat_template:
        raise ModelError(
            f"the tokenizer of {model} has no chat template: prompts are asked as a chat, so name "
            "a model that is made for it"
        )

    def encode(row: Row) -> list[int] | None:
        try:
            ids = tokenizer.apply_chat_template(
                row.messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except TemplateError:  # it knows no such role, or not in this order
            return None
        return list(ids)

    return encode


def save_prompts(path: Path, prompts: Iterable[Prompt]) -> None:
    """Writes the prompts for the processes that ask them."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        for prompt in prompts:
            file.write(msgspec.json.encode(prompt) + b"\n")
    part.replace(path)


def load_prompts(path: Path) -> list[Prompt]:
    """Reads what ``save_prompts`` wrote."""
    decoder = msgspec.json.Decoder(Prompt)
    with path.open("rb") as file:
        return [decoder.decode(line) for line in file]
