"""kill -9 of the drafter in mid-generation: every token right, and drafts again afterwards."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

from paceline.cluster.config import PacelineConfig
from paceline.cluster.runtime import Runtime, drafted_side, plain_side
from paceline.drafter.config import DrafterConfig
from paceline.scheduler.config import SpeculationConfig
from paceline.verifier.config import TargetConfig
from paceline.verifier.engine import GenerationRequest
from tests.tiny import VOCAB_SIZE, make_tiny_llama

pytestmark = [pytest.mark.slow, pytest.mark.ray]
NUM_REQUESTS = 24


def requests(wave: str, side: str) -> list[GenerationRequest]:
    generator = random.Random(wave)
    return [
        GenerationRequest(
            request_id=f"{wave}-{side}-{number}",
            prompt_token_ids=[generator.randrange(1, VOCAB_SIZE) for _ in range(20)],
            sampling={
                "temperature": 0,
                "max_tokens": 200,
                "ignore_eos": True,
                "detokenize": False,
            },
        )
        for number in range(NUM_REQUESTS)
    ]


def finish(actor: Any, wave: str, side: str) -> list[dict[str, Any]]:
    refs = [actor.generate.remote(request) for request in requests(wave, side)]
    results: list[dict[str, Any]] = ray.get(refs)
    return results


def process_id(drafter: Any) -> int:
    """The drafter's process, waiting for Ray to restart it if it has just died."""
    while True:
        try:
            return int(ray.get(drafter.process_id.remote(), timeout=60))
        except RayActorError:
            continue


def test_kill_nine_in_mid_generation(tmp_path: Path) -> None:
    folder = str(make_tiny_llama(tmp_path / "tiny"))
    config = PacelineConfig(
        target=TargetConfig(
            model=folder,
            dtype="float32",
            max_model_len=256,
            max_num_seqs=4,
            kv_cache_gib=0.1,
            engine_args={"skip_tokenizer_init": True},
        ),
        drafters=[
            DrafterConfig(name="self", method="draft_model", model=folder, num_speculative_tokens=3)
        ],
        speculation=SpeculationConfig(patience_ms=1000),
    )
    sides = [drafted_side(config), plain_side(config)]
    with Runtime(config, sides=sides, progress=print) as runtime:
        drafter = runtime.drafters[0]
        victim = process_id(drafter)
        drafted, plain_target = runtime.targets["target"], runtime.targets["plain"]
        pending = [drafted.generate.remote(r) for r in requests("first", "drafted")]
        done, rest = ray.wait(pending, num_returns=2)
        assert rest, "all were done before the drafter could be killed"
        os.kill(victim, signal.SIGKILL)
        results = ray.get(pending)
        plain = finish(plain_target, "first", "plain")
        assert [r["token_ids"] for r in results] == [r["token_ids"] for r in plain]
        assert sum(r["speculation"]["accepted"] for r in ray.get(done)) > 0
        num_drafted = sum(r["speculation"]["drafted_rounds"] for r in results)
        rounds = sum(r["speculation"]["rounds"] for r in results)
        assert num_drafted < rounds, "nothing ran undrafted: the drafter was not missed"

        assert process_id(drafter) != victim
        while not ray.get(drafter.wait_welcomed.remote(1)):
            runtime.check_drafters()
        again = finish(drafted, "second", "drafted")
        assert all(r["speculation"]["accepted"] > 0 for r in again)
        plain = finish(plain_target, "second", "plain")
        assert [r["token_ids"] for r in again] == [r["token_ids"] for r in plain]
