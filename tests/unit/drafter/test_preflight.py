"""What is said of a drafter before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.drafter.build import build_draft_model
from paceline.drafter.config import DrafterConfig
from paceline.drafter.ngram import NgramDrafter
from paceline.drafter.preflight import check_drafter
from paceline.errors import ConfigError, ModelError


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return folder(tmp_path / "target")


def folder(path: Path, words: tuple[str, ...] = (), vocab_size: int = 8) -> Path:
    """A model folder with an empty weights file, and a tokenizer if there are ``words``."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"vocab_size": vocab_size}))
    (path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    if words:
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel

        vocabulary = {word: number for number, word in enumerate(words)}
        Tokenizer(WordLevel(vocabulary, unk_token=words[0])).save(str(path / "tokenizer.json"))
    return path


def draft(path: Path) -> DrafterConfig:
    return DrafterConfig(name="d", method="draft_model", model=str(path))


def test_a_drafter_without_a_model_needs_no_check() -> None:
    check_drafter(DrafterConfig(name="n", method="ngram"), "/no/such/folder", "float32")


def test_equal_vocabularies_without_tokenizers_pass(target: Path, tmp_path: Path) -> None:
    check_drafter(draft(folder(tmp_path / "d")), str(target), "float32")


def test_another_vocabulary_size_is_named(target: Path, tmp_path: Path) -> None:
    path = folder(tmp_path / "d", vocab_size=9)
    with pytest.raises(ModelError, match=r"^drafter d: .* vocabulary of 9 .* target one of 8"):
        check_drafter(draft(path), str(target), "float32")


def test_another_tokenizer_is_refused_whatever_the_sizes(tmp_path: Path) -> None:
    target = folder(tmp_path / "target", ("a", "b"))
    path = folder(tmp_path / "d", ("a", "c"))
    with pytest.raises(ModelError, match="another tokenizer than the target"):
        check_drafter(draft(path), str(target), "float32")


def test_equal_tokenizers_pass_with_padding_rows(tmp_path: Path) -> None:
    target = folder(tmp_path / "target", ("a", "b"), vocab_size=8)
    check_drafter(draft(folder(tmp_path / "d", ("a", "b"), 16)), str(target), "float32")


def test_a_draft_that_is_not_there_is_named(target: Path) -> None:
    with pytest.raises(ModelError, match="'/no/such/draft' does not exist"):
        check_drafter(draft(Path("/no/such/draft")), str(target), "float32")


def test_a_truncated_draft_is_refused(target: Path, tmp_path: Path) -> None:
    path = folder(tmp_path / "d")
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        check_drafter(draft(path), str(target), "float32")


def test_the_configured_lengths_reach_the_look_up() -> None:
    config = DrafterConfig(name="n", method="ngram", prompt_lookup_min=1, prompt_lookup_max=1)
    model = build_draft_model(config, "float32")
    assert isinstance(model, NgramDrafter)
    assert (model._shortest, model._longest) == (1, 1)


def test_a_scripted_draft_needs_answers() -> None:
    with pytest.raises(ConfigError, match="drafter s: method scripted is for paceline bench"):
        check_drafter(DrafterConfig(name="s", method="scripted"), "org/target", "float32")
    with_answers = DrafterConfig(name="s", method="scripted", scripted_answers="a.jsonl")
    check_drafter(with_answers, "org/target", "float32")
