"""The target as its own drafter: every draft is what the target itself would say.

So nearly all must be accepted, and where they are not, something between drafter and target is
wrong: positions, the KV cache, an attention kernel, tokens that mean something else. It shows what
no check of the parts shows.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import ray

from paceline.cluster.config import PacelineConfig
from paceline.cluster.finding import Finding
from paceline.cluster.report import Totals
from paceline.cluster.runtime import Runtime, Side, unwrapped
from paceline.drafter.config import DrafterConfig
from paceline.errors import ConfigError
from paceline.verifier.engine import GenerationRequest

NUM_TOKENS = 24
"""Per prompt. Two dozen go through prefill, drafted passes and a growing cache."""

PROMPTS = (
    "The capital of France is",
    "One, two, three, four, five, six,",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
)

MIN_ACCEPTED = {"float32": 0.99, "bfloat16": 0.8, "float16": 0.8}
"""By dtype of the target. Drafter and target round differently, as their kernels and shapes differ.
In float32 that decides nothing; in the 16-bit types it decides between two tokens that are nearly
as probable as each other, and one such draft costs all that follow it in its proposal. The second
figure leaves room for that; it is a choice, and how many were near-ties is not measured."""

_PATIENCE_MS = 60_000.0


def self_test(config: PacelineConfig, *, num_gpus: int, progress: Callable[[str], None]) -> Finding:
    """Runs it on this configuration's target; ``num_gpus``: how many the target may use.

    Raises:
        PacelineError: the run cannot be started, or has failed.
    """
    totals = Totals()
    side = _own_draft(config, num_gpus)
    with Runtime(config, sides=[side], progress=progress) as runtime, unwrapped():
        actor = runtime.targets[side.name]
        for result in ray.get([actor.generate.remote(request) for request in _requests()]):
            totals.add(result)
    return judge(totals, config.target.dtype)


def judge(totals: Totals, dtype: str) -> Finding:
    """Returns what the counts say."""
    if totals.drafted_rounds == 0:
        return Finding("fail", "self-test", f"none of {totals.rounds} passes was drafted")
    rate, limit = totals.accepted / totals.proposed, MIN_ACCEPTED[dtype]
    text = (
        f"the target accepted {totals.accepted} of {totals.proposed} of its own drafts "
        f"({rate:.1%}) in {dtype}"
    )
    if rate <= limit:
        advice = "drafter and target do not compute the same; see docs/troubleshooting.md"
        return Finding(
            "fail", "self-test", f"{text}, where more than {limit:.0%} are due; {advice}"
        )
    return Finding("ok", "self-test", text)


def _own_draft(config: PacelineConfig, num_gpus: int) -> Side:
    target = config.target
    if target.engine_args.get("skip_tokenizer_init"):
        raise ConfigError(
            "the self-test needs the target's tokenizer; leave skip_tokenizer_init out"
        )
    drafter = DrafterConfig(
        name="self-test",
        method="draft_model",
        model=target.model,
        device="cuda" if num_gpus > target.tensor_parallel_size else "cpu",
        threads=target.threads,
        num_speculative_tokens=4,
    )
    speculation = msgspec.structs.replace(config.speculation, patience_ms=_PATIENCE_MS)
    return Side(name="self-test", target=target, drafters=[drafter], speculation=speculation)


def _requests() -> list[GenerationRequest]:
    sampling = {"temperature": 0.0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    return [
        GenerationRequest(request_id=f"self-test-{number}", prompt=prompt, sampling=sampling)
        for number, prompt in enumerate(PROMPTS)
    ]
