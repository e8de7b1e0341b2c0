"""From a contender to the target that runs it, and what that needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from paceline import models
from paceline.bench.hit_model import expected_hit_rate
from paceline.bench.matrix import Contender
from paceline.cluster.config import PacelineConfig
from paceline.cluster.runtime import Side
from paceline.drafter.config import DrafterConfig
from paceline.errors import ConfigError, ModelError
from paceline.verifier.colocated import ColocatedSpeculation
from paceline.verifier.config import TargetConfig

PROCESS_GIB = 1.2
"""Memory of an engine's process without weights and KV cache: torch, vLLM, activations."""

WEIGHT_FILES = ("*.safetensors", "*.bin")


def side(contender: Contender, config: PacelineConfig, answers: Path) -> Side:
    """Returns what ``Runtime`` starts for a contender.

    All contenders of a dtype get the same target: threads, executor, limits.

    Args:
        answers: The file that a scripted drafter will find its answers in, an absolute path.

    Raises:
        ConfigError: vLLM cannot draft as the configuration's drafter does.
    """
    target = bench_target(config.target, contender.dtype)
    name, k = str(contender), contender.num_speculative_tokens
    if k is None:
        return Side(name=name, target=target)
    drafter = msgspec.structs.replace(
        _drafter(contender, config),
        num_speculative_tokens=k,
        # The same prompts come again and again: a shared store would know the answers by then.
        suffix_share_across_requests=False,
        scripted_answers=str(answers),
    )
    if contender.system.kind == "vllm":
        speculative_config = colocated_config(drafter, target)
        colocated = ColocatedSpeculation(speculative_config=speculative_config)
        return Side(name=name, target=target, colocated=colocated)
    speculation = msgspec.structs.replace(
        config.speculation,
        mode=contender.system.mode,
        # Several engines would write the same file.
        record=None,
    )
    return Side(name=name, target=target, drafters=[drafter], speculation=speculation)


def method(contender: Contender, config: PacelineConfig) -> str | None:
    """Returns the draft method; None: plain."""
    return None if contender.system.drafter is None else _drafter(contender, config).method


def expected_hits(contender: Contender, config: PacelineConfig) -> float | None:
    """Returns the hit rate to expect of a scripted draft; None for others, and in lockstep."""
    if contender.system.mode != "pipelined":
        return None
    drafter, k = _drafter(contender, config), contender.num_speculative_tokens
    if drafter.method != "scripted":
        return None
    assert k is not None, "only plain decoding has no K"
    return expected_hit_rate(drafter.scripted_accuracy, k, config.speculation.fanout)


def bench_target(target: TargetConfig, dtype: str) -> TargetConfig:
    """Returns the target that is measured.

    Without prefix caching: else every repeat but the first would skip the prefill of its prompts.
    """
    engine_args = {"enable_prefix_caching": False, **target.engine_args}
    return msgspec.structs.replace(target, dtype=dtype, engine_args=engine_args)


def colocated_config(drafter: DrafterConfig, target: TargetConfig) -> dict[str, Any]:
    """Returns vLLM's ``speculative_config`` that drafts as ``drafter`` does.

    Raises:
        ConfigError: there is none.
    """
    values: dict[str, Any] = {
        "method": drafter.method,
        "num_speculative_tokens": drafter.num_speculative_tokens,
    }
    match drafter.method:
        case "ngram":
            values["prompt_lookup_min"] = drafter.prompt_lookup_min
            values["prompt_lookup_max"] = drafter.prompt_lookup_max
        case "draft_model":
            assert drafter.model is not None, "checked by DrafterConfig"
            if drafter.dtype not in (None, target.dtype):
                raise ConfigError(
                    f"vllm:{drafter.name} is not possible in {target.dtype}: vLLM's draft model "
                    f"has the target's dtype, but drafters.{drafter.name}.dtype is {drafter.dtype}"
                )
            values["model"] = drafter.model
            values["draft_tensor_parallel_size"] = target.tensor_parallel_size
        case "scripted":
            raise ConfigError(
                f"vllm:{drafter.name} is not possible: vLLM drafts by no script; write "
                f"paceline:{drafter.name}"
            )
        case _:
            raise ConfigError(
                f"vllm:{drafter.name} is not possible: vLLM's own {drafter.method} cannot be "
                "measured yet; leave it out of --systems"
            )
    return values


def needed_gib(side: Side) -> float:
    """Returns the memory of one target and what drafts for it."""
    named = [(side.target.model, side.target.dtype)]
    named += [(d.model, d.dtype or side.target.dtype) for d in side.drafters if d.model]
    if side.colocated is not None and "model" in side.colocated.speculative_config:
        named.append((side.colocated.speculative_config["model"], side.target.dtype))
    weights = sum(_weights_gib(model, dtype) for model, dtype in named)
    per_rank = PROCESS_GIB + (side.target.kv_cache_gib or 1.0)
    return per_rank * side.target.tensor_parallel_size + weights


def _weights_gib(model: str, dtype: str) -> float:
    """Returns 0 for a model that is not on this machine."""
    try:
        folder = Path(models.resolve(model, dtype))
    except ModelError:
        return 0.0
    files = [file for pattern in WEIGHT_FILES for file in folder.glob(pattern)]
    return sum(file.stat().st_size for file in files) / (1 << 30)


def _drafter(contender: Contender, config: PacelineConfig) -> DrafterConfig:
    return next(d for d in config.drafters if d.name == contender.system.drafter)
