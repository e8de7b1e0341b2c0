"""What can be said about a target before anything heavy is loaded."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Collection
from typing import Any

from paceline import models
from paceline.errors import ConfigError
from paceline.verifier.config import TargetConfig

CPU_KV_CACHE_GIB = 1.0
"""Memory for the KV cache per rank on CPU where ``target.kv_cache_gib`` is not set."""

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def check_target(target: TargetConfig) -> str:
    """Returns the folder or hub id to load.

    Raises:
        ModelError: the model is missing, truncated, or not in the cache yet.
        ConfigError: it cannot be run as configured.
    """
    resolved = models.resolve_target(target.model, target.dtype)
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


def known_engine_args() -> list[str]:
    """Returns the names that ``target.engine_args`` may hold, as the installed vLLM has them."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    return [field.name for field in dataclasses.fields(AsyncEngineArgs)]


def check_engine_args(target: TargetConfig, known: Collection[str]) -> None:
    """Raises ``ConfigError`` if ``target.engine_args`` has a name that is not ``known``."""
    for name in target.engine_args:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"; did you mean '{nearest[0]}'?" if nearest else "; leave it out"
            raise ConfigError(f"target.engine_args.{name} is no argument of vLLM's{hint}")


def tokenizer_fingerprint(resolved: str) -> str:
    """Returns the fingerprint of the target's tokenizer, "" where it is not at hand."""
    return models.tokenizer_fingerprint(resolved)


def check_kv_cache(target: TargetConfig, resolved: str, *, is_cpu: bool) -> str:
    """Returns what the longest request takes of the KV cache, as far as the folder tells.

    Raises:
        ConfigError: it does not fit in ``target.kv_cache_gib``.
    """
    config = models.read_config(resolved)
    per_token = kv_bytes_per_token(config, target)
    length = target.max_model_len or config.get("max_position_embeddings")
    if per_token is None or not length:
        return "its kind of cache is sized by vLLM at the start"
    needed = per_token * length / (1 << 30)
    limit = target.kv_cache_gib or (CPU_KV_CACHE_GIB if is_cpu else None)
    if limit is None:
        return f"a request of {length} tokens takes {needed:.2f} GiB per rank; vLLM sizes the cache"
    if needed > limit:
        raise ConfigError(
            f"a request of {length} tokens takes {needed:.2f} GiB of KV cache per rank, but there "
            f"are {limit:g} GiB; raise target.kv_cache_gib or lower target.max_model_len"
        )
    return (
        f"a request of {length} tokens takes {needed:.2f} of {limit:g} GiB per rank: "
        f"{int(limit / needed)} at a time, if all are that long"
    )


def kv_bytes_per_token(config: dict[str, Any], target: TargetConfig) -> int | None:
    """Returns the bytes of one token's keys and values on one rank; None: not only attention."""
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    kinds = set(config.get("layer_types") or ()) - {"full_attention", "sliding_attention"}
    if not layers or not heads or kinds or "kv_lora_rank" in config:
        return None
    head_size = config.get("head_dim") or config.get("hidden_size", 0) // heads
    kv_heads = config.get("num_key_value_heads") or heads
    # Where there are fewer heads than ranks, each rank keeps one.
    heads_per_rank = max(1, kv_heads // target.tensor_parallel_size)
    return int(2 * layers * heads_per_rank * head_size * _ITEM_BYTES[target.dtype])
