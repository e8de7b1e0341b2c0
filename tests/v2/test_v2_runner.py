"""The hooks in vLLM's V2 model runner: drafted output equals plain decoding on V1 (float32).

A draft that does not reach the runner does no harm, so that equal outputs alone prove nothing here:
the tests count accepted drafts. Without ``update_requests`` in ``_V2Hooks`` all outputs below stay
the same, and drafts are accepted only where token 0, which is then verified, happens to be right.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from paceline.messages import Proposed, RowNeeds
from paceline.verifier.engine import GenerationRequest
from tests.fakes import FakeDrafter, Oracle, noisy, oracle_of, perfect, proposed, wrong
from tests.rows import Collected, Reference, compare, is_complete
from tests.tiny import VOCAB_SIZE
from tests.v2.conftest import Child, Engines, ask, random_prompt

pytestmark = pytest.mark.slow
K = 4
LENGTHS = [7, 23, 40, 64]
NUM_TOKENS = 32


def requests() -> list[GenerationRequest]:
    return [ask(random_prompt(n, length), NUM_TOKENS) for n, length in enumerate(LENGTHS)]


def known(asked: list[GenerationRequest], results: list[Any]) -> Oracle:
    return oracle_of(
        (request.prompt_token_ids or []) + result["token_ids"]
        for request, result in zip(asked, results, strict=True)
    )


def ids(results: list[Any]) -> list[list[int]]:
    return [result["token_ids"] for result in results]


def total(results: list[Any], name: str) -> int:
    return sum(result["speculation"][name] for result in results)


def check_counts(engine: Child, results: list[Any]) -> None:
    """Each pass commits what it accepted and one token; and vLLM has counted the same drafts."""
    for result in results:
        counts = result["speculation"]
        committed = result["usage"]["completion_tokens"] - 1  # the first one ends the prefill
        # A pass whose last accepted draft is a stop commits no token behind it.
        stopped = counts["rounds"] + counts["accepted"] - committed
        assert stopped == 0 or (stopped == 1 and result["finish_reason"] == "stop")
        assert sum(counts["accepted_per_position"]) == counts["accepted"]
    assert engine.metrics["spec_decode_num_draft_tokens"] == total(results, "proposed")
    assert engine.metrics["spec_decode_num_accepted_tokens"] == total(results, "accepted")


@pytest.fixture(scope="module")
def drafted(engines: Engines) -> Iterator[Child]:
    with engines.drafted("v2", K) as child:
        yield child


@pytest.fixture(scope="module")
def expected(plain: Child) -> list[Any]:
    return plain.generate(requests(), concurrency=4)


def test_right_drafts_are_all_accepted(drafted: Child, expected: list[Any]) -> None:
    with FakeDrafter(drafted.control, perfect(known(requests(), expected), K), k=K):
        results = drafted.generate(requests(), concurrency=4)
    assert ids(results) == ids(expected)
    check_counts(drafted, results)
    for result in results:
        counts = result["speculation"]
        # 31 tokens behind the first: six passes commit 4 + 1, and the last one is never drafted.
        assert (counts["rounds"], counts["drafted_rounds"]) == (7, 6)
        assert counts["proposed"] == counts["accepted"] == 24
        assert counts["accepted_per_position"] == [6] * K


def test_wrong_drafts_are_all_rejected(drafted: Child, expected: list[Any]) -> None:
    with FakeDrafter(drafted.control, wrong(known(requests(), expected), K, VOCAB_SIZE), k=K):
        results = drafted.generate(requests(), concurrency=4)
    assert ids(results) == ids(expected)
    check_counts(drafted, results)
    assert total(results, "proposed") > 0
    assert total(results, "accepted") == 0


def test_proposals_of_mixed_lengths_in_one_pass(drafted: Child, expected: list[Any]) -> None:
    oracle = known(requests(), expected)

    def mixed(handle: int, tokens: list[int]) -> list[Proposed]:
        return [proposed(handle, tokens, oracle(tokens, handle % 4 + 1))]

    with FakeDrafter(drafted.control, mixed, k=K):
        results = drafted.generate(requests(), concurrency=4)
    assert ids(results) == ids(expected)
    check_counts(drafted, results)
    # Nothing but what was proposed is counted, and nothing that was proposed is rejected.
    assert total(results, "proposed") == total(results, "accepted")
    longest = [len(result["speculation"]["accepted_per_position"]) for result in results]
    assert sorted(longest) == [1, 2, 3, 4]


def test_a_sampled_draft_is_accepted_with_its_probability(drafted: Child, plain: Child) -> None:
    temperature = 0.9
    prompt = random_prompt(9, 12)
    greedy = plain.generate([ask(prompt, 3, logprobs=2)], concurrency=1)[0]
    script = perfect(oracle_of([prompt + greedy["token_ids"]]), K)
    # The last token is never drafted: one draft, behind the first token, where that is the greedy
    # one. Of the two tokens that top_k leaves, it is the likelier.
    asked = [ask(prompt, 3, temperature=temperature, top_k=2) for _ in range(96)]
    with FakeDrafter(drafted.control, script, k=K):
        results = drafted.generate(asked, concurrency=4)
    check_counts(drafted, results)
    proposed, accepted = total(results, "proposed"), total(results, "accepted")
    assert proposed == sum(result["token_ids"][0] == greedy["token_ids"][0] for result in results)
    p = 1 / (1 + math.exp(-greedy["top_two_gaps"][1] / temperature))
    assert abs(accepted - proposed * p) < 5 * math.sqrt(proposed * p * (1 - p))


REGEX = r'\{"side": "(left|right)", "open": (true|false)\}'
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"side": {"enum": ["left", "right"]}, "open": {"type": "boolean"}},
    "required": ["side", "open"],
    "additionalProperties": False,
}


def grammar_requests() -> list[GenerationRequest]:
    return [
        ask(random_prompt(20, 9), 60, ignore_eos=False, structured_outputs={"regex": REGEX}),
        ask(random_prompt(21, 9), 60, ignore_eos=False, structured_outputs={"json": SCHEMA}),
    ]


@pytest.mark.parametrize("behaviour", ["perfect", "wrong"])
def test_a_grammar_holds_whatever_is_drafted(drafted: Child, plain: Child, behaviour: str) -> None:
    expected = plain.generate(grammar_requests(), concurrency=2)
    oracle = known(grammar_requests(), expected)
    script = perfect(oracle, K) if behaviour == "perfect" else wrong(oracle, K, VOCAB_SIZE)
    with FakeDrafter(drafted.control, script, k=K):
        results = drafted.generate(grammar_requests(), concurrency=2)
    assert ids(results) == ids(expected)
    assert re.fullmatch(REGEX, results[0]["text"])
    for result in results:
        assert json.loads(result["text"]).keys() == SCHEMA["properties"].keys()
        assert result["finish_reason"] == "stop"
    check_counts(drafted, results)
    if behaviour == "perfect":
        assert total(results, "accepted") == total(results, "proposed") > 0
    else:
        assert total(results, "accepted") == 0


STOPS = list(range(0, VOCAB_SIZE, 3))


def stopped_requests() -> list[GenerationRequest]:
    """Every third token is a stop, and min_tokens ends at different rows of a pass."""
    return [
        ask(random_prompt(n, 9), NUM_TOKENS, stop_token_ids=STOPS, min_tokens=min_tokens)
        for n, min_tokens in ((24, 7), (25, 8), (26, 11))
    ]


@pytest.mark.parametrize("behaviour", ["perfect", "wrong"])
def test_no_stop_before_min_tokens(drafted: Child, plain: Child, behaviour: str) -> None:
    expected = plain.generate(stopped_requests(), concurrency=4)
    oracle = known(stopped_requests(), expected)
    script = perfect(oracle, K) if behaviour == "perfect" else wrong(oracle, K, VOCAB_SIZE)
    with FakeDrafter(drafted.control, script, k=K):
        results = drafted.generate(stopped_requests(), concurrency=4)
    assert ids(results) == ids(expected)
    for request, result in zip(stopped_requests(), results, strict=True):
        *before, last = result["token_ids"]
        assert len(before) >= request.sampling["min_tokens"]
        assert result["finish_reason"] == "stop" and last in STOPS and not {*before} & {*STOPS}
    check_counts(drafted, results)
    assert total(results, "proposed") > 0
    assert total(results, "accepted") == (
        total(results, "proposed") if behaviour == "perfect" else 0
    )


def test_parameters_that_are_served_undrafted_beside_drafted_requests(
    drafted: Child, plain: Child
) -> None:
    def asked() -> list[GenerationRequest]:
        biased = ask(random_prompt(31, 9), NUM_TOKENS, logit_bias={"7": 8.0, "70": 8.0})
        narrow = ask(random_prompt(32, 9), NUM_TOKENS, min_p=1.0, temperature=1.0)  # greedy
        return [biased, narrow, *requests()[:2]]

    expected = plain.generate(asked(), concurrency=4)
    with FakeDrafter(drafted.control, perfect(known(asked(), expected), K), k=K):
        results = drafted.generate(asked(), concurrency=4)
    assert ids(results) == ids(expected)
    assert {7, 70} & set(results[0]["token_ids"])
    check_counts(drafted, results)
    assert total(results[:2], "proposed") == 0
    assert total(results[2:], "proposed") == total(results, "accepted") > 0


def crowd() -> list[GenerationRequest]:
    """Prompts of all lengths, some with a common beginning, some that were there before."""
    generator = random.Random(1)
    shared = random_prompt(30, 32)
    prompts = []
    for n in range(14):
        prompt = random_prompt(40 + n, generator.randrange(1, 60))
        if n % 4 == 1:
            prompt = shared + prompt[: generator.randrange(1, 3)]
        elif n % 4 == 2:
            prompt = [*shared, n]
        prompts.append(prompt)
    return [ask(prompt, generator.randrange(3, 60)) for prompt in prompts]


def test_a_crowd_in_too_little_memory_and_its_rows(engines: Engines, plain: Child) -> None:
    expected = plain.generate(crowd(), concurrency=4)
    k = 5
    script = noisy(known(crowd(), expected), k, VOCAB_SIZE, p_wrong=0.25)
    needs = RowNeeds(aux_layers=[1, 2], final=True, kv_layers=[1])
    collected = Collected()
    scarce = {"num_gpu_blocks_override": 9, "max_num_batched_tokens": 48, "block_size": 32}
    with (
        engines.drafted("scarce", k, needs, engine_args=scarce) as engine,
        FakeDrafter(engine.control, script, k=k, needs=needs, take_rows=collected.take),
    ):
        for _ in range(2):
            results = engine.generate(crowd(), concurrency=14)
            assert ids(results) == ids(expected)
            check_counts(engine, results)
            assert 0 < total(results, "accepted") < total(results, "proposed")
            assert engine.metrics["num_preemptions"] > 0
            assert engine.metrics["prefix_cache_hits"] > 0
        whole = 2 * [
            (request.prompt_token_ids or []) + result["token_ids"]
            for request, result in zip(crowd(), expected, strict=True)
        ]
        assert collected.wait(lambda: is_complete(collected, whole))
    compare(collected, whole, Reference(engines.model, torch.float32), needs, 1e-4)


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="two ranks need two GPUs")
def test_two_ranks_accept_the_same_drafts(engines: Engines, expected: list[Any]) -> None:
    with (
        engines.drafted("ranks", K, tensor_parallel_size=2) as engine,
        FakeDrafter(engine.control, perfect(known(requests(), expected), K), k=K),
    ):
        results = engine.generate(requests(), concurrency=4)
    assert ids(results) == ids(expected)
    assert total(results, "proposed") == total(results, "accepted") == 24 * len(results)
