"""What a client can see of a request, and whether two of them saw the same."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import Any

import msgspec
from vllm.sampling_params import RequestOutputKind

from paceline.errors import InputError
from paceline.verifier.engine import GenerationRequest
from tests.engine.conftest import EngineHost
from tests.tiny import CHARACTERS

KINDS = (RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY)


def in_kinds(requests: Iterable[GenerationRequest], first: int) -> list[GenerationRequest]:
    """Returns ``requests``, asking for vLLM's three kinds of output in turn from ``first`` on."""
    return [
        msgspec.structs.replace(
            request,
            sampling={**request.sampling, "output_kind": KINDS[(first + number) % len(KINDS)]},
        )
        for number, request in enumerate(requests)
    ]


def view_all(host: EngineHost, requests: list[GenerationRequest], concurrency: int) -> list[Any]:
    """Completes ``requests``; returns what a client sees of each, or how it was refused."""

    async def run() -> list[Any]:
        gate = asyncio.Semaphore(concurrency)

        async def one(request: GenerationRequest) -> dict[str, Any]:
            async with gate:
                return await _view(host, request)

        return list(await asyncio.gather(*(one(request) for request in requests)))

    views: list[Any] = host.submit(run()).result(300)
    return views


async def _view(host: EngineHost, request: GenerationRequest) -> dict[str, Any]:
    kind = request.sampling.get("output_kind", RequestOutputKind.CUMULATIVE)
    completions: dict[int, dict[str, Any]] = {}
    prompt_logprobs = None
    try:
        async for output in host.engine.stream(request):
            prompt_logprobs = output.prompt_logprobs or prompt_logprobs  # a delta has them once
            for completion in output.outputs:
                seen = completions.get(completion.index)
                assert seen is None or kind != RequestOutputKind.FINAL_ONLY
                completions[completion.index] = _add(seen, completion, kind)
    except InputError as error:
        return {"refused": str(error)}
    assert output.finished
    found = [completion for _, completion in sorted(completions.items())]
    assert len(found) == request.sampling.get("n", 1)
    for completion in found:
        _check_completion(completion, request.sampling)
    return {
        "completions": found,
        "prompt_logprobs": prompt_logprobs,
        "usage": {
            "prompt_tokens": len(output.prompt_token_ids or ()),
            "completion_tokens": sum(len(completion["token_ids"]) for completion in found),
            "cached_tokens": output.num_cached_tokens,
        },
    }


def _add(seen: dict[str, Any] | None, new: Any, kind: RequestOutputKind) -> dict[str, Any]:
    """Returns all that is known of one completion, from what was and one more output."""
    ids, text, logprobs = list(new.token_ids), new.text, new.logprobs
    if seen is not None:
        assert seen["finish_reason"] is None, "an output behind the last one"
        if kind == RequestOutputKind.DELTA:
            ids, text = seen["token_ids"] + ids, seen["text"] + text
            logprobs = None if logprobs is None else [*seen["logprobs"], *logprobs]
        else:  # what was shown is never taken back
            assert ids[: len(seen["token_ids"])] == seen["token_ids"]
            assert text.startswith(seen["text"])
    return {
        "token_ids": ids,
        "text": text,
        "logprobs": None if logprobs is None else list(logprobs),
        "finish_reason": new.finish_reason,
        "stop_reason": new.stop_reason,
    }


def _check_completion(completion: dict[str, Any], sampling: dict[str, Any]) -> None:
    """Asserts that a completion's ids, text, log probabilities and reasons agree."""
    ids, logprobs, stop = completion["token_ids"], completion["logprobs"], completion["stop_reason"]
    assert 0 < len(ids) <= sampling["max_tokens"]
    assert (logprobs is not None) == ("logprobs" in sampling)
    if logprobs is not None:
        assert len(logprobs) == len(ids)
        assert all(token in step for token, step in zip(ids, logprobs, strict=True))
    if completion["finish_reason"] == "length":
        assert stop is None
    else:
        assert completion["finish_reason"] == "stop"
    if not sampling["detokenize"]:
        assert completion["text"] == ""
        return
    whole = "".join(CHARACTERS[token] for token in ids)
    if completion["finish_reason"] == "stop" and not sampling.get("include_stop_str_in_output"):
        # Cut off: a stop string, or the token that stopped it.
        end = len(stop) if isinstance(stop, str) else 1
        assert whole[len(whole) - end :] == (stop if isinstance(stop, str) else CHARACTERS[ids[-1]])
        whole = whole[: len(whole) - end]
    assert completion["text"] == whole


def check_same(view: dict[str, Any], expected: dict[str, Any], *, cached: bool = True) -> None:
    """Asserts that two views show the same.

    Args:
        view: What is looked at.
        expected: What plain decoding showed.
        cached: Whether as much of the prompt has to come from the prefix cache: not if the two
            engines ran other requests before, or preempted.
    """
    assert view.keys() == expected.keys()
    if "refused" in expected:
        assert view == expected
        return
    for key in ("prompt_tokens", "completion_tokens", *(["cached_tokens"] if cached else [])):
        assert view["usage"][key] == expected["usage"][key], key
    check_logprobs(view["prompt_logprobs"], expected["prompt_logprobs"])
    for ours, plain in zip(view["completions"], expected["completions"], strict=True):
        for key in ("token_ids", "text", "finish_reason", "stop_reason"):
            assert ours[key] == plain[key], key
        check_logprobs(ours["logprobs"], plain["logprobs"])


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
