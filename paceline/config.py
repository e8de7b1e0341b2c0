"""The loader of YAML configuration; what there is to configure stands beside its component.

A component's configuration is one frozen ``Config`` struct with a docstring under each field,
checked in ``__post_init__`` with a ``ValueError`` that names field and value. Unknown keys are
errors, and the nearest right key is named.
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from paceline.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """YAML's plain types only, without dates (a name may look like one), and no key twice: the
    second would win without a word."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        problem=f"the key '{key.value}' is there twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


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
        values = _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = getattr(error, "problem", None)
        what = f": {problem}" if problem else ""
        raise ConfigError(f"the configuration {path} is not valid YAML{where}{what}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the configuration {path} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"the configuration {path} holds no keys; start from one in ray_configs/")
    return parse(values, schema, source=str(path))


def parse(values: Mapping[str, Any], schema: type[ConfigT], source: str) -> ConfigT:
    """Converts ``values`` to ``schema``; ``source`` is what an error names as their origin."""
    _check_keys(values, schema, source, path="")
    try:
        return msgspec.convert(values, schema)
    except RecursionError as error:
        raise ConfigError(f"{source}: it is nested too deeply, or contains itself") from error
    except msgspec.ValidationError as error:
        message, at, where = str(error).rpartition(" - at `$")
        place = where.removesuffix("`").removeprefix(".") if at else ""
        message = message if at else str(error)
        if error.__cause__ is None:  # msgspec's own words, not those of a __post_init__
            message = _plain(message)
        raise ConfigError(f"{source}: {place}{': ' if place else ''}{message}") from error


def _plain(message: str) -> str:
    """msgspec's type names, in YAML's words."""
    words = {"`": "", "object": "a mapping", "array": "a list", "null": "empty"}
    parts = re.split("('.*')", message, flags=re.DOTALL)  # the user's value, quoted, stays as it is
    for index in range(0, len(parts), 2):
        for name, word in words.items():
            parts[index] = parts[index].replace(name, word)
    message = "".join(parts)
    return message[0].lower() + message[1:]


def _check_keys(values: Any, schema: Any, source: str, path: str) -> None:
    """Walks ``values`` beside ``schema`` for a key that no field has."""
    is_list = typing.get_origin(schema) is list
    for option in (schema,) if is_list else typing.get_args(schema) or (schema,):
        if isinstance(values, list) and typing.get_origin(option) is list:
            for index, value in enumerate(values):
                _check_keys(value, typing.get_args(option)[0], source, f"{path}[{index}]")
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
