"""DFlash and DSpark drafts, logits and confidence beside those of vLLM's own classes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.drafter import dflash, dspark
from paceline.drafter.block import best
from paceline.drafter.model import DraftRequest
from paceline.drafter.rows import RowBuffer
from tests.oracle.block_checkpoints import (
    AUX_LAYERS,
    KINDS,
    load_block_draft,
    make_block_draft,
    num_tokens,
)
from tests.oracle.eagle3_checkpoints import HIDDEN_SIZE, VOCAB_SIZE, make_target

pytestmark = pytest.mark.slow
LENGTHS = (40, 3, 27)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints, what is drafted from, and what vLLM makes of it."""
    folder = tmp_path_factory.mktemp("block")
    target = make_target(folder / "target")
    generator = torch.Generator().manual_seed(1)
    shape = (len(LENGTHS), max(LENGTHS))
    width = len(AUX_LAYERS) * HIDDEN_SIZE
    texts = {
        "tokens": torch.randint(0, VOCAB_SIZE, shape, generator=generator),
        "lengths": torch.tensor(LENGTHS),
        "aux": torch.randn(shape[0], shape[1] - 1, width, generator=generator),
    }
    save_file(texts, folder / "texts.safetensors")
    for kind in KINDS:
        make_block_draft(folder / kind, kind, str(target))
    command = [sys.executable, "-m", "tests.oracle.block_vllm", str(target)]
    command += [str(folder / f"{name}.safetensors") for name in ("texts", "expected")]
    command += [f"{kind}={folder / kind}={num_tokens(kind)}" for kind in KINDS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_and_logits_are_those_of_vllm(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, expected = (load_file(folder / f"{name}.safetensors") for name in ("texts", "expected"))
    drafter = load_block_draft(folder / kind, folder / "target")
    requests = []
    for tokens, length, rows in zip(texts["tokens"].tolist(), LENGTHS, texts["aux"], strict=True):
        buffer = RowBuffer()
        buffer.insert(0, {"aux": rows[: length - 1]})
        requests.append(DraftRequest(tokens=tokens[:length], rows=buffer))
        drafter.open(requests[-1])
    steps: list[Tensor] = []

    def recorded(logits: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        steps.append(logits)
        return best(logits, allowed)

    monkeypatch.setattr(dspark if "dspark" in kind else dflash, "best", recorded)
    k = num_tokens(kind)
    drafts = drafter.draft(requests, k, VOCAB_SIZE)
    assert [draft.tokens for draft in drafts] == expected[f"{kind}.tokens"].tolist()
    found = torch.stack(steps, dim=1) if "dspark" in kind else steps[0]
    wanted = expected[f"{kind}.logits"]
    if found.shape != wanted.shape:  # vLLM's have a column for each of the target's tokens
        [known] = wanted.isfinite().any(dim=(0, 1)).nonzero(as_tuple=True)
        wanted = wanted[..., known]
    assert found.shape == wanted.shape == (len(LENGTHS), k, found.shape[-1])
    known_ones = wanted.isfinite()
    difference = (found - wanted)[known_ones].abs().max()
    print(f"{kind}: largest logit difference {difference:.2e}")
    assert difference < 1e-4
    confidence = torch.tensor([draft.confidence for draft in drafts])
    if f"{kind}.confidence" in expected:
        survival = expected[f"{kind}.confidence"].cumprod(-1)
        torch.testing.assert_close(confidence, survival, atol=1e-5, rtol=0)
    else:
        torch.testing.assert_close(confidence, wanted.softmax(-1).amax(-1), atol=1e-5, rtol=0)
