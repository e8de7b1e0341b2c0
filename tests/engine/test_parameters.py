"""Every sampling parameter that vLLM has: honoured as in plain decoding, or refused alike.

The table has a row for each field of ``SamplingParams``. A field that a new vLLM adds fails the
test until somebody has looked at it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from vllm.sampling_params import (
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)

from paceline.errors import InputError
from paceline.verifier.engine import GenerationRequest
from tests.engine.conftest import EngineHost, prompt, speculation, start_engine, tiny_target
from tests.engine.views import check_logprobs
from tests.fakes import FakeDrafter, oracle_of, perfect
from tests.tiny import add_tokenizer, make_tiny_llama

pytestmark = pytest.mark.slow
K = 4

TABLE: dict[str, dict[str, Any]] = {
    "n": {"n": 2, "temperature": 1.0, "seed": 3},
    "presence_penalty": {"presence_penalty": 1.0},
    "frequency_penalty": {"frequency_penalty": 1.0},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "temperature": {"temperature": 1.0, "top_k": 1},
    "watermarking": {"watermarking": True},
    "top_p": {"temperature": 1.0, "top_p": 1e-6},
    "top_k": {"temperature": 0.5, "top_k": 1},
    "min_p": {"temperature": 1.0, "min_p": 1.0},
    "seed": {"temperature": 1.0, "seed": 11},
    "stop": {"stop": ["a", "b", "c"]},
    "stop_token_ids": {"stop_token_ids": [1, 2, 3, 40, 50, 60]},
    "ignore_eos": {"ignore_eos": False},
    "max_tokens": {"max_tokens": 7},
    "min_tokens": {"min_tokens": 9, "stop_token_ids": list(range(0, 256, 5))},
    "logprobs": {"logprobs": 2},
    "prompt_logprobs": {"prompt_logprobs": 1},
    "prompt_logprob_token_ids": {"prompt_logprob_token_ids": [1, 2]},
    "prompt_logprob_start": {"prompt_logprobs": 1, "prompt_logprob_start": 3},
    "logprob_token_ids": {"logprob_token_ids": [5, 6], "logprobs": 1},
    "flat_logprobs": {"flat_logprobs": True, "logprobs": 2},
    "detokenize": {"detokenize": False},
    "skip_special_tokens": {"skip_special_tokens": False},
    "spaces_between_special_tokens": {"spaces_between_special_tokens": False},
    "include_stop_str_in_output": {"stop": ["a", "b"], "include_stop_str_in_output": True},
    "output_kind": {"output_kind": RequestOutputKind.FINAL_ONLY},
    "stream_interval": {"stream_interval": 4},
    "skip_clone": {"skip_clone": True},
    "output_text_buffer_length": {"output_text_buffer_length": 0},
    "structured_outputs": {"structured_outputs": StructuredOutputsParams(regex="[ab]{4,9}")},
    "logit_bias": {"logit_bias": {65: 3.0, 66: -5.0}},
    "allowed_token_ids": {"allowed_token_ids": [1, 2, 3, 5, 8, 13]},
    "extra_args": {"extra_args": {"anything": 1}},
    "bad_words": {"bad_words": ["a", "bc"]},
    "skip_reading_prefix_cache": {"skip_reading_prefix_cache": True},
    "thinking_token_budget": {"thinking_token_budget": 4},
    "repetition_detection": {
        "repetition_detection": RepetitionDetectionParams(max_pattern_size=4, min_count=3)
    },
    "routed_experts_prompt_start": {"routed_experts_prompt_start": 1},
    "trace_decode_token_ids": {"trace_decode_token_ids": [7, 8, 9]},
}


@pytest.fixture(scope="module")
def engines(
    tmp_path_factory: pytest.TempPathFactory, run_folder: Path
) -> Iterator[tuple[EngineHost, EngineHost]]:
    folder = make_tiny_llama(tmp_path_factory.mktemp("parameters"), eos_token_id=7)
    add_tokenizer(folder)
    target = tiny_target(folder, engine_args={"skip_tokenizer_init": False})
    plain = start_engine(target, None, run_folder, "par-plain")
    try:
        drafted = start_engine(target, speculation(run_folder, "par", K), run_folder, "par")
        try:
            yield plain, drafted
        finally:
            drafted.close()
    finally:
        plain.close()


def outcome(host: EngineHost, request: GenerationRequest) -> Any:
    """Returns all that the last output shows, or the refusal."""

    async def run() -> Any:
        latest: dict[int, Any] = {}  # with n > 1 an output may hold some of the n only
        async for output in host.engine.stream(request):
            latest |= {completion.index: completion for completion in output.outputs}
        completions = [completion for _, completion in sorted(latest.items())]
        return {
            "completions": [
                (list(c.token_ids), c.text, c.finish_reason, c.stop_reason) for c in completions
            ],
            "logprobs": [steps(c.logprobs) for c in completions],
            "prompt_logprobs": steps(output.prompt_logprobs),
        }

    try:
        return host.submit(run()).result(120)
    except InputError as error:
        return str(error)


def steps(logprobs: Any) -> Any:
    """Log probabilities position by position, in whatever class vLLM keeps them."""
    return None if logprobs is None else [logprobs[index] for index in range(len(logprobs))]


def test_the_table_has_every_parameter() -> None:
    fields = {field.name for field in msgspec.structs.fields(SamplingParams)}
    assert {name for name in fields if not name.startswith("_")} == TABLE.keys()


@pytest.mark.parametrize("name", list(TABLE))
def test_a_parameter_does_what_it_does_in_plain_decoding(
    engines: tuple[EngineHost, EngineHost], name: str
) -> None:
    plain, drafted = engines
    request = prompt(80, 24, **{"max_tokens": 20, "detokenize": True, **TABLE[name]})
    expected = outcome(plain, request)
    refused = isinstance(expected, str)
    continuations = [] if refused else [tokens for tokens, *_ in expected["completions"]]
    oracle = oracle_of((request.prompt_token_ids or []) + tokens for tokens in continuations)
    with FakeDrafter(drafted.control, perfect(oracle, K), k=K):
        result = outcome(drafted, request)
    if refused:
        assert isinstance(result, str) and name in result and name in expected
        return
    assert result["completions"] == expected["completions"]
    check_logprobs(result["prompt_logprobs"], expected["prompt_logprobs"])
    for ours, theirs in zip(result["logprobs"], expected["logprobs"], strict=True):
        check_logprobs(ours, theirs)
