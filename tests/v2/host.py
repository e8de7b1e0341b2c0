"""A process with one engine: requests come in on stdin and results go out on stdout, as JSON lines.

The environment decides on the model runner, and has to be there before vLLM is imported: this is
why these engines do not live in the tests' own process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import msgspec

from paceline.verifier.config import TargetConfig
from paceline.verifier.engine import GenerationRequest, Speculation, VerifierEngine
from paceline.verifier.environment import engine_environment


class Setup(msgspec.Struct):
    """The first line."""

    target: TargetConfig
    speculation: Speculation | None
    run_folder: str
    name: str


class Work(msgspec.Struct):
    """Every further line."""

    requests: list[GenerationRequest]
    concurrency: int


async def serve(answers: TextIO) -> None:
    setup = msgspec.json.decode(sys.stdin.readline(), type=Setup)
    os.environ.update(engine_environment(setup.target, setup.run_folder))
    engine = VerifierEngine(setup.target, setup.speculation, Path(setup.run_folder), setup.name)
    await engine.start()
    try:
        print("{}", file=answers, flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            work = msgspec.json.decode(line, type=Work)
            results = await generate(engine, work)
            answer = {"results": results, "metrics": metrics()}
            print(msgspec.json.encode(answer).decode(), file=answers, flush=True)
        await engine._engine.do_log_stats()
    finally:
        await engine.close()


async def generate(engine: VerifierEngine, work: Work) -> list[dict[str, Any]]:
    gate = asyncio.Semaphore(work.concurrency)

    async def one(request: GenerationRequest) -> dict[str, Any]:
        async with gate:
            return await engine.generate(restored(request))

    return list(await asyncio.gather(*(one(request) for request in work.requests)))


def restored(request: GenerationRequest) -> GenerationRequest:
    """Makes of a request's sampling what JSON cannot carry: numbers as keys, vLLM's own type."""
    from vllm.sampling_params import StructuredOutputsParams

    sampling = dict(request.sampling)
    if "logit_bias" in sampling:
        sampling["logit_bias"] = {int(k): v for k, v in sampling["logit_bias"].items()}
    if "structured_outputs" in sampling:
        sampling["structured_outputs"] = StructuredOutputsParams(**sampling["structured_outputs"])
    return msgspec.structs.replace(request, sampling=sampling)


def metrics() -> dict[str, float]:
    """Returns vLLM's counters since the start, by their names without prefix and suffix."""
    from prometheus_client import REGISTRY

    return {
        sample.name.removeprefix("vllm:").removesuffix("_total"): sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name.startswith("vllm:") and sample.name.endswith("_total")
    }


if __name__ == "__main__":
    # Only answers go to stdout, whatever the libraries print.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asyncio.run(serve(answers))
