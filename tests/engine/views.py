"""What a client can see of a request, and whether two of them saw the same."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from paceline.verifier.engine import GenerationRequest
from tests.engine.conftest import EngineHost


def view_all(host: EngineHost, requests: list[GenerationRequest], concurrency: int) -> list[Any]:
    """Completes ``requests``; returns what a client sees of each, the stream included."""

    async def one(request: GenerationRequest, gate: asyncio.Semaphore) -> dict[str, Any]:
        async with gate:
            streamed: list[int] = []
            text = ""
            async for output in host.engine.stream(request):
                completion = output.outputs[0]
                # Cumulative: what was shown is never taken back.
                assert list(completion.token_ids[: len(streamed)]) == streamed
                assert completion.text.startswith(text)
                streamed, text = list(completion.token_ids), completion.text
            return {
                "token_ids": list(completion.token_ids),
                "text": completion.text,
                "finish_reason": completion.finish_reason,
                "stop_reason": completion.stop_reason,
                "logprobs": completion.logprobs,
                "prompt_logprobs": output.prompt_logprobs,
                "num_cached_tokens": output.num_cached_tokens,
            }

    async def run() -> list[Any]:
        gate = asyncio.Semaphore(concurrency)
        return list(await asyncio.gather(*(one(request, gate) for request in requests)))

    views: list[Any] = host.submit(run()).result(300)
    return views


def check_same(view: dict[str, Any], expected: dict[str, Any]) -> None:
    """Asserts that two views show the same."""
    for key in ("token_ids", "text", "finish_reason", "stop_reason"):
        assert view[key] == expected[key], key
    for key in ("logprobs", "prompt_logprobs"):
        check_logprobs(view[key], expected[key])


def check_logprobs(ours: Any, theirs: Any) -> None:
    """Asserts that the same tokens are listed, with the same ranks and equal values."""
    assert (ours is None) == (theirs is None)
    for step, plain in zip(ours or (), theirs or (), strict=True):
        if plain is None:  # the first prompt token has none
            assert step is None
            continue
        assert step.keys() == plain.keys()
        for token, entry in plain.items():
            # Two batch shapes round differently, in plain vLLM as well.
            assert math.isclose(step[token].logprob, entry.logprob, abs_tol=1e-3)
            assert step[token].rank == entry.rank
