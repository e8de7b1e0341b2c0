"""MTP drafts and logits beside those of vLLM's own classes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from paceline.drafter.model import DraftRequest
from paceline.drafter.rows import RowBuffer
from tests.oracle.mtp_checkpoints import HIDDEN_SIZE, KINDS, VOCAB_SIZE, load_mtp, make_mtp

pytestmark = pytest.mark.slow
NUM_TEXTS, LENGTH, K = 3, 40, 4
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints, what is drafted from, and what vLLM makes of it."""
    folder = tmp_path_factory.mktemp("mtp")
    generator = torch.Generator().manual_seed(1)
    texts = {"tokens": torch.randint(0, VOCAB_SIZE, (NUM_TEXTS, LENGTH), generator=generator)}
    for kind in KINDS:
        make_mtp(folder / kind, kind)
        texts[kind] = torch.randn((NUM_TEXTS, LENGTH - 1, HIDDEN_SIZE), generator=generator)
    save_file(texts, folder / "texts.safetensors")
    command = [sys.executable, "-m", "tests.oracle.mtp_vllm"]
    command += [str(folder / f"{name}.safetensors") for name in ("texts", "expected")]
    command += [f"{kind}={folder / kind}" for kind in KINDS]
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
    drafter = load_mtp(folder / kind)
    requests = []
    for tokens, states in zip(texts["tokens"].tolist(), texts[kind], strict=True):
        buffer = RowBuffer()
        buffer.insert(0, {"final": rows_of(kind, folder, states)})
        requests.append(DraftRequest(tokens=tokens, rows=buffer))
        drafter.open(requests[-1])
    steps: list[torch.Tensor] = []
    head = drafter.logits

    def recorded(x: torch.Tensor) -> torch.Tensor:
        steps.append(head(x))
        return steps[-1]

    monkeypatch.setattr(drafter, "logits", recorded)
    drafts = drafter.draft(requests, K, VOCAB_SIZE)
    assert [draft.tokens for draft in drafts] == expected[f"{kind}.tokens"].tolist()
    difference = (torch.stack(steps, dim=1) - expected[f"{kind}.logits"]).abs().max()
    print(f"{kind}: largest difference of a logit {difference:.1e}")
    assert difference < 1e-4


def rows_of(kind: str, folder: Path, states: torch.Tensor) -> torch.Tensor:
    """Returns the rows of a target that hands ``states`` to its block."""
    if kind != "mimo":
        return states
    weight = load_file(folder / kind / "model.safetensors")["model.norm.weight"]
    return functional.rms_norm(states, weight.shape, weight, 1e-5)
