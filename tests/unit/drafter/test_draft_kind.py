"""Method and layout, told from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.drafter.checkpoint import Checkpoint
from paceline.drafter.draft_kind import DraftKind, kind_of, kinds_of
from paceline.errors import ConfigError, ModelError
from tests.unit.drafter import checkpoints
from tests.unit.drafter.checkpoints import LAYOUTS


@pytest.mark.parametrize(("method", "layout"), LAYOUTS)
def test_every_layout_is_told_from_the_checkpoint(tmp_path: Path, method: str, layout: str) -> None:
    draft = Checkpoint(LAYOUTS[method, layout](tmp_path / "d"))
    assert kinds_of(draft) == [DraftKind(method, layout)]
    assert kind_of(draft, method).layout == layout


def test_a_contradiction_names_both(tmp_path: Path) -> None:
    draft = Checkpoint(checkpoints.eagle3(tmp_path / "d"))
    with pytest.raises(ConfigError, match=r"method is dflash, but .* is a draft for eagle3 in the"):
        kind_of(draft, "dflash")
    with pytest.raises(ConfigError, match=r"method is draft_model, but .*; set method to eagle3$"):
        kind_of(draft, "draft_model")


def test_a_causal_model_is_a_draft_and_one_with_an_mtp_block_is_two(tmp_path: Path) -> None:
    path = checkpoints.target(tmp_path / "t")
    assert kinds_of(Checkpoint(path)) == [DraftKind("draft_model", "causal-lm")]
    with pytest.raises(ConfigError, match="of the model family llama, has no MTP block"):
        kind_of(Checkpoint(path), "mtp")
    block = checkpoints.mtp(tmp_path / "b", "mimo")
    (block / "model.safetensors").rename(path / "mtp.safetensors")
    draft = Checkpoint(path)
    assert kind_of(draft, "mtp") == DraftKind("mtp", "mimo")
    assert kind_of(draft, "draft_model") == DraftKind("draft_model", "causal-lm")


@pytest.mark.parametrize(
    ("method", "layout"), [("eagle3", "safeailab"), ("dspark", "deepspec"), ("dflash", "z-lab")]
)
def test_an_architecture_that_says_nothing_leaves_it_to_the_tensors(
    tmp_path: Path, method: str, layout: str
) -> None:
    path = checkpoints.change(
        LAYOUTS[method, layout](tmp_path / "d"), architectures=["LlamaForCausalLM"]
    )
    assert kinds_of(Checkpoint(path)) == [DraftKind(method, layout)]


def test_both_of_gemma_s_assistants_are_known(tmp_path: Path) -> None:
    path = checkpoints.gemma4(tmp_path / "d", "gemma4_unified_assistant")
    assert kind_of(Checkpoint(path), "gemma4_mtp").layout == "gemma4-assistant"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"architectures": ["EagleLlamaForCausalLM"]}, "architecture EagleLlamaForCausalLM, which"),
        ({"architectures": ["DFlash2DraftModel"]}, "architecture DFlash2DraftModel, which"),
        ({"speculators_model_type": "peagle"}, "speculators draft of type peagle, which"),
        ({"speculators_model_type": "mtp"}, "stitch it into its target"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    tmp_path: Path, change: dict[str, object], text: str
) -> None:
    path = checkpoints.change(checkpoints.eagle3(tmp_path / "d"), **change)
    with pytest.raises(ModelError, match=text):
        kinds_of(Checkpoint(path))


def test_a_folder_that_shows_nothing_is_no_draft(tmp_path: Path) -> None:
    path = checkpoints.write(tmp_path / "d", {"architectures": ["Other"]}, {"x": (1,)})
    with pytest.raises(ModelError, match=r"method is eagle3, but nothing in .* \(archi.*: Other\)"):
        kind_of(Checkpoint(path), "eagle3")
