"""What a model's name means, and whether a model folder can be loaded.

A name is an alias, a folder or a hub id. Everything here needs the base dependencies only, and
reads headers rather than weights, so that a wrong folder is refused before an engine starts.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import EnvironmentError_, ModelError
from paceline.model_cache import (
    ALIASES,
    DTYPES,
    ModelSpec,
    cache_dir,
    cached_folder,
    fetch_command,
    folder_problem,
)
from paceline.model_fetch import fetch

__all__ = [
    "ALIASES",
    "DTYPES",
    "CachedModel",
    "ModelSpec",
    "cache_dir",
    "check_folder",
    "fetch",
    "list_models",
    "read_config",
    "resolve",
    "tokenizer_fingerprint",
    "weight_gib",
]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_MAX_HEADER = 100_000_000
"""Bytes; the safetensors format's own limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedModel:
    """One line of `paceline models list`."""

    spec: ModelSpec
    dtype: str
    folder: Path
    problem: str
    """Why it cannot be used as it is, in a few words; "" if it can."""


def list_models() -> list[CachedModel]:
    """Every alias in every dtype, fetched or not."""
    rows = []
    for spec in ALIASES.values():
        for dtype in DTYPES:
            folder = cached_folder(spec, dtype)
            problem = folder_problem(folder)
            rows.append(CachedModel(spec=spec, dtype=dtype, folder=folder, problem=problem))
    return rows


def resolve(name: str, dtype: str = "bfloat16") -> str:
    """What to hand to a loader: an absolute folder that was checked, or a hub id as it is.

    Never fetches: that is the caller's decision. An existing folder wins over a hub id, an alias
    wins over both (write ./NAME for a folder of an alias's name).
    """
    if name in ALIASES:
        spec = ALIASES[name]
        folder = cached_folder(spec, dtype)
        problem = folder_problem(folder)
        if problem:
            raise ModelError(
                f"the model {name} in {dtype} is not ready ({problem}): "
                f"run {fetch_command(spec, dtype)}"
            )
        return str(folder)
    # os.path rather than Path: these answer False, where Path raises, for a name that no file
    # system takes.
    path = os.path.abspath(os.path.expanduser(name))
    if name and os.path.isdir(path):
        check_folder(path)
        return path
    if name and os.path.exists(path):
        raise ModelError(f"the model '{name}' is a file: name the folder that holds config.json")
    if name.startswith((".", "~", "/")) or name.count("/") > 1:
        raise ModelError(f"the model folder '{name}' does not exist: check the path")
    if not _HUB_ID.fullmatch(name):
        raise ModelError(
            f"the model '{name}' is no alias ({', '.join(ALIASES)}), no folder and no hub id: "
            "check its spelling"
        )
    near = difflib.get_close_matches(name, ALIASES, n=1, cutoff=0.8)
    if near:
        raise ModelError(f"the model '{name}' is not known: did you mean {near[0]}?")
    return name


def check_folder(path: str | Path) -> None:
    """Raise ModelError unless the folder holds a config and whole safetensors weights."""
    folder = Path(path)
    read_config(folder)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = _read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise ModelError(f"{index} lists no weights: copy the model folder again")
        names = sorted({str(name) for name in shards.values()})
        for name in names:
            if not (folder / name).is_file():
                raise ModelError(
                    f"{folder} lacks {name}, which {index.name} lists: copy the model folder again"
                )
        files = [folder / name for name in names]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"{folder} holds no .safetensors weights: check that the download is complete, or "
            "convert other formats first"
        )
    for file in files:
        _check_safetensors(file)


def weight_gib(path: str | Path) -> float:
    """Size of the folder's safetensors files, in GiB."""
    return sum(file.stat().st_size for file in Path(path).glob("*.safetensors")) / (1 << 30)


def read_config(path: str | Path) -> dict[str, Any]:
    """The folder's config.json."""
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError(f"the model folder {folder} does not exist: check the path")
    config = folder / "config.json"
    if not config.is_file():
        raise ModelError(f"{folder} holds no config.json: name the folder of a Hugging Face model")
    return _read_json(config)


def tokenizer_fingerprint(path: str | Path) -> str:
    """SHA-256 over the sorted (token, id) pairs, added tokens included; "" without tokenizer.json.

    Draft and target may mix only where theirs are equal: ids are all that the two exchange.
    """
    file = Path(path) / "tokenizer.json"
    if not file.is_file():
        return ""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise EnvironmentError_(
            "reading a tokenizer needs the package 'tokenizers', which is not installed here: "
            "install Paceline with its cpu or gpu extra"
        ) from None
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{file} is no tokenizer ({error}): copy the model folder again") from None
    pairs = sorted(tokenizer.get_vocab(with_added_tokens=True).items())
    # JSON keeps the pairs apart whatever characters a token holds.
    return hashlib.sha256(json.dumps(pairs).encode("ascii")).hexdigest()


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except OSError as error:
        raise ModelError(
            f"{file} cannot be read ({error.strerror}): check its permissions"
        ) from None
    except ValueError as error:
        raise ModelError(f"{file} is not valid JSON ({error}): copy it again") from None
    if not isinstance(value, dict):
        raise ModelError(f"{file} is not a JSON object: copy it again")
    return value


def _check_safetensors(file: Path) -> None:
    """Compare the header with the file's length; the tensors themselves are not read."""
    try:
        with file.open("rb") as stream:
            prefix = stream.read(8)
            length = int.from_bytes(prefix, "little")
            header = stream.read(length) if length <= _MAX_HEADER else b""
        size = file.stat().st_size
    except OSError as error:
        raise ModelError(
            f"{file} cannot be read ({error.strerror}): check its permissions"
        ) from None
    if prefix == b"version ":
        raise ModelError(f"{file} is a Git LFS pointer, not the weights: run git lfs pull")
    try:
        tensors = json.loads(header)
        ends = [entry["data_offsets"][1] for key, entry in tensors.items() if key != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise ModelError(
            f"{file} is not a safetensors file or is cut off in its header: copy it again"
        ) from None
    if size != expected:
        raise ModelError(
            f"{file} has {size} bytes where its header says {expected}: copy it again, the last "
            "copy did not finish"
        )
