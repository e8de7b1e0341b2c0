"""What there is to configure about a drafter."""

from __future__ import annotations

import difflib
from typing import Literal

from paceline.config import Config
from paceline.messages import MAX_BATCH_REQUESTS, MAX_SPECULATIVE_TOKENS

METHODS = {
    "ngram": "prompt lookup: continues the longest recent n-gram that occurred before; no model",
    "suffix": "suffix decoding: the most frequent continuation of what occurred before; no model",
    "draft_model": "a small causal language model with the target's vocabulary",
    "eagle3": "a head of one layer on states of a few of the target's layers",
    "dflash": "a block of drafts in one pass, on states of a few of the target's layers",
    "dspark": "DFlash with a head that chooses the drafts left to right",
    "mtp": "the block for multi-token prediction that the target brings, on its last state",
    "gemma4_mtp": "Gemma 4's assistant, on the target's last state and its keys and values",
    "scripted": "a simulated draft for measurements: right with a set probability, spends a set "
    "time; never for serving",
}
"""What each method is, for messages and docs."""

ROW_METHODS = ("eagle3", "dflash", "dspark", "mtp", "gemma4_mtp")
"""Those that draft from the target's states, row by row."""

MODEL_METHODS = ("draft_model", *ROW_METHODS)
"""Those that load a draft; ``mtp`` finds it in the target's own checkpoint if none is named."""


MAX_NAME = 100
"""Bytes. With the replica's number and the incarnation it is a ZeroMQ routing id (at most 255)."""

MAX_TREE_DEPTH = 256
"""A draft tries each length of match, and all requests of a drafter wait for it: at 256 it takes
1.4 ms in the worst case, a text of one repeated phrase."""

MAX_CACHED_REQUESTS = 100_000
"""Each takes about 2 KB, however short it is."""

MAX_CACHED_TOKENS = 100_000_000
"""About 50 GB of memory: a larger number is a slip."""


class DrafterConfig(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pool of equal drafters."""

    name: str
    """Name in logs, metrics and results; each unique."""
    method: str
    """One of ``METHODS``."""
    model: str | None = None
    """The draft: an alias, a local Hugging Face folder or a hub id; only methods with a model,
    which need it, but ``mtp``: default there is the target's own checkpoint."""
    device: Literal["cpu", "cuda"] = "cpu"
    """``cuda`` is a GPU, ROCm's included; Ray says which one."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Precision of the draft; default: the target's."""
    replicas: int = 1
    """Drafter processes; each request stays with one of them."""
    num_speculative_tokens: int = 4
    """K: tokens per proposal. 0 switches this drafter off."""
    threads: int = 1
    """CPU threads per replica."""
    max_requests: int = 64
    """Requests that one replica holds at a time; further ones run undrafted."""
    prompt_lookup_min: int = 2
    """``ngram``: the shortest n-gram that is looked up."""
    prompt_lookup_max: int = 4
    """``ngram``: the longest one; the longest match wins."""
    suffix_max_tree_depth: int = 24
    """``suffix``: the most tokens that a match and its draft have together."""
    suffix_max_spec_factor: float = 1.0
    """``suffix``: the most draft tokens per token of the match."""
    suffix_min_token_prob: float = 0.1
    """``suffix``: a draft ends where its estimated probability falls below this."""
    suffix_share_across_requests: bool = False
    """``suffix``: whether requests draft from the text of finished ones, prompts included. It must
    not be set where users must not see each other's text: speed gives it away (arXiv 2411.01076).
    """
    suffix_max_cached_requests: int = 1000
    """``suffix``: finished requests to keep for that, the least recently used are dropped."""
    suffix_max_cached_tokens: int = 500_000
    """``suffix``: the most tokens that they have together, at about 0.5 KB of memory each."""
    scripted_accuracy: float = 0.75
    """``scripted``: probability, token by token, that the draft's first choice is the target's."""
    scripted_forward_ms: float = 8.0
    """``scripted``: CPU time of one forward, which is one draft step of the whole batch."""
    scripted_answers: str | None = None
    """``scripted``: JSON lines ``{"prompt_ids": […], "token_ids": […]}``, what the target answers.
    ``paceline bench`` makes the file itself."""
    scripted_seed: int = 0
    """``scripted``: another seed is wrong at other positions."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.name.encode()) <= MAX_NAME:
            raise ValueError(f"name '{self.name}' is empty or longer than {MAX_NAME} bytes")
        if self.method not in METHODS:
            nearest = difflib.get_close_matches(self.method, METHODS, n=1, cutoff=0.5)
            hint = f"did you mean '{nearest[0]}'?" if nearest else f"known are {', '.join(METHODS)}"
            raise ValueError(f"method '{self.method}' is unknown; {hint}")
        if self.method in MODEL_METHODS and self.method != "mtp" and not self.model:
            raise ValueError(f"method {self.method} needs a model: an alias, a folder or a hub id")
        if self.method not in MODEL_METHODS and self.model:
            raise ValueError(
                f"method {self.method} has no model, but model is {self.model}; leave it out"
            )
        if not 0 <= self.num_speculative_tokens <= MAX_SPECULATIVE_TOKENS:
            raise ValueError(
                f"num_speculative_tokens is {self.num_speculative_tokens}, it lies between 0 and "
                f"{MAX_SPECULATIVE_TOKENS}"
            )
        limits = {"replicas": 1024, "threads": 1024, "max_requests": MAX_BATCH_REQUESTS}
        for name, limit in limits.items():
            if not 1 <= getattr(self, name) <= limit:
                raise ValueError(f"{name} is {getattr(self, name)}, it lies between 1 and {limit}")
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min is {self.prompt_lookup_min}, it lies between 1 and "
                f"prompt_lookup_max ({self.prompt_lookup_max})"
            )
        if not 2 <= self.suffix_max_tree_depth <= MAX_TREE_DEPTH:
            raise ValueError(
                f"suffix_max_tree_depth is {self.suffix_max_tree_depth}, it lies between 2 and "
                f"{MAX_TREE_DEPTH}"
            )
        if not 0 < self.suffix_max_spec_factor <= MAX_SPECULATIVE_TOKENS:
            raise ValueError(
                f"suffix_max_spec_factor is {self.suffix_max_spec_factor}, it lies above 0 and is "
                f"at most {MAX_SPECULATIVE_TOKENS}"
            )
        if not 0 <= self.suffix_min_token_prob <= 1:
            raise ValueError(
                f"suffix_min_token_prob is {self.suffix_min_token_prob}, it lies between 0 and 1"
            )
        limits = {
            "suffix_max_cached_requests": MAX_CACHED_REQUESTS,
            "suffix_max_cached_tokens": MAX_CACHED_TOKENS,
        }
        for name, limit in limits.items():
            if not 1 <= getattr(self, name) <= limit:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, it lies between 1 and {limit}; to share "
                    "nothing leave suffix_share_across_requests out"
                )
        if not 0 <= self.scripted_accuracy <= 1:
            raise ValueError(
                f"scripted_accuracy is {self.scripted_accuracy}, it lies between 0 and 1"
            )
        if not 0 <= self.scripted_forward_ms <= 60_000:
            raise ValueError(
                f"scripted_forward_ms is {self.scripted_forward_ms}, it lies between 0 and 60000"
            )

    @property
    def replica_names(self) -> list[str]:
        """The name of each replica."""
        if self.replicas == 1:
            return [self.name]
        return [f"{self.name}-{number}" for number in range(self.replicas)]
