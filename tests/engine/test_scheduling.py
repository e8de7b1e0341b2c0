"""vLLM's scheduler under pressure: chunked prefill, preemption, prefix-cache hits, aborts.

The KV pool is too small for the batch, the prefill budget smaller than the prompts, prompts share
prefixes or are equal, drafts are of random length, and each token is wrong with probability 1/4.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.messages import Proposed
from paceline.verifier.engine import GenerationRequest
from tests.engine.conftest import EngineHost, prompt, speculation, start_engine, tiny_target
from tests.engine.views import check_same, view_all
from tests.fakes import FakeDrafter, Oracle, Script, oracle_of, proposed
from tests.tiny import VOCAB_SIZE

pytestmark = pytest.mark.slow
K = 5
BLOCK = 32
NUM_BLOCKS = 9
MAX_NUM_SEQS = 4


@pytest.fixture(scope="module")
def engine(tiny_folder: Path, run_folder: Path) -> Iterator[EngineHost]:
    target = tiny_target(
        tiny_folder,
        max_model_len=160,
        max_num_seqs=MAX_NUM_SEQS,
        engine_args={
            "block_size": BLOCK,
            "num_gpu_blocks_override": NUM_BLOCKS,
            "max_num_batched_tokens": 48,
            "enable_prefix_caching": True,
        },
    )
    host = start_engine(target, speculation(run_folder, "sched", K), run_folder, "sched")
    yield host
    host.close()


def requests() -> list[GenerationRequest]:
    generator = random.Random(1)
    shared = [generator.randrange(1, VOCAB_SIZE) for _ in range(2 * BLOCK)]
    made = []
    for number in range(16):
        ids = [generator.randrange(1, VOCAB_SIZE) for _ in range(generator.randrange(1, 60))]
        if number % 4 == 1:
            ids = shared + ids[:3]
        if number % 4 == 2:
            ids = [*shared, 99]  # equal prompts: all but one token come from the cache
        request = prompt(number, 1, max_tokens=generator.randrange(3, 80))
        made.append(
            GenerationRequest(
                request_id=request.request_id, prompt_token_ids=ids, sampling=request.sampling
            )
        )
    return made


def fuzzy(oracle: Oracle) -> Script:
    generator = random.Random(7)

    def script(handle: int, tokens: list[int]) -> Iterable[Proposed]:
        drafts = oracle(tokens, generator.randrange(0, K + 1))
        return [
            proposed(
                handle,
                tokens,
                [
                    t if generator.random() < 0.75 else generator.randrange(VOCAB_SIZE)
                    for t in drafts
                ],
            )
        ]

    return script


def test_chunked_prefill_preemption_and_prefix_hits(engine: EngineHost, plain: EngineHost) -> None:
    expected = view_all(plain, requests(), 4)
    # More than the pool holds: somebody is preempted whenever the four longest run together.
    lengths = sorted(
        view["usage"]["prompt_tokens"] + view["usage"]["completion_tokens"] for view in expected
    )
    assert sum(-(-length // BLOCK) for length in lengths[-MAX_NUM_SEQS:]) > NUM_BLOCKS
    # The longest continuation of a prompt knows the shorter ones.
    oracle = oracle_of(
        sorted(
            (
                (r.prompt_token_ids or []) + v["completions"][0]["token_ids"]
                for r, v in zip(requests(), expected, strict=True)
            ),
            key=len,
            reverse=True,
        )
    )
    with FakeDrafter(engine.control, fuzzy(oracle), k=K):
        for _ in range(3):
            views = view_all(engine, requests(), len(expected))
            for view, plainly in zip(views, expected, strict=True):
                check_same(view, plainly, cached=False)
        assert any(view["usage"]["cached_tokens"] for view in views)


def test_a_seeded_sample_behind_a_prompt_in_chunks(engine: EngineHost, plain: EngineHost) -> None:
    """Each chunk samples a token that is thrown away: the next one is as if it had not been."""
    wanted = [prompt(60, 120, 20, temperature=1.0, seed=5), prompt(61, 100, 20)]
    expected = plain.generate(wanted, concurrency=1)
    with FakeDrafter(engine.control, fuzzy(oracle_of([])), k=K):
        results = engine.generate(wanted, concurrency=2)
    assert [r["token_ids"] for r in results] == [r["token_ids"] for r in expected]


def test_aborts_at_every_stage_leave_the_engine_as_it_was(
    engine: EngineHost, plain: EngineHost
) -> None:
    expected = plain.generate([prompt(50, 20)], concurrency=1)[0]["token_ids"]
    oracle = oracle_of([(prompt(50, 20).prompt_token_ids or []) + expected])
    with FakeDrafter(engine.control, fuzzy(oracle), k=K) as drafter:
        # More than run at once: some wait, some prefill in chunks, some verify.
        running = [(request, engine.begin(request)) for request in long_requests(12)]
        assert drafter.opened.wait(60)
        for request, future in running[:6]:
            abort(engine, request.request_id)
            future.cancel()
        for request, future in reversed(running[6:]):
            future.cancel()
            abort(engine, request.request_id)  # twice: the cancelled task has aborted it, too
        abort(engine, "nobody-knows-this-one")
        result = engine.generate([prompt(50, 20)], concurrency=1)[0]
        assert result["token_ids"] == expected
        done = prompt(50, 20)
        engine.generate([done], concurrency=1)
        abort(engine, done.request_id)  # after its end
        result = engine.generate([prompt(50, 20)], concurrency=1)[0]
        assert result["token_ids"] == expected
        assert drafter.wait_closed(3)


def long_requests(count: int) -> list[GenerationRequest]:
    return [prompt(60 + number, 70, max_tokens=80) for number in range(count)]


def abort(host: EngineHost, request_id: str) -> None:
    inner: Any = host.engine._engine
    host.submit(inner.abort(request_id)).result(60)


def test_one_client_id_twice_at_once_and_again(engine: EngineHost, plain: EngineHost) -> None:
    one, two = prompt(70, 20), prompt(71, 30)
    expected = [r["token_ids"] for r in plain.generate([one, two], concurrency=2)]
    oracle = oracle_of(
        (r.prompt_token_ids or []) + tokens for r, tokens in zip((one, two), expected, strict=True)
    )
    same = [
        GenerationRequest(
            request_id="the-same", prompt_token_ids=r.prompt_token_ids, sampling=r.sampling
        )
        for r in (one, two)
    ]
    with FakeDrafter(engine.control, fuzzy(oracle), k=K):
        for _ in range(2):
            results = engine.generate(same, concurrency=2)
            assert [r["token_ids"] for r in results] == expected


def test_hundreds_of_requests_leave_nothing_at_the_drafter(engine: EngineHost) -> None:
    def nothing(handle: int, tokens: list[int]) -> Iterable[Proposed]:
        return [proposed(handle, tokens, [])]

    with FakeDrafter(engine.control, nothing, k=K) as drafter:
        made = [prompt(100 + number % 7, 5, max_tokens=3) for number in range(300)]
        engine.generate(made, concurrency=32)
        assert drafter.wait_closed(300)
        assert drafter.num_opened == 300
