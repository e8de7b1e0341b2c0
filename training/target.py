"""The parts of a target that trainings share: its embedding, last norm, head and layers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
from safetensors import safe_open
from torch import Tensor

from paceline import models
from paceline.errors import ModelError


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a decoder of Llama's kind."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int


class Target:
    """A target's folder, whose tensors are read when they are asked for.

    Raises:
        ModelError: the folder is not a decoder of Llama's kind, in safetensors.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.config: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        index = self.folder / "model.safetensors.index.json"
        self._files: dict[str, Path] = {}
        if index.is_file():
            weight_map = json.loads(index.read_text())["weight_map"]
            self._files = {name: self.folder / file for name, file in weight_map.items()}
        else:
            file = self.folder / "model.safetensors"
            with safe_open(file, "pt") as opened:
                self._files = dict.fromkeys(opened.keys(), file)
        self.shape = self._shape()
        self.num_layers = int(self.config["num_hidden_layers"])

    def _shape(self) -> Shape:
        config = self.config
        try:
            heads = config["num_attention_heads"]
            rope = config.get("rope_parameters") or {}
            return Shape(
                hidden_size=config["hidden_size"],
                intermediate_size=config["intermediate_size"],
                num_attention_heads=heads,
                num_key_value_heads=config.get("num_key_value_heads", heads),
                head_dim=config.get("head_dim") or config["hidden_size"] // heads,
                rms_norm_eps=config["rms_norm_eps"],
                rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
                vocab_size=config["vocab_size"],
            )
        except KeyError as error:
            raise ModelError(
                f"{self.folder / 'config.json'} has no {error}: a draft is made for decoders of "
                "Llama's kind"
            ) from None

    def tensor(self, name: str) -> Tensor:
        if name not in self._files:
            raise ModelError(f"the target in {self.folder} has no tensor {name}")
        with safe_open(self._files[name], "pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    @property
    def embedding(self) -> Tensor:  # [vocab, hidden]
        return self.tensor("model.embed_tokens.weight")

    @property
    def norm(self) -> Tensor:  # [hidden]
        return self.tensor("model.norm.weight")

    @property
    def head(self) -> Tensor:  # [vocab, hidden]
        name = "lm_head.weight"
        return self.tensor(name) if name in self._files else self.embedding

    def layer(self, index: int) -> dict[str, Tensor]:
        """Returns the tensors of one layer, by their names in it."""
        prefix = f"model.layers.{index}."
        names = [name for name in self._files if name.startswith(prefix)]
        return {name.removeprefix(prefix): self.tensor(name) for name in names}


def target_folder(name: str, dtype: str) -> Path:
    """Returns the folder of a target; one of the hub is brought here, or found in the hub's cache.

    Raises:
        ModelError: it cannot be had, or is no target.
    """
    resolved = models.resolve_target(name, dtype)
    if os.path.isdir(resolved):
        return Path(resolved)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(resolved, allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:  # whatever its many parts and the network raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"the target {name} cannot be had from the hub ({reason.rstrip('.')}): check its name "
            "and the network, or name a folder that holds it"
        ) from error


def top_tokens(counts: Tensor, size: int) -> Tensor:
    """Returns the ids of the most frequent tokens, in ascending order: a draft vocabulary.

    Args:
        counts: How often each token of the target's vocabulary occurs.  # [vocab]
    """
    return counts.topk(min(size, len(counts))).indices.sort().values
