"""The target as its own drafter: every draft is what the target itself would say.

So nearly all must be accepted, and the outputs must be plain decoding's. Where they are not,
something between drafter and target is wrong (positions, the KV cache, an attention kernel, tokens
that mean something else), or the target's two best tokens were so close that rounding decides.
Plain decoding is asked how close they were. It shows what no check of the parts shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import ray

from paceline.cluster.config import PacelineConfig
from paceline.cluster.finding import Finding
from paceline.cluster.report import Totals
from paceline.cluster.runtime import Runtime, Side, plain_side, unwrapped
from paceline.drafter.config import DrafterConfig
from paceline.errors import ConfigError
from paceline.verifier.engine import GenerationRequest

NUM_TOKENS = 24
"""Per prompt. Two dozen go through prefill, drafted passes and a growing cache."""

NUM_DRAFTS = 4
"""K."""

PROMPTS = (
    "The capital of France is",
    "One, two, three, four, five, six,",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
)

MIN_ACCEPTED = 0.99
"""More than this part of the drafts is accepted where rounding decides nothing, as in float32."""

NEAR_TIE = {"float32": 1e-4, "bfloat16": 0.5, "float16": 0.0625}
"""By dtype of the target: two logits closer than this are a near-tie, which the shape of a batch
and the order of a sum may decide. In the 16-bit types it is four steps of the format for logits
between 16 and 32 (0.125 and 0.0156): they are rounded themselves, and come out of rounded sums."""

_PATIENCE_MS = 60_000.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What a self-test has seen."""

    totals: Totals
    num_differing: int
    """Tokens that are not plain decoding's at the same position."""
    gaps: list[float] | None
    """How far plain decoding's two best tokens are apart, in logits, where a draft was rejected and
    where an output first differs; None: it cannot be told where drafts were rejected."""


Ask = Callable[[Sequence[GenerationRequest]], list[dict[str, Any]]]
"""Sends requests to a target; returns their results in order."""


def self_test(config: PacelineConfig, *, num_gpus: int, progress: Callable[[str], None]) -> Finding:
    """Runs it on this configuration's target; ``num_gpus``: how many the target may use.

    Raises:
        PacelineError: the run cannot be started, or has failed.
    """
    # One after the other: there need not be room for two targets.
    with _running(config, _own_draft(config, num_gpus), progress) as ask:
        drafted = ask(_requests())
    with _running(config, plain_side(config), progress) as ask:
        return judge(collect(drafted, ask), config.target.dtype)


def judge(evidence: Evidence, dtype: str) -> Finding:
    """Returns what the evidence says."""
    totals, gaps = evidence.totals, evidence.gaps
    if totals.drafted_rounds == 0:
        return Finding("fail", "self-test", f"none of {totals.rounds} passes was drafted")
    rate = totals.accepted / totals.proposed
    text = (
        f"the target accepted {totals.accepted} of {totals.proposed} of its own drafts "
        f"({rate:.1%}) in {dtype}, and {evidence.num_differing} of {totals.tokens} tokens differ "
        "from plain decoding"
    )
    if rate > MIN_ACCEPTED and evidence.num_differing == 0:
        return Finding("ok", "self-test", text)
    if gaps is None:
        text += "; which drafts were rejected cannot be told from the counts"
    else:
        apart = ", ".join(f"{gap:.2g}" for gap in sorted(gaps))
        text += f"; where they part, plain decoding's two best tokens are {apart} apart"
    advice = "drafter and target do not compute the same; see docs/troubleshooting.md"
    if dtype == "float32" and rate <= MIN_ACCEPTED:
        text += f"; more than {MIN_ACCEPTED:.0%} must be accepted"
        return Finding("fail", "self-test", f"{text}: {advice}")
    bound = NEAR_TIE[dtype]
    if gaps is None or max(gaps) >= bound:
        return Finding("fail", "self-test", f"{text}; {bound:g} or more is no near-tie: {advice}")
    return Finding(
        "ok", "self-test", f"{text}, near-ties (below {bound:g}), which rounding decides"
    )


def collect(drafted: Sequence[dict[str, Any]], ask: Ask) -> Evidence:
    """Compares ``drafted``, the results of ``_requests()``, with plain decoding, which ``ask``
    reaches."""
    totals, num_differing, is_known = Totals(), 0, True
    prefixes: dict[tuple[int, ...], None] = {}
    """The tokens before each place where two do not agree; a dict as an ordered set."""
    for ours, theirs in zip(drafted, ask(_requests()), strict=True):
        totals.add(ours)
        pairs = enumerate(itertools.zip_longest(ours["token_ids"], theirs["token_ids"]))
        differing = [position for position, (one, other) in pairs if one != other]
        num_differing += len(differing)
        rejected = rejections(ours)
        is_known &= rejected is not None
        for position in (*differing[:1], *(rejected or ())):
            prefixes[*ours["prompt_token_ids"], *ours["token_ids"][:position]] = None
    sampling = {"temperature": 0.0, "max_tokens": 1, "ignore_eos": True, "logprobs": 2}
    asked = ask(
        [
            GenerationRequest(
                request_id=f"gap-{number}", prompt_token_ids=list(prefix), sampling=sampling
            )
            for number, prefix in enumerate(prefixes)
        ]
    )
    gaps = [result["top_two_gaps"][0] for result in asked]
    return Evidence(totals=totals, num_differing=num_differing, gaps=gaps if is_known else None)


def rejections(result: dict[str, Any]) -> list[int] | None:
    """Returns the positions in a detailed result's output at which a draft was rejected.

    Each output of the engine is one pass: what it accepted, and one more token. None: the counts do
    not agree with that, so an output was of two passes, or a pass had fewer drafts.
    """
    rejected = []
    length = num_proposed = num_accepted = 0
    for index, (_, num_new) in enumerate(result["events"]):
        if index:  # before that there is nothing to draft behind
            num_drafts = min(NUM_DRAFTS, NUM_TOKENS - length - 1)
            num_proposed += num_drafts
            num_accepted += num_new - 1
            if num_new <= num_drafts:
                rejected.append(length + num_new - 1)
        length += num_new
    counts = result["speculation"]
    agree = (num_proposed, num_accepted) == (counts["proposed"], counts["accepted"])
    return rejected if agree else None


@contextmanager
def _running(config: PacelineConfig, side: Side, progress: Callable[[str], None]) -> Iterator[Ask]:
    with Runtime(config, sides=[side], progress=progress) as runtime, unwrapped():
        actor = runtime.targets[side.name]
        yield lambda requests: ray.get([actor.generate.remote(request) for request in requests])


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
        num_speculative_tokens=NUM_DRAFTS,
    )
    speculation = msgspec.structs.replace(config.speculation, patience_ms=_PATIENCE_MS, record=None)
    return Side(name="self-test", target=target, drafters=[drafter], speculation=speculation)


def _requests() -> list[GenerationRequest]:
    sampling = {"temperature": 0.0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    return [
        GenerationRequest(
            request_id=f"self-test-{number}", prompt=prompt, sampling=sampling, detailed=True
        )
        for number, prompt in enumerate(PROMPTS)
    ]
