"""Shipped drafts: found in their folder, named by alias, refused in one sentence where damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from paceline import models, shipped
from paceline.cards import CARD_FILE, Card, card_text, read_card
from paceline.errors import ModelError

CARD = Card(
    name="tiny-eagle3",
    target="tiny-target",
    method="eagle3",
    num_speculative_tokens=3,
    mean_acceptance_length=2.25,
)


def make_draft(folder: Path, card: Card = CARD) -> Path:
    """A whole draft of four bytes of weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama", "vocab_size": 8}')
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    weights = len(header).to_bytes(8, "little") + header + bytes(4)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / CARD_FILE).write_text(card_text({"license": "mit"}, card, "# A draft\n"))
    return folder


@pytest.fixture
def drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of shipped drafts, with one in it."""
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "models")
    make_draft(tmp_path / "models" / "tiny-eagle3")
    return tmp_path / "models"


def test_a_card_is_read_back(drafts: Path) -> None:
    assert read_card(drafts / "tiny-eagle3") == CARD


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# just text",
        "---\nlicense: mit\n---\n",
        "---\nno end",
        "---\n- a list\n---\n",
        "---\n{ not YAML\n---\n",
        "---\n: [\n---\n",
    ],
)
def test_another_readme_is_no_card(tmp_path: Path, text: str) -> None:
    (tmp_path / CARD_FILE).write_text(text)
    assert read_card(tmp_path) is None
    assert read_card(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    "block",
    ["[]", "{name: n}", "{name: n, target: t, method: eagle4, num_speculative_tokens: 1}"],
)
def test_a_wrong_block_is_named(tmp_path: Path, block: str) -> None:
    (tmp_path / CARD_FILE).write_text(f"---\npaceline: {block}\n---\n")
    with pytest.raises(ModelError, match="the block 'paceline' of"):
        read_card(tmp_path)


def test_what_is_in_the_folder_is_listed_and_resolves(drafts: Path) -> None:
    make_draft(drafts / "another", replace(CARD, name="another"))
    (drafts / "README.md").write_text("about the folder")
    (drafts / ".hidden").mkdir()
    found = shipped.list_drafts()
    assert [draft.alias for draft in found] == ["another", "tiny-eagle3"]
    assert found[1].card == CARD and not found[1].problem
    size = sum(file.stat().st_size for file in (drafts / "tiny-eagle3").iterdir())
    assert found[1].size_mb == size / 1e6
    assert models.resolve("tiny-eagle3", "float32") == str(drafts / "tiny-eagle3")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("model.safetensors", None, r"holds no \.safetensors weights"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("model.safetensors", b"\0" * 8, "is not a safetensors file"),
        ("config.json", None, r"holds no config\.json"),
        ("config.json", b"{", "is not valid JSON"),
        (CARD_FILE, None, "is no model card"),
        (CARD_FILE, b"# text", "is no model card"),
        (CARD_FILE, b"---\npaceline: 1\n---\n", "the block 'paceline' of"),
        (
            CARD_FILE,
            card_text({}, replace(CARD, name="other"), "").encode(),
            "but its card is that of other",
        ),
    ],
)
def test_a_damaged_draft_is_listed_with_its_problem_and_refused(
    drafts: Path, name: str, content: bytes | None, sentence: str
) -> None:
    file = drafts / "tiny-eagle3" / name
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    (draft,) = shipped.list_drafts()
    with pytest.raises(ModelError, match=sentence) as caught:
        models.resolve("tiny-eagle3")
    assert draft.problem in str(caught.value)
    assert str(caught.value).startswith("the shipped draft tiny-eagle3 cannot be used: ")
    assert "\n" not in str(caught.value)


def test_a_draft_is_no_target(drafts: Path) -> None:
    with pytest.raises(ModelError, match="the target tiny-eagle3 is a draft for tiny-target"):
        models.resolve_target("tiny-eagle3")
    (drafts / "tiny-eagle3" / CARD_FILE).unlink()
    with pytest.raises(ModelError, match="is a draft for another model"):
        models.resolve_target("tiny-eagle3")
    assert models.resolve_target("somebody/model") == "somebody/model"


def test_a_name_like_a_draft_s_is_no_hub_id(drafts: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="did you mean tiny-eagle3"):
        models.resolve("tiny-eagle")
    with pytest.raises(ModelError, match=r"known are smollm2-135m-instruct, tiny-eagle3$"):
        models.resolve("smollm2-135m-medusa")
    assert models.resolve("somebody/tiny-eagle3") == "somebody/tiny-eagle3"


@pytest.mark.parametrize("is_wheel", [True, False])
def test_without_the_folder_it_is_said_what_to_do(
    drafts: Path, monkeypatch: pytest.MonkeyPatch, is_wheel: bool
) -> None:
    if is_wheel:  # another project's folder of this name
        (drafts.parent / "pyproject.toml").unlink()
    else:
        monkeypatch.setattr(shipped, "FOLDER", drafts.parent / "nowhere")
    assert not shipped.have_folder() and not shipped.list_drafts()
    with pytest.raises(ModelError, match=r"has no shipped drafts, .*: install Paceline from one"):
        models.resolve("smollm2-135m-eagle3")
