"""What a model's name means.

A name is an alias, of a model that can be fetched or of a draft that is shipped, a folder or a hub
id. Everything here needs the base dependencies only.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from paceline import shipped
from paceline.errors import ModelError
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
from paceline.model_folder import check_folder, read_config, tokenizer_fingerprint, weight_gib

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
    "resolve_target",
    "tokenizer_fingerprint",
    "weight_gib",
]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


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
    wins over both (write ./NAME for a folder of an alias's name). Shipped drafts have one dtype,
    and are loaded in any.
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
    draft = shipped.find(name)
    if draft is not None:
        return str(shipped.usable_folder(draft))
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
    aliases = [*ALIASES, *(draft.alias for draft in shipped.list_drafts())]
    if not _HUB_ID.fullmatch(name):
        raise ModelError(
            f"the model '{name}' is no alias ({', '.join(aliases)}), no folder and no hub id: "
            "check its spelling"
        )
    if "/" in name:
        return name
    near = difflib.get_close_matches(name, aliases, n=1, cutoff=0.8)
    if near:
        raise ModelError(f"the model '{name}' is not known: did you mean {near[0]}?")
    if any(name.startswith(_family(alias)) for alias in ALIASES):
        # Named like a draft for one of our targets; no hub id without an owner is.
        known = f"known are {', '.join(aliases)}" if shipped.have_folder() else shipped.NO_FOLDER
        raise ModelError(f"the model '{name}' is not known; {known}")
    return name


def resolve_target(name: str, dtype: str = "bfloat16") -> str:
    """The same for a model that is to be a target, which a shipped draft is not."""
    draft = shipped.find(name)
    if draft is not None:
        target = f"for {draft.card.target}" if draft.card else "for another model"
        raise ModelError(
            f"the target {name} is a draft {target}: name that one as the target, and the draft "
            "under drafters"
        )
    return resolve(name, dtype)


def _family(alias: str) -> str:
    """What the names of its drafts begin with: smollm2-135m-instruct has smollm2-135m-draft."""
    return alias.rpartition("-")[0] + "-"
