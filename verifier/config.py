"""What there is to configure about the target."""

from __future__ import annotations

import math
from typing import Any, Literal

from paceline.config import Config
from paceline.messages import MAX_BATCH_REQUESTS

OWNED_ENGINE_ARGS = {
    "model": "target.model",
    "tokenizer": "target.model",
    "dtype": "target.dtype",
    "tensor_parallel_size": "target.tensor_parallel_size",
    "max_model_len": "target.max_model_len",
    "max_num_seqs": "target.max_num_seqs",
    "kv_cache_memory_bytes": "target.kv_cache_gib",
    "speculative_config": "drafters",
    "spec_method": "drafters",
    "spec_model": "drafters",
    "spec_tokens": "drafters",
    "scheduler_cls": None,
    "worker_cls": None,
    "additional_config": None,
    "async_scheduling": None,
    "pipeline_parallel_size": None,
    "data_parallel_size": None,
    "distributed_executor_backend": None,
    # Drafted rows would not see them (vLLM refuses them under speculation, too).
    "logits_processors": None,
}
"""vLLM engine arguments that are not the user's to set here, with the key to use instead."""


class TargetConfig(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The large model whose output is served, and the vLLM engine that runs it."""

    model: str
    """An alias (``paceline models list``), a local Hugging Face folder, or a hub id."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Precision of weights and KV cache. In float32 greedy output equals plain decoding token for
    token; in the 16-bit types near-ties may fall either way, in plain vLLM as well."""
    tensor_parallel_size: int = 1
    """GPUs (on CPU: processes) that share one copy of the target."""
    max_model_len: int | None = None
    """Tokens that one request may hold; default: what the model was trained for."""
    max_num_seqs: int = 16
    """Requests in one pass."""
    threads: int = 1
    """CPU threads per rank; on a GPU only the host's work uses them."""
    kv_cache_gib: float | None = None
    """Memory for the KV cache per rank; default: 1 on CPU, vLLM's own sizing on GPU."""
    engine_args: dict[str, Any] = {}
    """Further arguments of vLLM's ``AsyncEngineArgs``, passed on as they are."""

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model is empty; name an alias, a folder or a hub id")
        limits = {"tensor_parallel_size": 1024, "max_num_seqs": MAX_BATCH_REQUESTS, "threads": 1024}
        for name, limit in limits.items():
            if not 1 <= getattr(self, name) <= limit:
                raise ValueError(f"{name} is {getattr(self, name)}, it lies between 1 and {limit}")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ValueError(f"max_model_len is {self.max_model_len}, it must be at least 2")
        if self.kv_cache_gib is not None and not 0 < self.kv_cache_gib < math.inf:
            raise ValueError(f"kv_cache_gib is {self.kv_cache_gib}, it must be a number above 0")
        for name in self.engine_args:
            if name in OWNED_ENGINE_ARGS:
                instead = OWNED_ENGINE_ARGS[name]
                advice = f"set {instead} instead" if instead else "it is Paceline's to set"
                raise ValueError(f"engine_args.{name} cannot be set; {advice}")
