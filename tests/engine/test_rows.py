"""Rows out of the V1 runner equal Hugging Face's hidden states, for every committed position.

The pool is too small for the batch, the prefill budget smaller than the prompts, prompts share
prefixes or are equal, drafts are of random length and often wrong.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.errors import ModelError
from paceline.messages import RowNeeds
from paceline.verifier.engine import GenerationRequest
from paceline.verifier.environment import engine_environment
from paceline.verifier.vllm_rows import check_caches, give_states_away
from tests.engine.conftest import EngineHost, prompt, speculation, start_engine, tiny_target
from tests.fakes import FakeDrafter, noisy, oracle_of
from tests.rows import Collected, Reference, compare, distances, from_model, is_complete
from tests.tiny import VOCAB_SIZE

pytestmark = pytest.mark.slow
K = 5
BLOCK = 32
OFFER = RowNeeds(aux_layers=[0, 1, 2], final=True, kv_layers=[0, 1])


@pytest.fixture(scope="module")
def engine(tiny_folder: Path, run_folder: Path) -> Iterator[EngineHost]:
    target = tiny_target(
        tiny_folder,
        max_model_len=160,
        max_num_seqs=4,
        engine_args={
            "block_size": BLOCK,
            "num_gpu_blocks_override": 9,
            "max_num_batched_tokens": 48,
            "enable_prefix_caching": True,
        },
    )
    host = start_engine(target, speculation(run_folder, "rows", K, rows=OFFER), run_folder, "rows")
    yield host
    host.close()


@pytest.fixture(scope="module")
def reference(tiny_folder: Path) -> Reference:
    return Reference(tiny_folder, torch.float32)


def requests() -> list[GenerationRequest]:
    generator = random.Random(1)
    shared = [generator.randrange(1, VOCAB_SIZE) for _ in range(2 * BLOCK)]
    made = []
    for number in range(10):
        ids = [generator.randrange(1, VOCAB_SIZE) for _ in range(generator.randrange(20, 60))]
        if number % 4 == 1:
            ids = shared + ids[:3]
        if number % 4 == 2:
            ids = [*shared, 99]  # equal prompts: all but one token come from the cache
        request = prompt(number, 1, max_tokens=generator.randrange(20, 70))
        made.append(
            GenerationRequest(
                request_id=request.request_id, prompt_token_ids=ids, sampling=request.sampling
            )
        )
    return made


def texts(plain: EngineHost) -> list[list[int]]:
    return [
        (request.prompt_token_ids or []) + result["token_ids"]
        for request, result in zip(requests(), plain.generate(requests(), 4), strict=True)
    ]


def test_every_committed_row_is_the_model_s(
    engine: EngineHost, plain: EngineHost, reference: Reference
) -> None:
    whole = texts(plain)
    oracle = oracle_of(sorted(whole, key=len, reverse=True))
    collected = Collected()
    needs = RowNeeds(aux_layers=[2, 0, 1], final=True, kv_layers=[1, 0])
    with FakeDrafter(
        engine.control,
        noisy(oracle, K, VOCAB_SIZE, p_wrong=0.25),
        k=K,
        needs=needs,
        take_rows=collected.take,
    ):
        results = engine.generate(requests(), concurrency=10)
        assert [r["token_ids"] for r in results] == [
            text[len(r.prompt_token_ids or []) :] for text, r in zip(whole, requests(), strict=True)
        ]
        assert collected.wait(lambda: is_complete(collected, whole))
    assert sum(r["speculation"]["accepted"] for r in results) > 0
    assert any(r["speculation"]["accepted"] < r["speculation"]["proposed"] for r in results)
    compare(collected, whole, reference, needs, 1e-4)
    begins = [min(rows) for rows in collected.rows.values()]
    assert max(begins) == 2 * BLOCK, "nobody found its prefix in the cache"
    assert any(len(there) > 1 for rows in collected.rows.values() for there in rows.values()), (
        "nobody was preempted"
    )


def test_a_drafter_that_needs_tokens_only_gets_no_rows(
    engine: EngineHost, plain: EngineHost
) -> None:
    whole = texts(plain)[:2]
    collected = Collected()
    script = noisy(oracle_of(whole), K, VOCAB_SIZE, p_wrong=0.25)
    with FakeDrafter(engine.control, script, k=K, take_rows=collected.take):
        engine.generate(requests()[:2], concurrency=2)
    assert not collected.messages


def test_half_the_precision_comes_as_it_is(
    tiny_folder: Path, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bfloat16 on two ranks: hidden states from the first one, keys and values from both."""
    target = tiny_target(tiny_folder, dtype="bfloat16", tensor_parallel_size=2)
    for name, value in engine_environment(target, str(run_folder)).items():
        monkeypatch.setenv(name, value)
    needs = RowNeeds(aux_layers=[1], final=True, kv_layers=[1])
    collected = Collected()
    host = start_engine(target, speculation(run_folder, "half", K, rows=needs), run_folder, "half")
    try:
        script = noisy(oracle_of([]), K, VOCAB_SIZE, p_wrong=0)
        with FakeDrafter(host.control, script, k=K, needs=needs, take_rows=collected.take):
            results = host.generate(requests()[:4], concurrency=4)
            whole = [
                (request.prompt_token_ids or []) + result["token_ids"]
                for request, result in zip(requests(), results, strict=False)
            ]
            assert collected.wait(lambda: all_parts(collected, whole))
    finally:
        host.close()
    assert {t.dtype for message in collected.messages for t in message.tensors} == {"bfloat16"}
    assert {message.first_head for message in collected.messages} == {0, 1}
    join_heads(collected)
    precise = Reference(tiny_folder, torch.float32)
    rough = Reference(tiny_folder, torch.bfloat16)
    errors = distances(collected, whole, precise, needs)
    # As near to the exact states as Hugging Face's own arithmetic in this precision is.
    for name, error in distances(
        from_model(collected, whole, rough, needs), whole, precise, needs
    ).items():
        assert errors[name] <= 1.5 * error, (name, errors[name], error)


def all_parts(collected: Collected, whole: list[list[int]]) -> bool:
    """Whether both ranks' last rows are here."""
    last = [rows[max(rows)] for rows in collected.rows.values()]
    return is_complete(collected, whole) and all(len(there) == 2 for there in last)


def join_heads(collected: Collected) -> None:
    """Makes of both ranks' parts whole rows, as a drafter does."""
    for rows in collected.rows.values():
        for position, there in rows.items():
            first, second = sorted(there, key=lambda part: "final" not in part)
            assert first.keys() == {"aux", "final", "key.1", "value.1"}
            assert second.keys() == {"key.1", "value.1"}
            joined = {name: torch.cat([first[name], second[name]]) for name in second}
            rows[position] = [first | joined]


@pytest.mark.parametrize(
    ("cache_dtype", "use_mla", "reason"),
    [
        ("fp8_e4m3", False, "its cache is kept in fp8_e4m3"),
        ("auto", True, r"attention \(MLA\) keeps them compressed"),
    ],
)
def test_a_cache_that_cannot_be_read_is_refused_by_name(
    cache_dtype: str, use_mla: bool, reason: str
) -> None:
    config: Any = SimpleNamespace(
        cache_config=SimpleNamespace(cache_dtype=cache_dtype),
        model_config=SimpleNamespace(use_mla=use_mla),
    )
    with pytest.raises(ModelError, match=reason):
        check_caches(config)


def test_a_model_without_the_interface_is_refused_by_its_class() -> None:
    with pytest.raises(ModelError, match="the target's class Linear does not give"):
        give_states_away(torch.nn.Linear(1, 1), [0])
