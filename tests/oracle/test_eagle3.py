"""EAGLE-3 drafts and logits beside those of vLLM's own classes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.drafter.model import DraftRequest
from paceline.drafter.rows import RowBuffer
from tests.oracle.eagle3_checkpoints import (
    KINDS,
    VOCAB_SIZE,
    load_eagle3,
    make_eagle3,
    make_target,
    num_row_values,
)

pytestmark = pytest.mark.slow
NUM_TEXTS, LENGTH, K = 3, 40, 4
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints, what is drafted from, and what vLLM makes of it."""
    folder = tmp_path_factory.mktemp("eagle3")
    target = make_target(folder / "target")
    generator = torch.Generator().manual_seed(1)
    texts = {
        "tokens": torch.randint(0, VOCAB_SIZE, (NUM_TEXTS, LENGTH), generator=generator),
    }
    for kind in KINDS:
        make_eagle3(folder / kind, kind, str(target))
        shape = (NUM_TEXTS, LENGTH - 1, num_row_values(kind))
        texts[kind] = torch.randn(shape, generator=generator)
    save_file(texts, folder / "texts.safetensors")
    command = [sys.executable, "-m", "tests.oracle.eagle3_vllm", str(target)]
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
    drafter = load_eagle3(folder / kind, folder / "target")
    assert drafter.needs is not None
    name = "final" if drafter.needs.final else "aux"
    requests = []
    for tokens, rows in zip(texts["tokens"].tolist(), texts[kind], strict=True):
        buffer = RowBuffer()
        buffer.insert(0, {name: rows})
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
    wanted = expected[f"{kind}.logits"]  # [text, step, vocabulary], -inf where the head has no row
    [known] = wanted.isfinite().any(dim=(0, 1)).nonzero(as_tuple=True)
    found = torch.stack(steps, dim=1)
    assert found.shape == (NUM_TEXTS, K, len(known))
    assert (found - wanted[..., known]).abs().max() < 1e-4
