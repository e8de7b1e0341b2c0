"""Exported blocks are what speculators' own models compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from paceline.training.block import DFlash, DSpark
from paceline.training.corpus import Batch, collate
from paceline.training.export_block import export
from paceline.training.objective import Vocabulary
from paceline.training.target import Target
from tests.unit.training.test_block import IDS, MASK, make
from tests.unit.training.tiny_states import LAYERS, tiny_states, tiny_target

NUM_SLOTS = 4


def speculators_model(kind: str, model: DFlash, target: Target, folder: Path) -> Any:
    """Returns speculators' model with the weights of an exported folder."""
    pytest.importorskip("speculators")
    from speculators import config, proposals
    from speculators.models import dflash, dspark
    from transformers import Qwen3Config

    shape = target.shape
    layers = Qwen3Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=len(model.layers),
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        rms_norm_eps=shape.rms_norm_eps,
        rope_parameters={"rope_theta": shape.rope_theta, "rope_type": "default"},
    )
    layers._attn_implementation = "eager"
    common = {
        "transformer_layer_config": layers,
        "draft_vocab_size": len(IDS),
        "block_size": NUM_SLOTS,
        "aux_hidden_state_layer_ids": list(LAYERS),
        "mask_token_id": MASK,
        "speculators_config": config.SpeculatorsConfig(
            algorithm=kind,
            proposal_methods=[
                proposals.GreedyTokenProposalConfig(speculative_tokens=NUM_SLOTS - 1)
            ],
            default_proposal_method="greedy",
            verifier=config.VerifierConfig.from_pretrained(str(target.folder)),
        ),
    }
    other: Any
    if kind == "dspark":
        other = dspark.DSparkDraftModel(dspark.DSparkSpeculatorConfig(**common, markov_rank=4))
    else:
        other = dflash.DFlashDraftModel(dflash.DFlashSpeculatorConfig(**common))
    tensors = load_file(folder / "model.safetensors")
    tensors["embed_tokens.weight"] = target.embedding
    tensors["verifier_lm_head.weight"] = tensors["lm_head.weight"]
    tensors["verifier_norm.weight"] = torch.ones(shape.hidden_size)
    missing, unexpected = other.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= {"t2d", "d2t"}
    return other.float().eval()


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_the_same_blocks(
    kind: str,
    num_layers: int,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    target = tiny_target(tmp_path_factory.mktemp("target"))
    batch = collate(tiny_states(target, 1))
    model = make(f"{kind}, {num_layers} layers" if num_layers > 1 else kind, target)
    with torch.no_grad():
        for parameter in model.parameters():  # as the export rounds them
            parameter.copy_(parameter.bfloat16())
        model.aux_scale.fill_(0.5)
    export(model, Vocabulary(IDS, target.head), target, LAYERS, NUM_SLOTS, tmp_path)
    other = speculators_model(kind, model, target, tmp_path)
    mask = torch.zeros_like(batch.tokens)
    mask[0, batch.rows[0] + 1] = 1
    with torch.no_grad():
        hidden, *_, indices = other._backbone_forward(
            batch.aux,
            batch.tokens,
            mask,
            batch.final,
            torch.zeros_like(batch.tokens),
            max_anchors=int(mask[:, :-NUM_SLOTS].sum()),
        )
        rows = indices.view(-1, NUM_SLOTS)[None, :, 0] - 1
        ours = model(batch, rows, NUM_SLOTS - model.first_slot)
    theirs = hidden.view(1, -1, NUM_SLOTS, hidden.shape[-1])[:, :, model.first_slot :]
    torch.testing.assert_close(ours, theirs)
    if isinstance(model, DSpark):
        _same_heads(model, other, ours[0], batch, rows[0])


def _same_heads(model: DSpark, other: Any, hidden: Tensor, batch: Batch, rows: Tensor) -> None:
    before = batch.tokens[0, rows[:, None] + 1 + torch.arange(NUM_SLOTS)]
    with torch.no_grad():
        theirs = other.markov_head.block_bias(prev_token_ids=before, hidden_states=hidden)
        markov = model.markov_head
        known = markov.markov_w1(before)
        torch.testing.assert_close(markov.markov_w2(known), theirs)
        features = torch.cat([hidden, known], -1)
        told = model.confidence_head.proj(features).squeeze(-1)
        torch.testing.assert_close(told, other.confidence_head(features))
