"""Requests at their limits and at their ends: lengths, seeds, aborts, a drafter that asks again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.errors import InputError
from paceline.messages import Proposed
from paceline.verifier.engine import GenerationRequest
from tests.engine.conftest import EngineHost, prompt, speculation, start_engine, tiny_target
from tests.fakes import FakeDrafter, oracle_of, perfect
from tests.tiny import CHARACTERS, VOCAB_SIZE

pytestmark = pytest.mark.slow
K = 4
MAX_MODEL_LEN = 256


@pytest.fixture(scope="module")
def engine(tiny_folder: Path, run_folder: Path) -> Iterator[EngineHost]:
    target = tiny_target(
        tiny_folder, max_model_len=MAX_MODEL_LEN, engine_args={"skip_tokenizer_init": False}
    )
    # As patient as no machine needs: the counts below are exact.
    spec = speculation(run_folder, "lifecycle", K, patience_ms=60_000)
    host = start_engine(target, spec, run_folder, "lifecycle")
    yield host
    host.close()


def test_one_long_and_one_short_request_near_the_model_length(
    engine: EngineHost, plain: EngineHost
) -> None:
    # vLLM's own drafter would be skipped for the whole batch as soon as one request is this long.
    prompts = [(10, MAX_MODEL_LEN - 12, 100), (11, 20, 60)]
    expected = plain.generate([prompt(*p) for p in prompts], concurrency=2)
    oracle = oracle_of(
        (prompt(*p).prompt_token_ids or []) + result["token_ids"]
        for p, result in zip(prompts, expected, strict=True)
    )
    with FakeDrafter(engine.control, perfect(oracle, K), k=K):
        results = engine.generate([prompt(*p) for p in prompts], concurrency=2)
    assert [r["token_ids"] for r in results] == [r["token_ids"] for r in expected]
    assert results[0]["usage"]["total_tokens"] == MAX_MODEL_LEN
    for result in results:
        counts = result["speculation"]
        assert counts["accepted"] == counts["proposed"] > 0


def test_drafts_beyond_a_stop_token_are_neither_emitted_nor_counted(
    engine: EngineHost, plain: EngineHost
) -> None:
    whole = plain.generate([prompt(12, 20)], concurrency=1)[0]["token_ids"]
    oracle = oracle_of([(prompt(12, 20).prompt_token_ids or []) + whole])
    # The second draft of the second pass is the stop: pass one commits tokens 2..K+2.
    position = 1 + (K + 1) + 1
    assert whole[position] not in whole[:position]
    with FakeDrafter(engine.control, perfect(oracle, K), k=K):
        request = prompt(12, 20, stop_token_ids=[whole[position]])
        result = engine.generate([request], concurrency=1)[0]
    assert result["token_ids"] == whole[: position + 1]
    assert result["finish_reason"] == "stop"
    counts = result["speculation"]
    assert (counts["proposed"], counts["accepted"]) == (K + 2, K + 2)
    assert counts["accepted_per_position"] == [2, 2, 1, 1]


@pytest.mark.parametrize(
    ("position", "num_right", "rounds", "proposed", "per_position"),
    [
        # The first token comes with the prefill; all right, a pass commits K + 1 of them.
        (0, K, 0, 0, []),
        (5, K, 1, 4, [1, 1, 1, 1]),
        (6, K, 2, 5, [2, 1, 1, 1]),
        (8, K, 2, 7, [2, 2, 2, 1]),
        (10, K, 2, 8, [2, 2, 2, 2]),
        # Two of four right, a pass commits three; the draft that the bonus token corrects counts.
        (4, 2, 2, 5, [2, 1, 0, 0]),
        (5, 2, 2, 6, [2, 2, 0, 0]),
        (6, 2, 2, 7, [2, 2, 0, 0]),
        (1, 2, 1, 1, [1]),
    ],
)
def test_drafts_beyond_a_stop_string_are_neither_emitted_nor_counted(
    engine: EngineHost,
    plain: EngineHost,
    position: int,
    num_right: int,
    rounds: int,
    proposed: int,
    per_position: list[int],
) -> None:
    whole = plain.generate([prompt(18, 20)], concurrency=1)[0]["token_ids"]
    text = "".join(CHARACTERS[token] for token in whole)
    stop = text[max(position - 2, 0) : position + 1]
    assert text.find(stop) + len(stop) == position + 1, "the string ends somewhere before"
    right = oracle_of([(prompt(18, 20).prompt_token_ids or []) + whole])

    def script(handle: int, tokens: list[int]) -> list[Proposed]:
        drafts = right(tokens, K)
        drafts[num_right:] = [(token + 1) % VOCAB_SIZE for token in drafts[num_right:]]
        return [Proposed(handle=handle, base_length=len(tokens), tokens=drafts, confidence=[])]

    with FakeDrafter(engine.control, script, k=K):
        request = prompt(18, 20, stop=[stop], detokenize=True)
        result = engine.generate([request], concurrency=1)[0]
    assert result["token_ids"] == whole[: position + 1]
    assert result["text"] + stop == text[: position + 1]
    assert result["finish_reason"] == "stop"
    counts = result["speculation"]
    assert (counts["rounds"], counts["drafted_rounds"]) == (rounds, rounds)
    assert counts["accepted_per_position"] == per_position
    assert (counts["proposed"], counts["accepted"]) == (proposed, sum(per_position))
    assert "before_pass" not in counts


def test_a_seeded_sample_is_not_drafted_and_equals_plain_decoding(
    engine: EngineHost, plain: EngineHost
) -> None:
    def request() -> GenerationRequest:
        return prompt(13, 20, temperature=1.0, seed=7)

    expected = plain.generate([request()], concurrency=1)[0]
    oracle = oracle_of([(prompt(13, 20).prompt_token_ids or []) + expected["token_ids"]])
    with FakeDrafter(engine.control, perfect(oracle, K), k=K) as drafter:
        result = engine.generate([request()], concurrency=1)[0]
        assert drafter.num_opened == 0
    assert result["token_ids"] == expected["token_ids"]
    assert result["speculation"]["proposed"] == 0


def test_a_request_that_cannot_be_served_harms_no_other(
    engine: EngineHost, plain: EngineHost
) -> None:
    expected = plain.generate([prompt(14, 20)], concurrency=1)[0]["token_ids"]
    good = engine.begin(prompt(14, 20))
    with pytest.raises(InputError, match=r"256"):
        engine.generate([prompt(15, MAX_MODEL_LEN + 1)], concurrency=1)
    with pytest.raises(InputError, match="temperature"):
        engine.generate([prompt(15, 5, temperature=-1)], concurrency=1)
    with pytest.raises(InputError, match="no_such_parameter"):
        engine.generate([prompt(15, 5, no_such_parameter=1)], concurrency=1)
    assert good.result(60)["token_ids"] == expected


def test_an_abort_closes_the_request_at_the_drafter(engine: EngineHost) -> None:
    def nothing(handle: int, tokens: list[int]) -> list[Proposed]:
        return [Proposed(handle=handle, base_length=len(tokens), tokens=[], confidence=[])]

    with FakeDrafter(engine.control, nothing, k=K) as drafter:
        running = engine.begin(prompt(16, 10, max_tokens=240))
        assert drafter.opened.wait(60)
        running.cancel()
        assert drafter.wait_closed(1)


def test_hostile_proposals_change_nothing_but_speed(engine: EngineHost, plain: EngineHost) -> None:
    expected = plain.generate([prompt(17, 20)], concurrency=1)[0]["token_ids"]

    def hostile(handle: int, tokens: list[int]) -> list[Proposed]:
        def claim(handle: int, base: int, drafts: list[int]) -> Proposed:
            return Proposed(handle=handle, base_length=base, tokens=drafts, confidence=[])

        return [
            claim(handle, len(tokens), [VOCAB_SIZE + 7]),
            claim(handle, len(tokens), [0] * (K + 1)),
            claim(handle, len(tokens) + 1, [1, 2]),
            claim(handle, 0, [1, 2]),
            claim(handle + 1, len(tokens), [1, 2]),
            claim(handle, len(tokens), [5] * K),
            claim(handle, len(tokens), [6] * K),
        ]

    with FakeDrafter(engine.control, hostile, k=K):
        result = engine.generate([prompt(17, 20)], concurrency=1)[0]
    assert result["token_ids"] == expected
