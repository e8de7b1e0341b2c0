"""Every recipe of ray_configs/ loads, and says nothing that is not so."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline import models, shipped
from paceline.cluster.config import load_config

FOLDER = Path(__file__).resolve().parents[3] / "ray_configs"
RECIPES = sorted(path for path in FOLDER.rglob("*") if path.is_file())


def test_there_are_recipes_and_nothing_else() -> None:
    assert RECIPES
    assert {path.suffix for path in RECIPES} == {".yaml"}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_loads(path: Path) -> None:
    config = load_config(path)
    assert config.target.model
    assert path.read_text().startswith("# "), "a recipe begins by saying what it is for"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_names_no_folder_of_somebody_s(path: Path) -> None:
    config = load_config(path)
    named = [config.target.model, *(d.model for d in config.drafters if d.model)]
    assert not [name for name in named if name.startswith(("/", "~", "."))]
    aliases = {*models.ALIASES, *(draft.alias for draft in shipped.list_drafts())}
    assert not [name for name in named if "/" not in name and name not in aliases]
