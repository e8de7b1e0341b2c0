"""The real target, SmolLM2-135M-Instruct in float32, with the real drafters."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline import models
from paceline.drafter.build import build_draft_model
from paceline.drafter.config import DrafterConfig
from paceline.drafter.service import DraftService
from paceline.drafter.session import make_hello
from paceline.transport import TransportConfig
from paceline.verifier.config import TargetConfig
from paceline.verifier.engine import GenerationRequest
from tests.engine.conftest import EngineHost, speculation, start_engine

pytestmark = pytest.mark.slow
ALIAS = "smollm2-135m-instruct"
PROMPTS = Path(__file__).parents[2] / "examples" / "prompts.jsonl"
K = 4
TIE = 1e-4


@contextmanager
def serving(config: DrafterConfig, address: str) -> Iterator[None]:
    """Runs a real drafter in a thread."""
    model = build_draft_model(config, "float32", models.resolve(ALIAS, "float32"))
    hello = make_hello(
        drafter=config.name,
        incarnation=1,
        method=config.method,
        model=model,
        num_speculative_tokens=config.num_speculative_tokens,
        max_requests=config.max_requests,
    )
    service = DraftService(
        hello=hello, model=model, addresses=[address], transport=TransportConfig(), keys=None
    )
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        assert service.welcomed.wait(60)
        yield
    finally:
        service.stop()
        thread.join()


def requests(side: str, count: int, max_tokens: int) -> list[GenerationRequest]:
    lines = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    sampling = {"temperature": 0, "max_tokens": max_tokens, "logprobs": 2}
    return [
        GenerationRequest(
            request_id=f"{side}-{line['id']}", messages=line["messages"], sampling=sampling
        )
        for line in lines[:count]
    ]


@pytest.fixture(scope="module")
def target() -> TargetConfig:
    models.resolve(ALIAS, "float32")  # fetched by scripts/test; says what to run if it is not
    return TargetConfig(
        model=ALIAS, dtype="float32", max_model_len=1024, max_num_seqs=8, kv_cache_gib=0.75
    )


@pytest.fixture(scope="module")
def plain_smollm2(target: TargetConfig, run_folder: Path) -> Iterator[EngineHost]:
    host = start_engine(target, None, run_folder, "smollm2-plain")
    yield host
    host.close()


@pytest.fixture(scope="module")
def drafted_smollm2(target: TargetConfig, run_folder: Path) -> Iterator[EngineHost]:
    # The target as its own draft is slow: nothing here is about speed.
    spec = speculation(run_folder, "smollm2", K, patience_ms=60_000)
    host = start_engine(target, spec, run_folder, "smollm2")
    yield host
    host.close()


@pytest.fixture(scope="module")
def pipelined_smollm2(target: TargetConfig, run_folder: Path) -> Iterator[EngineHost]:
    spec = speculation(run_folder, "smollm2-pipelined", K, mode="pipelined")
    host = start_engine(target, spec, run_folder, "smollm2-pipelined")
    yield host
    host.close()


def check_equal(results: list[dict], expected: list[dict]) -> None:  # type: ignore[type-arg]
    """Outputs are equal, or part where plain decoding's two best tokens are a tie."""
    for result, plain in zip(results, expected, strict=True):
        ours, theirs = result["token_ids"], plain["token_ids"]
        if ours == theirs:
            continue
        position = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
        gap = plain["top_two_gaps"][position]
        assert gap < TIE, f"differs at token {position}, where the gap is {gap}"


def test_ngram_over_twenty_prompts(drafted_smollm2: EngineHost, plain_smollm2: EngineHost) -> None:
    config = DrafterConfig(name="ngram", method="ngram", num_speculative_tokens=K)
    with serving(config, drafted_smollm2.control):
        results = drafted_smollm2.generate(requests("ngram", 20, 48), concurrency=8)
    check_equal(results, plain_smollm2.generate(requests("plain", 20, 48), concurrency=8))
    assert sum(r["speculation"]["accepted"] for r in results) > 0


def test_ngram_while_the_target_verifies(
    pipelined_smollm2: EngineHost, plain_smollm2: EngineHost
) -> None:
    config = DrafterConfig(name="ngram", method="ngram", num_speculative_tokens=K)
    with serving(config, pipelined_smollm2.control):
        results = pipelined_smollm2.generate(requests("pipelined", 12, 48), concurrency=4)
    check_equal(results, plain_smollm2.generate(requests("plain-piped", 12, 48), concurrency=4))
    assert sum(r["speculation"]["accepted"] for r in results) > 0
    assert sum(r["speculation"]["hits"] for r in results) > 0


def test_the_target_as_its_own_draft_is_nearly_always_right(
    drafted_smollm2: EngineHost, plain_smollm2: EngineHost
) -> None:
    config = DrafterConfig(name="self", method="draft_model", model=ALIAS, num_speculative_tokens=K)
    with serving(config, drafted_smollm2.control):
        results = drafted_smollm2.generate(requests("self", 6, 48), concurrency=3)
    check_equal(results, plain_smollm2.generate(requests("plain-self", 6, 48), concurrency=3))
    counts = [r["speculation"] for r in results]
    proposed = sum(c["proposed"] for c in counts)
    assert proposed > 100
    assert sum(c["accepted"] for c in counts) > 0.99 * proposed
