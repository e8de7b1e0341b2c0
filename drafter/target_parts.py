"""What a drafter borrows of the target: its embedding, its head, its last norm, its sizes.

Only these tensors are read of the target's checkpoint, by name. The names are those of decoders of
Llama's kind, alone or inside a multimodal model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.drafter.checkpoint import FLOATS, Checkpoint, text_config
from paceline.errors import ModelError

if TYPE_CHECKING:
    import torch

PREFIXES = (
    "model.",
    "model.language_model.",
    "language_model.model.",
    "model.language_model.model.",
    "language_model.",
    "",
)
"""What may stand before ``embed_tokens.weight`` and ``norm.weight``."""

HEADS = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight")


@dataclass(frozen=True, slots=True)
class TargetNames:
    """What the borrowed tensors are called in a target's checkpoint."""

    embedding: str
    lm_head: str
    """The embedding's name where the two are tied."""
    norm: str


@dataclass(frozen=True, slots=True)
class TargetParts:
    """Shape legend: V rows of the vocabulary, H hidden size."""

    embedding: torch.Tensor  # [V, H], not scaled (Gemma's layers scale what they look up)
    lm_head: torch.Tensor  # [V, H], the same tensor as the embedding where they are tied
    norm: torch.Tensor  # [H], as stored (Gemma 2, 3 and Qwen3-Next multiply by 1 + it)
    rms_norm_eps: float
    num_layers: int
    hidden_size: int
    vocab_size: int
    """V: the rows of embedding and head, padding included."""
    config: Mapping[str, Any]
    """The target's, its text part on top."""


def target_names(target: Checkpoint) -> TargetNames:
    """Finds the borrowed tensors.

    Raises:
        ModelError: one is not there, or has another shape or dtype than it should.
    """
    config = text_config(target.config)
    embedding = _first(target, [f"{prefix}embed_tokens.weight" for prefix in PREFIXES], "embedding")
    prefix = embedding.removesuffix("embed_tokens.weight")
    norm = _first(target, [f"{prefix}norm.weight"], "last norm")
    heads = [name for name in HEADS if name in target.headers]
    tied = config.get("tie_word_embeddings")
    if tied is False and not heads:
        _first(target, list(HEADS), "head, and its config says that it is not the embedding")
    lm_head = embedding if tied or not heads else heads[0]
    hidden_size = config.get("hidden_size")
    for name in (embedding, lm_head, norm):
        header = target.headers[name]
        if header.dtype not in FLOATS:
            raise ModelError(
                f"the target's tensor {name} is quantized ({header.dtype}), which a draft cannot "
                "share: use a checkpoint that keeps embedding, head and norm in 16 or 32 bits"
            )
        if header.shape[-1:] != (hidden_size,) or len(header.shape) != (1 if name == norm else 2):
            raise ModelError(
                f"the target's tensor {name} has the shape {list(header.shape)}, but its config "
                f"says hidden_size {hidden_size}: copy the target's folder again"
            )
    if target.headers[embedding].shape != target.headers[lm_head].shape:
        raise ModelError(
            f"the target's embedding and head have the shapes "
            f"{list(target.headers[embedding].shape)} and {list(target.headers[lm_head].shape)}, "
            "which should be equal: copy the target's folder again"
        )
    return TargetNames(embedding, lm_head, norm)


def load_target_parts(
    target: Checkpoint, device: torch.device | str, dtype: torch.dtype
) -> TargetParts:
    """Reads the borrowed tensors; a tied head is not read twice.

    Raises:
        ModelError: the target is no decoder of Llama's kind.
    """
    names = target_names(target)
    config = text_config(target.config)
    num_layers = config.get("num_hidden_layers")
    if not isinstance(num_layers, int):
        raise ModelError(
            f"{target.folder / 'config.json'} has no num_hidden_layers: name the folder of a "
            "decoder"
        )
    tensors = target.tensors(device, dtype)
    embedding = tensors[names.embedding]
    lm_head = embedding if names.lm_head == names.embedding else tensors[names.lm_head]
    return TargetParts(
        embedding=embedding,
        lm_head=lm_head,
        norm=tensors[names.norm],
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        num_layers=num_layers,
        hidden_size=embedding.shape[1],
        vocab_size=embedding.shape[0],
        config=config,
    )


def _first(target: Checkpoint, names: list[str], what: str) -> str:
    for name in names:
        if name in target.headers:
            return name
    raise ModelError(
        f"the target in {target.folder} has no {what} by a known name ({', '.join(names)}): a "
        "draft that shares it needs a decoder of Llama's kind"
    )
