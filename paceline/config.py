"""The loader of YAML configuration; what there is to configure stands beside its component.

A component's configuration is one frozen ``Config`` struct with a docstring under each field,
checked in ``__post_init__`` with a ``ValueError`` that names field and value. Unknown keys are
errors, and the nearest right key is named.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from paceline.errors import ConfigError


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all component configurations."""


ConfigT = TypeVar("ConfigT", bound=Config)


def load(path: str | Path, schema: type[ConfigT]) -> ConfigT:
    """Reads the YAML file at ``path`` as ``schema``.

    Raises:
        ConfigError: the file cannot be read, is no YAML mapping, or does not fit ``schema``.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"the configuration {path} cannot be read: {reason}") from error
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ConfigError(f"the configuration {path} is not valid YAML{where}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"the configuration {path} holds no keys; start from one in ray_configs/")
    return parse(values, schema, source=str(path))


def parse(values: Mapping[str, Any], schema: type[ConfigT], source: str) -> ConfigT:
    """Converts ``values`` to ``schema``; ``source`` is what an error names as their origin."""
    _check_keys(values, schema, source, path="")
    try:
        return msgspec.convert(values, schema)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at ")
        place = where.strip("`").removeprefix("$").removeprefix(".")
        field = f"{place}: " if place else ""
        raise ConfigError(f"{source}: {field}{_plain(message)}") from error


def _plain(message: str) -> str:
    """msgspec's type names, in YAML's words."""
    for name, word in (("`", ""), ("object", "a mapping"), ("array", "a list"), ("null", "empty")):
        message = message.replace(name, word)
    return message[0].lower() + message[1:]


def _check_keys(values: Any, schema: Any, source: str, path: str) -> None:
    """Walks ``values`` beside ``schema`` for a key that no field has."""
    for option in typing.get_args(schema) or (schema,):
        if isinstance(values, list | tuple):
            for index, value in enumerate(values):
                _check_keys(value, option, source, f"{path}[{index}]")
        elif (
            isinstance(values, Mapping) and isinstance(option, type) and issubclass(option, Config)
        ):
            fields = {field.name: field.type for field in msgspec.structs.fields(option)}
            for key, value in values.items():
                name = f"{path}.{key}" if path else str(key)
                if key not in fields:
                    nearest = difflib.get_close_matches(str(key), fields, n=1, cutoff=0.5)
                    hint = (
                        f"did you mean '{nearest[0]}'?"
                        if nearest
                        else f"known are {', '.join(sorted(fields))}"
                    )
                    raise ConfigError(f"{source}: unknown key '{name}'; {hint}")
                _check_keys(value, fields[key], source, name)
