"""DFlash and DSpark in published layouts: z-lab's (``DFlashDraftModel``) and DeepSeek's
(``Qwen3DSparkModel``), each with a draft vocabulary of its own, which ``d2t`` gives: target id
minus draft id, by draft id. The embedding is the target's and is not written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.training.block import DFlash, DSpark
from paceline.training.export import llama_config, write
from paceline.training.objective import Vocabulary
from paceline.training.target import Target


def export(
    model: DFlash,
    vocabulary: Vocabulary,
    target: Target,
    aux_layers: tuple[int, ...],
    max_tokens: int,
    folder: Path,
) -> None:
    """Writes the draft in bfloat16.

    Args:
        aux_layers: The layers whose inputs the auxiliary states are.
        max_tokens: The most drafts of a block that were trained.
    """
    tensors = _tensors(model, vocabulary)
    config = {
        **llama_config(target, model.shape),
        "model_type": "qwen3",
        "num_hidden_layers": len(model.layers),
    }
    config["draft_vocab_size"] = len(vocabulary.ids)
    config["num_target_layers"] = target.num_layers
    config["block_size"] = model.first_slot + max_tokens
    # Both layouts name the layers whose outputs they are.
    block: dict[str, Any] = {
        "mask_token_id": model.mask_token,
        "target_layer_ids": [layer - 1 for layer in aux_layers],
    }
    if isinstance(model, DSpark):
        config["architectures"] = ["Qwen3DSparkModel"]
        config |= block
        config |= {
            "markov_rank": model.markov_head.markov_w1.embedding_dim,
            "markov_head_type": "vanilla",
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
            "sample_from_anchor": True,
        }
    else:
        config["architectures"] = ["DFlashDraftModel"]
        config["dflash_config"] = block
    write(folder, tensors, config)


def _tensors(model: DFlash, vocabulary: Vocabulary) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = dict(model.state_dict())
    tensors["fc.weight"] = tensors["fc.weight"] * tensors.pop("aux_scale")
    tensors["lm_head.weight"] = vocabulary.head
    tensors["d2t"] = vocabulary.ids - torch.arange(
        len(vocabulary.ids), device=vocabulary.ids.device
    )
    return tensors
