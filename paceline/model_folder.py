"""Whether a model folder can be loaded, told from headers rather than weights.

A wrong folder is refused before an engine starts. Needs the base dependencies only.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from paceline.errors import EnvironmentError_, ModelError

INDEX_FILE = "model.safetensors.index.json"

_PICKLED = (".bin", ".pt", ".pth", ".ckpt")

_MAX_HEADER = 100_000_000
"""Bytes; the safetensors format's own limit."""


def check_folder(path: str | Path) -> None:
    """Raise ModelError unless the folder holds a config and whole safetensors weights."""
    folder = Path(path)
    read_config(folder)
    for file in weight_files(folder):
        read_header(file)


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files: those that its index names, else all.

    Raises:
        ModelError: there are none, or the index names one that is not there.
    """
    names = sorted(set(read_index(folder).values()))
    for name in names:
        if not (folder / name).is_file():
            raise ModelError(
                f"{folder} lacks {name}, which {INDEX_FILE} lists: copy the model folder again"
            )
    files = [folder / name for name in names] or sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = next((file for ending in _PICKLED for file in folder.glob(f"*{ending}")), None)
        if pickled is not None:
            raise ModelError(
                f"{folder} holds {pickled.name} but no .safetensors weights, and pickled weights "
                "are not read, because reading them may run any code: convert them to safetensors"
            )
        raise ModelError(
            f"{folder} holds no .safetensors weights: check that the download is complete, or "
            "convert other formats first"
        )
    return files


def read_index(folder: Path) -> dict[str, str]:
    """Which file each tensor is in, as the folder's index says; empty without an index."""
    index = folder / INDEX_FILE
    if not index.is_file():
        return {}
    shards = _read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ModelError(f"{index} lists no weights: copy the model folder again")
    return {name: str(shard) for name, shard in shards.items()}


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


def read_header(file: Path) -> dict[str, Any]:
    """What a safetensors file says of each of its tensors: ``dtype``, ``shape``, ``data_offsets``.

    Raises:
        ModelError: the file is none, or its length is not what the header says.
    """
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
        tensors.pop("__metadata__", None)
        ends = [entry["data_offsets"][1] for entry in tensors.values()]
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
    headers: dict[str, Any] = tensors
    return headers
