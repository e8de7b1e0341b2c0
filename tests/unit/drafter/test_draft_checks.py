"""What the headers tell of a draft and its target: a sentence for each thing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.drafter.checkpoint import Checkpoint
from paceline.drafter.draft_checks import Remark, check_pair, max_block_tokens
from paceline.drafter.draft_costs import projected_size, row_size, state_bytes, weight_bytes
from paceline.drafter.draft_kind import kind_of
from tests.unit.drafter import checkpoints
from tests.unit.drafter.checkpoints import DRAFT_V, LAYOUTS, H, L, V, pair


def said(draft: Path, target: Path, method: str, **changes: Any) -> dict[str, Remark]:
    remarks = list(check_pair(pair(draft, target, method, **changes)))
    assert len({remark.subject for remark in remarks}) == len(remarks)
    return {remark.subject: remark for remark in remarks}


def only_failure(remarks: dict[str, Remark]) -> Remark:
    (failure,) = [remark for remark in remarks.values() if remark.level == "fail"]
    return failure


def target_for(method: str, folder: Path) -> Path:
    make = checkpoints.gemma_target if method == "gemma4_mtp" else checkpoints.target
    return make(folder)


def retensor(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    return folder


def add_tokenizer(folder: Path, words: str) -> Path:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    vocabulary = {word: number for number, word in enumerate(words)}
    Tokenizer(WordLevel(vocabulary, unk_token=words[0])).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return checkpoints.target(tmp_path / "target")


@pytest.fixture
def eagle3(tmp_path: Path) -> Path:
    path = checkpoints.eagle3(tmp_path / "draft")
    return checkpoints.change(path, eagle_aux_hidden_state_layer_ids=[1, 3, 5])


@pytest.fixture
def dflash(tmp_path: Path) -> Path:
    return checkpoints.block(tmp_path / "draft", "dflash", "z-lab")


@pytest.mark.parametrize(("method", "layout"), LAYOUTS)
def test_a_draft_that_fits_is_fine_in_every_layout(
    tmp_path: Path, method: str, layout: str
) -> None:
    draft = LAYOUTS[method, layout](tmp_path / "d")
    if layout == "safeailab":
        checkpoints.change(draft, eagle_aux_hidden_state_layer_ids=[1, 3, 5])
    found = said(draft, target_for(method, tmp_path / "t"), method)
    assert {remark.level for remark in found.values()} == {"ok"}
    assert {"tensors", "hidden size", "layers", "vocabulary", "memory", "rows"} <= set(found)


def test_missing_and_extra_tensors_are_listed(target: Path, eagle3: Path) -> None:
    retensor(eagle3, lambda tensors: tensors.pop("norm.weight"))
    retensor(eagle3, lambda tensors: tensors.update(surprise=torch.zeros(1)))
    found = said(eagle3, target, "eagle3")
    assert "lacks the tensor norm.weight and has the tensor surprise" in found["tensors"].text
    assert only_failure(found).subject == "tensors" and "memory" not in found


def test_a_draft_vocabulary_needs_its_map(target: Path, eagle3: Path) -> None:
    retensor(eagle3, lambda tensors: tensors.pop("d2t"))
    assert "lacks the tensor d2t" in only_failure(said(eagle3, target, "eagle3")).text


def test_an_mtp_block_in_its_target_s_checkpoint_is_judged_alone(
    target: Path, tmp_path: Path
) -> None:
    block = checkpoints.mtp(tmp_path / "b", "mimo")
    (block / "model.safetensors").rename(target / "mtp.safetensors")
    found = said(target, target, "mtp")
    assert {remark.level for remark in found.values()} == {"ok"}
    assert found["tensors"].text.endswith("13 tensors")
    assert "tokenizer" not in found and "context length" not in found


def test_a_target_of_another_hidden_size(eagle3: Path, target: Path, tmp_path: Path) -> None:
    def widen(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if tensor.shape[-1] == H:
                tensors[name] = torch.zeros(*tensor.shape[:-1], 2 * H)

    retensor(checkpoints.change(target, hidden_size=2 * H), widen)
    failure = only_failure(said(eagle3, target, "eagle3"))
    assert failure.subject == "hidden size"
    assert f"takes rows of {3 * H} values, but 3 layers of a target of hidden size" in failure.text
    for method, layout in (("mtp", "mimo"), ("gemma4_mtp", "gemma4-assistant")):
        draft = LAYOUTS[method, layout](tmp_path / method)
        text = said(draft, target, method)["hidden size"].text
        assert f"states of hidden size {H}, but the target's is {2 * H}" in text


def test_a_narrow_draft_needs_an_embedding_of_its_own(target: Path, dflash: Path) -> None:
    checkpoints.change(dflash, hidden_size=H // 2)
    text = only_failure(said(dflash, target, "dflash")).text
    assert f"computes with hidden size {H // 2} and has no embedding or head of its own" in text


def test_a_layer_that_does_not_exist(target: Path, eagle3: Path) -> None:
    checkpoints.change(eagle3, eagle_aux_hidden_state_layer_ids=[1, 3, 40])
    failure = only_failure(said(eagle3, target, "eagle3"))
    assert failure.subject == "layers"
    assert f"the target has {L} layers, so that 40 cannot be had" in failure.text


def test_a_target_of_another_depth(target: Path, dflash: Path) -> None:
    checkpoints.change(dflash, num_target_layers=L + 2)
    failure = only_failure(said(dflash, target, "dflash"))
    assert failure.text.startswith(f"the draft was made for a target of {L + 2} layers")


def test_eagle_s_default_layers_are_said_to_be_that(target: Path, eagle3: Path) -> None:
    checkpoints.change(eagle3, eagle_aux_hidden_state_layer_ids=None)
    checkpoints.change(target, num_hidden_layers=8)
    text = said(eagle3, target, "eagle3")["layers"].text
    assert text.startswith("takes what enters layers 2, 4, 5 of 8, EAGLE-3's default")


def test_another_vocabulary(target: Path, eagle3: Path) -> None:
    checkpoints.change(eagle3, vocab_size=V + 1)
    failure = only_failure(said(eagle3, target, "eagle3"))
    assert failure.text.startswith(f"the draft has a vocabulary of {V + 1} tokens and the target")
    add_tokenizer(eagle3, "abc")
    assert only_failure(said(eagle3, target, "eagle3")), "one tokenizer alone proves nothing"
    add_tokenizer(target, "abc")
    assert said(eagle3, target, "eagle3")["vocabulary"].level == "ok", "padding rows"


def test_another_tokenizer(target: Path, eagle3: Path) -> None:
    add_tokenizer(target, "abc")
    assert "brings none" in said(eagle3, target, "eagle3")["tokenizer"].text
    add_tokenizer(eagle3, "abd")
    failure = only_failure(said(eagle3, target, "eagle3"))
    assert (failure.subject, "another tokenizer than" in failure.text) == ("tokenizer", True)


def test_a_head_of_other_rows_than_its_config_says(target: Path, eagle3: Path) -> None:
    checkpoints.change(eagle3, draft_vocab_size=DRAFT_V + 1)
    text = only_failure(said(eagle3, target, "eagle3")).text
    assert f"head has {DRAFT_V} rows, but its config says a draft vocabulary of" in text


def test_a_mask_token_that_is_no_row(target: Path, dflash: Path) -> None:
    config = {"mask_token_id": V, "target_layer_ids": [0, 2, 4]}
    checkpoints.change(dflash, dflash_config=config)
    text = only_failure(said(dflash, target, "dflash")).text
    assert f"mask_token_id is {V}, which is no row of the embedding's {V}" in text


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize(("row", "offset"), [(79, V - 79), (3, -4)])
def test_d2t_out_of_range(
    target: Path, eagle3: Path, dtype: torch.dtype, row: int, offset: int
) -> None:
    d2t = checkpoints.offsets().to(dtype)
    retensor(eagle3, lambda tensors: tensors.update(d2t=d2t))
    assert said(eagle3, target, "eagle3")["d2t"].level == "ok"
    d2t[row] = offset
    retensor(eagle3, lambda tensors: tensors.update(d2t=d2t))
    failure = only_failure(said(eagle3, target, "eagle3"))
    assert f"d2t maps its token {row} to {row + offset}, but the target has {V}" in failure.text


def test_d2t_of_another_length_or_type(target: Path, eagle3: Path) -> None:
    retensor(eagle3, lambda tensors: tensors.update(d2t=torch.zeros(3).long()))
    assert "d2t has the shape [3]" in only_failure(said(eagle3, target, "eagle3")).text
    retensor(eagle3, lambda tensors: tensors.update(d2t=torch.zeros(DRAFT_V)))
    assert "d2t holds F32, not integers" in only_failure(said(eagle3, target, "eagle3")).text


@pytest.mark.parametrize(
    ("method", "layout", "most"),
    [
        ("dflash", "z-lab", 7),
        ("dflash", "speculators", 7),
        ("dspark", "deepspec", 8),
        ("dspark", "speculators", 7),
    ],
)
def test_more_drafts_than_a_block_gives(
    target: Path, tmp_path: Path, method: str, layout: str, most: int
) -> None:
    draft = LAYOUTS[method, layout](tmp_path / "d")
    assert said(draft, target, method, num_tokens=most)["block size"].level == "ok"
    failure = only_failure(said(draft, target, method, num_tokens=most + 1))
    assert failure.text.endswith(
        f"a block of 8 gives at most {most} drafts: set it to at most {most}"
    )
    checkpoints.change(draft, sample_from_anchor=most == 7)
    checkpoint = Checkpoint(draft)
    assert max_block_tokens(kind_of(checkpoint, method), checkpoint) == (8, 15 - most)


def test_a_short_context_is_a_warning(target: Path, eagle3: Path) -> None:
    assert said(eagle3, target, "eagle3", max_model_len=512)["context length"].level == "ok"
    remark = said(eagle3, target, "eagle3", max_model_len=513)["context length"]
    assert remark.level == "warn"
    assert "was made for 512 positions and requests may have 513" in remark.text
    checkpoints.change(eagle3, max_position_embeddings=256)
    assert said(eagle3, target, "eagle3", max_model_len=None)["context length"].level == "warn"


def test_dtypes(target: Path, eagle3: Path) -> None:
    assert said(eagle3, target, "eagle3", dtype="float16")["dtype"].level == "warn"
    quantized = torch.zeros(H, 3 * H, dtype=torch.int8)
    retensor(eagle3, lambda tensors: tensors.update({"fc.weight": quantized}))
    failure = only_failure(said(eagle3, target, "eagle3"))
    assert "fc.weight is quantized (I8), which is not served" in failure.text


@pytest.mark.parametrize(
    "values",
    [
        {"hidden_size": "64"},
        {"num_hidden_layers": None},
        {"vocab_size": "many"},
        {"hidden_size": 0},
    ],
)
def test_a_config_of_nonsense_is_told_rather_than_raised(
    target: Path, eagle3: Path, values: dict[str, Any]
) -> None:
    assert "fail" in {
        r.level for r in said(checkpoints.change(eagle3, **values), target, "eagle3").values()
    }
    checkpoints.change(target, **values)
    assert "fail" in {remark.level for remark in said(eagle3, target, "eagle3").values()}


def test_costs(target: Path, eagle3: Path) -> None:
    draft = pair(eagle3, target, "eagle3", dtype="float32")
    assert row_size(draft) == 3 * H * 2 and projected_size(draft) == H * 2
    assert state_bytes(draft) == 2 * 2 * 16 * 4
    own, borrowed = weight_bytes(draft)
    assert borrowed == V * H * 4, "EAGLE-3 has a head of its own"
    tensors = load_file(eagle3 / "model.safetensors")
    assert own == 4 * sum(t.numel() for name, t in tensors.items() if name not in ("d2t", "t2d"))


def test_bandwidth_is_told_for_a_rate(target: Path, eagle3: Path) -> None:
    text = said(eagle3, target, "eagle3")["rows"].text
    assert text == (
        "384 bytes for each token (128 where fc runs at the target): 0.4 MB/s at 1,000 decoded "
        "tokens a second and 8 MB/s at 20,000 prefilled ones"
    )


def test_dflash_borrows_the_head_too(target: Path, dflash: Path) -> None:
    assert weight_bytes(pair(dflash, target, "dflash"))[1] == 2 * V * H * 2
    checkpoints.change(target, tie_word_embeddings=True)
    assert weight_bytes(pair(dflash, target, "dflash"))[1] == V * H * 2, "tied: held once"
    assert state_bytes(pair(dflash, target, "dflash")) == 2 * 2 * 2 * 16 * 2
