"""MTP drafts and logits beside those of vLLM's own classes.

vLLM's class for Qwen3.5 needs torchvision: that block is held beside transformers' layer.
"""

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
from paceline.drafter.mtp import MtpDrafter
from paceline.drafter.rows import RowBuffer
from tests.oracle.mtp_checkpoints import (
    HIDDEN_SIZE,
    KINDS,
    VOCAB_SIZE,
    config_of,
    load_mtp,
    make_mtp,
)

pytestmark = pytest.mark.slow
NUM_TEXTS, LENGTH, K = 3, 40, 4
IN_VLLM = [kind for kind in KINDS if kind != "qwen3.5"]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints, what is drafted from, and what vLLM makes of it."""
    folder = tmp_path_factory.mktemp("mtp")
    generator = torch.Generator().manual_seed(1)
    texts = {"tokens": torch.randint(0, VOCAB_SIZE, (NUM_TEXTS, LENGTH), generator=generator)}
    for kind in IN_VLLM:
        make_mtp(folder / kind, kind)
        texts[kind] = torch.randn((NUM_TEXTS, LENGTH - 1, HIDDEN_SIZE), generator=generator)
    save_file(texts, folder / "texts.safetensors")
    command = [sys.executable, "-m", "tests.oracle.mtp_vllm"]
    command += [str(folder / f"{name}.safetensors") for name in ("texts", "expected")]
    command += [f"{kind}={folder / kind}" for kind in IN_VLLM]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("kind", IN_VLLM)
def test_drafts_and_logits_are_those_of_vllm(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, expected = (load_file(folder / f"{name}.safetensors") for name in ("texts", "expected"))
    rows = torch.stack([rows_of(kind, folder, states) for states in texts[kind]])
    drafts, logits = drafted(load_mtp(folder / kind), texts["tokens"], rows, monkeypatch)
    assert drafts == expected[f"{kind}.tokens"].tolist()
    difference = (logits - expected[f"{kind}.logits"]).abs().max()
    print(f"{kind}: largest difference of a logit {difference:.1e}")
    assert difference < 1e-4


def drafted(
    drafter: MtpDrafter, texts: torch.Tensor, rows: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[list[int]], torch.Tensor]:
    """Returns the drafts behind each text, and the logits [texts, K, vocabulary]."""
    requests = []
    for tokens, final in zip(texts.tolist(), rows, strict=True):
        buffer = RowBuffer()
        buffer.insert(0, {"final": final})
        requests.append(DraftRequest(tokens=tokens, rows=buffer))
        drafter.open(requests[-1])
    steps: list[torch.Tensor] = []
    head = drafter.logits

    def recorded(x: torch.Tensor) -> torch.Tensor:
        steps.append(head(x))
        return steps[-1]

    monkeypatch.setattr(drafter, "logits", recorded)
    drafts = drafter.draft(requests, K, VOCAB_SIZE)
    return [draft.tokens for draft in drafts], torch.stack(steps, dim=1)


def rows_of(kind: str, folder: Path, states: torch.Tensor) -> torch.Tensor:
    """Returns the rows of a target that hands ``states`` to its block."""
    if kind != "mimo":
        return states
    weight = load_file(folder / kind / "model.safetensors")["model.norm.weight"]
    return functional.rms_norm(states, weight.shape, weight, 1e-5)


@torch.inference_mode()
def test_qwen3_5_drafts_with_the_layer_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import Qwen3_5TextConfig
    from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

    tensors = load_file(make_mtp(tmp_path, "qwen3.5") / "model.safetensors")
    config = Qwen3_5TextConfig(**config_of("qwen3.5"))
    config._attn_implementation = "eager"
    layer = qwen.Qwen3_5DecoderLayer(config, config.layer_types.index("full_attention"))
    prefix = "mtp.layers.0."
    layer.load_state_dict(
        {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}
    )
    rotary = qwen.Qwen3_5TextRotaryEmbedding(config)

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        weight = 1.0 + tensors[f"mtp.{name}.weight"]
        return functional.rms_norm(x, weight.shape, weight, 1e-5)

    generator = torch.Generator().manual_seed(1)
    texts = torch.randint(0, VOCAB_SIZE, (NUM_TEXTS, LENGTH), generator=generator)
    rows = torch.randn((NUM_TEXTS, LENGTH - 1, HIDDEN_SIZE), generator=generator)
    ids, hidden, wanted = texts[:, 1:], rows, []
    for _ in range(K):
        length = ids.shape[1]
        embeds = norm("pre_fc_norm_embedding", tensors["model.embed_tokens.weight"][ids])
        both = torch.cat([embeds, norm("pre_fc_norm_hidden", hidden)], dim=-1)
        x = both @ tensors["mtp.fc.weight"].T
        rotation = rotary(x, torch.arange(length)[None])
        mask = torch.full((length, length), -torch.inf).triu(1)[None, None]
        out = norm("norm", layer(x, position_embeddings=rotation, attention_mask=mask))
        wanted.append(out[:, -1] @ tensors["lm_head.weight"].T)
        ids = torch.cat([ids, wanted[-1].argmax(dim=-1, keepdim=True)], dim=1)
        hidden = torch.cat([hidden, out[:, -1:]], dim=1)
    drafts, logits = drafted(load_mtp(tmp_path), texts, rows, monkeypatch)
    assert drafts == ids[:, -K:].tolist()
    assert (logits - torch.stack(wanted, dim=1)).abs().max() < 1e-4
