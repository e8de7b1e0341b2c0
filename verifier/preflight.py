"""What can be said about a target before anything heavy is loaded."""

from __future__ import annotations

import os

from paceline import models
from paceline.errors import ConfigError
from paceline.verifier.config import TargetConfig


def check_target(target: TargetConfig) -> str:
    """Returns the folder or hub id to load.

    Raises:
        ModelError: the model is missing, truncated, or not in the cache yet.
        ConfigError: it cannot be run as configured.
    """
    resolved = models.resolve(target.model, target.dtype)
    if not os.path.isdir(resolved):
        return resolved  # a hub id: vLLM fetches it
    config = models.read_config(resolved)
    longest = config.get("max_position_embeddings")
    if target.max_model_len and longest and target.max_model_len > longest:
        raise ConfigError(
            f"target.max_model_len is {target.max_model_len}, but {target.model} has "
            f"{longest} positions; set it to at most that"
        )
    heads = config.get("num_attention_heads")
    if heads and heads % target.tensor_parallel_size:
        raise ConfigError(
            f"target.tensor_parallel_size is {target.tensor_parallel_size}, which does not divide "
            f"the {heads} attention heads of {target.model}; choose a divisor"
        )
    return resolved


def tokenizer_fingerprint(resolved: str) -> str:
    """Returns the fingerprint of the target's tokenizer, "" where it is not at hand."""
    return models.tokenizer_fingerprint(resolved)
