"""What is said of a drafter before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.cards import CARD_FILE, Card, card_text
from paceline.drafter.build import build_draft_model
from paceline.drafter.config import DrafterConfig
from paceline.drafter.ngram import NgramDrafter
from paceline.drafter.preflight import check_drafter, draft_remarks, other_target
from paceline.errors import ConfigError, ModelError
from tests.unit.drafter import checkpoints


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


def with_card(path: Path, **changes: Any) -> Path:
    values: dict[str, Any] = {
        "name": path.name,
        "target": "somebody/Target-1B",
        "method": "draft_model",
        "num_speculative_tokens": 4,
    }
    card = Card(**values | changes)
    (path / CARD_FILE).write_text(card_text({}, card, ""))
    return path


def test_another_method_than_the_card_s_is_refused(target: Path, tmp_path: Path) -> None:
    path = with_card(folder(tmp_path / "d"))
    check_drafter(draft(path), str(target), "float32")
    with_card(path, method="eagle3")
    with pytest.raises(ConfigError, match=r"^drafter d: method is draft_model, .* for eagle3; "):
        check_drafter(draft(path), str(target), "float32")


@pytest.mark.parametrize(
    ("trained_for", "name", "resolved", "other"),
    [
        ("somebody/Target-1B", "somebody/Target-1B", "somebody/Target-1B", ""),
        ("somebody/Target-1B", "/m/Target-1B", "/m/Target-1B", ""),
        ("somebody/Target-1B", "somebody/Target-2B", "somebody/Target-2B", "somebody/Target-1B"),
        ("smollm2-135m-instruct", "smollm2-135m-instruct", "/c/smollm2-135m-instruct-float32", ""),
        ("smollm2-135m-instruct", "m", "/c/smollm2-135m-instruct-float32", ""),
        ("smollm2-135m-instruct", "HuggingFaceTB/SmolLM2-135M-Instruct", "x", ""),
        ("smollm2-135m-instruct", "./SmolLM2-135M-Instruct", "/m/SmolLM2-135M-Instruct", ""),
        ("smollm2-135m-instruct", "/m/large", "/m/large", "smollm2-135m-instruct"),
    ],
)
def test_a_draft_for_another_target_is_told(
    tmp_path: Path, trained_for: str, name: str, resolved: str, other: str
) -> None:
    config = draft(with_card(folder(tmp_path / "d"), target=trained_for))
    assert other_target(config, name, resolved, "float32") == other


def test_a_draft_without_a_card_is_for_any_target(tmp_path: Path) -> None:
    assert other_target(draft(folder(tmp_path / "d")), "t", "t", "float32") == ""
    assert other_target(DrafterConfig(name="n", method="ngram"), "t", "t", "float32") == ""


def with_rows(path: Path | None, method: str = "dflash", **values: Any) -> DrafterConfig:
    model = None if path is None else str(path)
    return DrafterConfig(name="d", method=method, model=model, **values)


def test_the_first_thing_that_is_wrong_with_a_draft_on_rows_ends_a_run(tmp_path: Path) -> None:
    goal = str(checkpoints.target(tmp_path / "t"))
    path = checkpoints.block(tmp_path / "d", "dflash", "z-lab")
    check_drafter(with_rows(path), goal, "float32")
    with pytest.raises(ModelError, match=r"^drafter d: num_speculative_tokens is 8, but a block"):
        check_drafter(with_rows(path, num_speculative_tokens=8), goal, "float32")
    check_drafter(with_rows(path), goal, "float32", max_model_len=513)
    remarks = draft_remarks(with_rows(path), goal, "float32", max_model_len=513)
    assert [remark.subject for remark in remarks if remark.level == "warn"] == ["context length"]


def test_a_checkpoint_for_another_method_is_refused(tmp_path: Path) -> None:
    goal = str(checkpoints.target(tmp_path / "t"))
    path = checkpoints.block(tmp_path / "d", "dflash", "z-lab")
    text = r"^drafter d: method is {}, but .* is a draft for dflash in the layout z-lab; set"
    for config in (with_rows(path, "dspark"), draft(path)):
        with pytest.raises(ConfigError, match=text.format(config.method)):
            check_drafter(config, goal, "float32")


def test_mtp_looks_in_the_target_s_own_checkpoint(tmp_path: Path) -> None:
    goal = checkpoints.target(tmp_path / "t")
    with pytest.raises(ConfigError, match="of the model family llama, has no MTP block"):
        check_drafter(with_rows(None, "mtp"), str(goal), "float32")
    block = checkpoints.mtp(tmp_path / "b", "mimo")
    (block / "model.safetensors").rename(goal / "mtp.safetensors")
    check_drafter(with_rows(None, "mtp"), str(goal), "float32")


def test_a_hub_id_is_left_for_later(tmp_path: Path) -> None:
    path = checkpoints.block(tmp_path / "d", "dflash", "z-lab")
    for config, goal in (
        (with_rows(path), "somebody/Target-1B"),
        (with_rows(Path("somebody/draft")), str(checkpoints.target(tmp_path / "t"))),
    ):
        (remark,) = draft_remarks(config, goal, "float32")
        assert (remark.level, "is a hub id" in remark.text) == ("warn", True)


def test_the_target_of_a_speculators_draft_is_told(tmp_path: Path) -> None:
    config = with_rows(checkpoints.eagle3(tmp_path / "d", "speculators"), "eagle3")
    assert other_target(config, "somebody/Target-1B", "x", "float32") == ""
    assert other_target(config, "somebody/Target-2B", "x", "float32") == "somebody/Target-1B"


@pytest.mark.parametrize("method", ["eagle3", "dflash", "dspark", "gemma4_mtp"])
def test_a_method_with_a_draft_needs_one(method: str) -> None:
    with pytest.raises(ValueError, match=f"^method {method} needs a model: "):
        with_rows(None, method)
