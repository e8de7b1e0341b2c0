"""Rows of JSONL files and of public data sets, as chats that end with the user's turn."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from paceline.config import Config
from paceline.errors import EnvironmentError_, InputError

_ROLES = {"human": "user", "gpt": "assistant"}
"""Names of the ShareGPT layout, whose messages have ``from`` and ``value``."""


class Source(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where prompts come from: either a file or a data set."""

    file: str = ""
    """JSON Lines: objects with ``prompt``, a text, or ``messages``; ``id`` and ``category`` if they
    like."""
    dataset: str = ""
    """A data set of the Hugging Face hub, or a folder of parquet or JSONL files."""
    name: str | None = None
    """Which configuration of the data set, where it has several."""
    split: str = "train"
    """Which split of the data set."""
    column: str = "prompt"
    """Where the data set has the prompt: a text, or a list of messages, of which those behind the
    last one of the user's are left out."""
    limit: int | None = None
    """Rows of it; a seeded choice. Default: all."""

    def __post_init__(self) -> None:
        if bool(self.file) == bool(self.dataset):
            raise ValueError("a source needs either file or dataset")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit is {self.limit}, it must be at least 1")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt before its tokens."""

    id: str
    category: str
    messages: list[dict[str, str]]
    """``role`` and ``content``; the last one is the user's."""

    @property
    def text(self) -> str:
        """What was said, without system prompts, which many share."""
        return "\n".join(m["content"] for m in self.messages if m["role"] != "system")


def read_rows(source: Source, seed: int) -> list[Row]:
    """Reads a source.

    Raises:
        EnvironmentError_: the package ``datasets`` is needed and not there.
        InputError: the source cannot be read, or a row is no prompt.
    """
    rows = list(_file_rows(Path(source.file)) if source.file else _dataset_rows(source, seed))
    if source.limit is not None and len(rows) > source.limit:
        chosen = sorted(random.Random(seed).sample(range(len(rows)), source.limit))
        rows = [rows[index] for index in chosen]
    return rows


def read_texts(path: Path) -> Iterator[str]:
    """Yields the text of each row of a JSONL file of held-out prompts, ``turns`` included."""
    for number, values in _objects(path):
        turns = values.get("turns")
        texts = [turn for turn in turns if isinstance(turn, str)] if isinstance(turns, list) else []
        if values.get("messages") is not None or values.get("prompt") is not None or not texts:
            texts.append(_row(values, f"{path}, line {number}", "").text)
        yield from texts


class Origin(msgspec.Struct, frozen=True, order=True):
    """Where a prompt is from, as its row says; "" where it does not."""

    source: str
    licence: str


def read_origins(path: Path) -> Iterator[tuple[str, Origin]]:
    """Yields the id and the origin of each row of a JSONL file: its ``source``, without what stands
    behind a colon and names a part of it, and its ``license`` or ``licence``."""
    for number, values in _objects(path):
        row = _row(values, f"{path}, line {number}", f"{path.stem}-{number}")
        source = str(values.get("source") or "").partition(":")[0]
        licence = str(values.get("license") or values.get("licence") or "")
        yield row.id, Origin(source, licence)


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields line numbers from 1, and objects."""
    try:
        with path.expanduser().open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    values = json.loads(line)
                except ValueError as error:
                    raise InputError(
                        f"{path}, line {number}, is not valid JSON ({error}): repair it"
                    ) from None
                if not isinstance(values, dict):
                    raise InputError(f"{path}, line {number}, is no JSON object: repair it")
                yield number, values
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise InputError(f"the prompts {path} cannot be read: {reason}") from error


def _file_rows(path: Path) -> Iterator[Row]:
    for number, values in _objects(path):
        yield _row(values, f"{path}, line {number}", f"{path.stem}-{number}")


def _row(values: Mapping[str, Any], where: str, default_id: str) -> Row:
    prompt, messages = values.get("prompt"), values.get("messages")
    found = _messages(prompt if messages is None else messages)
    if found is None:
        raise InputError(
            f"{where}, is no prompt: it needs 'prompt', a text, or 'messages', a list with 'role' "
            "and 'content' in which there is a turn of the user's"
        )
    return Row(
        id=default_id if values.get("id") is None else str(values["id"]),
        category="" if values.get("category") is None else str(values["category"]),
        messages=found,
    )


def _messages(value: Any) -> list[dict[str, str]] | None:
    """Returns the chat up to the user's last turn; None for what is no chat."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}] if value.strip() else None
    if not isinstance(value, list):
        return None
    messages: list[dict[str, str]] = []
    for message in value:
        if not isinstance(message, dict):
            return None
        role = message.get("role", message.get("from"))
        content = message.get("content", message.get("value"))
        if not isinstance(role, str) or not isinstance(content, str):
            return None
        messages.append({"role": _ROLES.get(role, role), "content": content})
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    return messages or None


def _dataset_rows(source: Source, seed: int) -> Iterator[Row]:
    try:
        import datasets
    except ImportError:
        raise EnvironmentError_(
            f"reading the data set '{source.dataset}' needs the package 'datasets', which is not "
            "installed here: install Paceline with its training extra"
        ) from None
    path = str(Path(source.dataset).expanduser())
    try:
        data = datasets.load_dataset(path, source.name, split=source.split)
    except Exception as error:  # whatever its many builders and the network raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"the data set '{source.dataset}' cannot be loaded ({reason.rstrip('.')}): check its "
            "name, its split and the network, or name a folder that holds a copy of it"
        ) from error
    if source.column not in data.column_names:
        raise InputError(
            f"the data set '{source.dataset}' has no column '{source.column}'; it has "
            f"{', '.join(data.column_names)}: set the source's column"
        )
    origin = "-".join(filter(None, (source.dataset, source.name, source.split)))
    indices: Any = range(len(data))
    if source.limit is not None and source.limit < len(data):
        # Here already: a data set may be far larger than what is used of it.
        indices = sorted(random.Random(seed).sample(indices, source.limit))
    for index, value in zip(indices, data.select(indices)[source.column], strict=True):
        messages = _messages(value)
        if messages is None:
            raise InputError(
                f"row {index} of the data set '{source.dataset}' holds no prompt in its column "
                f"'{source.column}': name the column of a text or of messages"
            )
        yield Row(id=f"{origin}-{index}", category="", messages=messages)
