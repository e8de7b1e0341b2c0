"""Short ways to make what the tests of bench/ are about."""

from __future__ import annotations

from typing import Any

from paceline.bench.matrix import Contender
from paceline.bench.store import Difference, Measurement, RequestRecord
from paceline.bench.systems import PLAIN, System
from paceline.cluster.config import PacelineConfig
from paceline.drafter.config import DrafterConfig
from paceline.verifier.config import TargetConfig

PLAIN_CONTENDER = Contender(system=PLAIN, dtype="float32", num_speculative_tokens=None)
NGRAM = System(kind="paceline", drafter="ngram", mode="lockstep")
NGRAM_CONTENDER = Contender(system=NGRAM, dtype="float32", num_speculative_tokens=2)
SCRIPTED_CONTENDER = Contender(
    system=System(kind="paceline", drafter="sim", mode="pipelined"),
    dtype="float32",
    num_speculative_tokens=4,
)


def config(*drafters: DrafterConfig, **target: Any) -> PacelineConfig:
    """Returns a configuration with these drafters, by default one named ngram."""
    return PacelineConfig(
        target=TargetConfig(model="smollm2-135m-instruct", **target),
        drafters=list(drafters) or [DrafterConfig(name="ngram", method="ngram")],
    )


def counts(**changes: Any) -> dict[str, Any]:
    """Returns a request's counts as Paceline reports them in lockstep."""
    return {
        "method": "ngram",
        "rounds": 4,
        "drafted_rounds": 2,
        "proposed": 4,
        "accepted": 3,
        "accepted_per_position": [2, 1],
        "holds": 0,
        "stale": 0,
        "hits": None,
        "misses": None,
        "waited_s": 0.02,
        "lookup_s": 0.004,
        "schedule_s": 0.008,
        "transport_s": 0.002,
        "verify_s": 0.4,
        "hit_exposed_s": 0.0,
        "hit_verify_s": 0.0,
        **changes,
    }


def vllm_counts() -> dict[str, Any]:
    """Returns a request's counts as vLLM reports them."""
    ours = counts(rounds=None)
    names = ("rounds", "drafted_rounds", "proposed", "accepted", "accepted_per_position")
    return {name: ours[name] for name in names}


def record(*events: tuple[float, int], **changes: Any) -> RequestRecord:
    """Returns a request's record with as many tokens as its events say."""
    values: dict[str, Any] = {
        "id": "a",
        "token_ids": list(range(sum(num_new for _, num_new in events))),
        "seconds_to_first_token": events[0][0] if events else None,
        "events": list(events),
        **changes,
    }
    return RequestRecord(**values)


def measurement(
    contender: Contender,
    *requests: RequestRecord,
    seconds: float = 1.0,
    repeat: int = 0,
    group: int = 0,
    differences: list[Difference] | None = None,
) -> Measurement:
    """Returns a measurement at concurrency 1 and temperature 0."""
    return Measurement(
        group=group,
        contender=str(contender),
        concurrency=1,
        temperature=0.0,
        repeat=repeat,
        seconds=seconds,
        requests=list(requests),
        differences=differences,
    )
