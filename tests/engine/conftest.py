"""Real vLLM engines on a tiny model, shared by the tests of a module."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import tempfile
import threading
import warnings
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from paceline.messages import RowNeeds
from paceline.scheduler.config import SpeculationConfig
from paceline.transport import TransportConfig
from paceline.verifier.colocated import ColocatedSpeculation
from paceline.verifier.config import TargetConfig
from paceline.verifier.engine import GenerationRequest, Speculation, VerifierEngine
from paceline.verifier.environment import engine_environment
from tests.engine.matrix_table import matrix_table
from tests.tiny import VOCAB_SIZE, add_tokenizer, make_tiny_llama

# Before torch and vLLM are imported, in this process and in those that it starts.
os.environ.update(engine_environment(TargetConfig(model="tiny"), tempfile.gettempdir()))
with warnings.catch_warnings():
    # vLLM's own imports warn of what its dependencies deprecate.
    warnings.simplefilter("ignore")
    import vllm.v1.engine.async_llm  # noqa: F401


class EngineHost:
    """An engine and the asyncio loop that it lives in, driven from the test's thread."""

    def __init__(self, engine: VerifierEngine, control: str) -> None:
        self.engine = engine
        self.control = control
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-loop")
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Starts ``coroutine`` in the engine's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def start(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.submit(self.engine.start()).result(600)

    def begin(self, request: GenerationRequest) -> Future[Any]:
        """Submits a request and returns at once."""
        return self.submit(self.engine.generate(request))

    def generate(self, requests: list[GenerationRequest], concurrency: int) -> list[Any]:
        """Completes ``requests``, so many at a time; returns their results in order."""

        async def run() -> list[Any]:
            gate = asyncio.Semaphore(concurrency)

            async def one(request: GenerationRequest) -> Any:
                async with gate:
                    return await self.engine.generate(request)

            return await asyncio.gather(*(one(request) for request in requests))

        return list(self.submit(run()).result(600))

    def close(self) -> None:
        with warnings.catch_warnings():
            # vLLM leaves its ZeroMQ contexts to the garbage collector.
            warnings.simplefilter("ignore")
            self.submit(self.engine.close()).result(300)
            gc.collect()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Shows the exactness matrix, if it ran."""
    stats = terminalreporter.stats
    lines = matrix_table(
        (report.nodeid, outcome == "passed")
        for outcome in ("passed", "failed", "error")
        for report in stats.get(outcome, ())
    )
    if lines:
        terminalreporter.section("exactness: passed/run")
        terminalreporter.write_line("\n".join(lines))


_numbers = iter(range(1 << 30))


def prompt(number: int, length: int, max_tokens: int = 40, **sampling: Any) -> GenerationRequest:
    """Returns a request with a random prompt; equal arguments give an equal prompt."""
    if isinstance(sampling.get("structured_outputs"), dict):
        from vllm.sampling_params import StructuredOutputsParams

        sampling["structured_outputs"] = StructuredOutputsParams(**sampling["structured_outputs"])
    generator = random.Random(f"{number}/{length}")
    return GenerationRequest(
        request_id=f"r{next(_numbers)}",
        prompt_token_ids=[generator.randrange(1, VOCAB_SIZE) for _ in range(length)],
        sampling={
            "temperature": 0,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "detokenize": False,
            **sampling,
        },
    )


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_llama(tmp_path_factory.mktemp("tiny"))
    add_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def run_folder() -> Iterator[Path]:
    # Not pytest's: a socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="pl-") as folder:
        yield Path(folder)


def tiny_target(folder: Path, **changes: Any) -> TargetConfig:
    """Returns the configuration of the tiny target; it does without a tokenizer unless told."""
    values: dict[str, Any] = {
        "model": str(folder),
        "dtype": "float32",
        "max_model_len": 256,
        "max_num_seqs": 8,
        "kv_cache_gib": 0.1,
        **changes,
    }
    values["engine_args"] = {"skip_tokenizer_init": True, **changes.get("engine_args", {})}
    return TargetConfig(**values)


def speculation(
    run_folder: Path,
    name: str,
    k: int,
    patience_ms: float = 2000,
    rows: RowNeeds | None = None,
    **changes: Any,
) -> Speculation:
    """Returns what a drafted engine needs; patience is long, so that no test hangs on timing."""
    return Speculation(
        num_speculative_tokens=k,
        control=f"ipc://{run_folder}/{name}.sock",
        key_file=None,
        config=SpeculationConfig(patience_ms=patience_ms, **changes),
        transport=TransportConfig(),
        rows=rows,
    )


def start_engine(
    target: TargetConfig,
    spec: Speculation | ColocatedSpeculation | None,
    run_folder: Path,
    name: str,
) -> EngineHost:
    """Starts an engine; the caller closes it."""
    control = spec.control if isinstance(spec, Speculation) else ""
    host = EngineHost(VerifierEngine(target, spec, run_folder, name), control)
    try:
        host.start()
    except BaseException:
        host.close()
        raise
    return host


@pytest.fixture(scope="session")
def plain(tiny_folder: Path, run_folder: Path) -> Iterator[EngineHost]:
    """Plain vLLM on the tiny target: what every output is compared with."""
    host = start_engine(tiny_target(tiny_folder), None, run_folder, "plain")
    yield host
    host.close()
