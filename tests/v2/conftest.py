"""Engines in child processes, one with vLLM's V1 model runner and the others with V2.

On a CPU V2's kernels run in Triton's interpreter; on a machine with a GPU everything runs there.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from paceline.messages import RowNeeds
from paceline.scheduler.config import SpeculationConfig
from paceline.transport import TransportConfig
from paceline.verifier.config import TargetConfig
from paceline.verifier.engine import GenerationRequest, Speculation
from paceline.verifier.environment import MODEL_RUNNER
from tests.tiny import VOCAB_SIZE, add_tokenizer, make_tiny_llama
from tests.v2 import backend
from tests.v2.host import Setup, Work

ROOT = Path(__file__).parents[2]
MAX_MODEL_LEN = 128

_numbers = iter(range(1 << 30))


class Child:
    """One engine in a process of its own."""

    def __init__(self, setup: Setup, environment: dict[str, str]) -> None:
        self._log = Path(setup.run_folder) / f"{setup.name}.log"
        self._errors = Path(setup.run_folder) / f"{setup.name}.stderr"
        self._control = setup.speculation.control if setup.speculation else ""
        self.metrics: dict[str, float] = {}
        """vLLM's counters: what the last ``generate`` added."""
        self._totals: dict[str, float] = {}
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / "host.py")],
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._send(setup)

    @property
    def control(self) -> str:
        """Where drafters dial; none should wait for an engine that has died."""
        assert self._process.poll() is None, "the engine has died in another test"
        return self._control

    def _send(self, message: msgspec.Struct) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(message) + b"\n")
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the engine has died:\n{self._errors.read_text()[-4000:]}"
        answer: dict[str, Any] = msgspec.json.decode(line)
        return answer

    def wait_started(self) -> None:
        self._receive()

    def uses_v2(self) -> bool:
        return "Using V2 Model Runner" in self._log.read_text()

    def generate(self, requests: list[GenerationRequest], concurrency: int) -> list[Any]:
        """Completes ``requests``, so many at a time; returns their results in order."""
        self._send(Work(requests=requests, concurrency=concurrency))
        answer = self._receive()
        totals = answer["metrics"]
        self.metrics = {k: v - self._totals.get(k, 0) for k, v in totals.items()}
        self._totals = totals
        results: list[Any] = answer["results"]
        return results

    def close(self) -> None:
        """Ends the engine, and prints how often vLLM ran which captured graph."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.stdout.close()
        _, marker, table = self._log.read_text().partition("**CUDAGraph Stats:**")
        print(marker + table.partition("\n\n20")[0])


class Engines:
    """Starts the children that the tests ask for."""

    def __init__(self, model: Path, run_folder: Path, backend_folder: Path) -> None:
        self.model = model
        self._run_folder = run_folder
        self._backend_folder = backend_folder

    @contextmanager
    def plain(self) -> Iterator[Child]:
        """Plain decoding on the V1 runner: what all outputs are compared with."""
        with self._child("plain", None, {MODEL_RUNNER: "0"}, {}) as child:
            assert not child.uses_v2()
            yield child

    @contextmanager
    def drafted(
        self, name: str, k: int, rows: RowNeeds | None = None, **changes: Any
    ) -> Iterator[Child]:
        """Drafted decoding on the V2 runner."""
        speculation = Speculation(
            num_speculative_tokens=k,
            control=f"ipc://{self._run_folder}/{name}.sock",
            key_file=None,
            # Patient: a pass takes 0.1 s and more in the interpreter, and no test is about time.
            config=SpeculationConfig(patience_ms=20_000),
            transport=TransportConfig(),
            rows=rows,
        )
        # Not left to vLLM: it would fall back to V1 without an error.
        environment = {MODEL_RUNNER: "1"}
        if not torch.cuda.is_available():
            environment["TRITON_INTERPRET"] = "1"
            environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{self._backend_folder}"
        with self._child(name, speculation, environment, changes) as child:
            assert child.uses_v2()
            yield child

    @contextmanager
    def _child(
        self,
        name: str,
        speculation: Speculation | None,
        environment: dict[str, str],
        changes: dict[str, Any],
    ) -> Iterator[Child]:
        target = TargetConfig(
            model=str(self.model),
            dtype="float32",
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=4,
            kv_cache_gib=0.05,
            tensor_parallel_size=changes.get("tensor_parallel_size", 1),
            engine_args={
                "disable_log_stats": False,
                "cudagraph_metrics": True,
                **changes.get("engine_args", {}),
            },
        )
        setup = Setup(
            target=target, speculation=speculation, run_folder=str(self._run_folder), name=name
        )
        child = Child(setup, environment)
        try:
            child.wait_started()
            yield child
        finally:
            child.close()


def ask(prompt: list[int], max_tokens: int, **sampling: Any) -> GenerationRequest:
    """Returns a greedy request, unless ``sampling`` says otherwise."""
    return GenerationRequest(
        request_id=f"r{next(_numbers)}",
        prompt_token_ids=prompt,
        sampling={"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True, **sampling},
    )


def random_prompt(number: int, length: int) -> list[int]:
    """Returns the same tokens for the same arguments."""
    generator = random.Random(f"{number}/{length}")
    return [generator.randrange(1, VOCAB_SIZE) for _ in range(length)]


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    model = make_tiny_llama(tmp_path_factory.mktemp("tiny"), eos_token_id=VOCAB_SIZE - 1)
    add_tokenizer(model)
    # Not pytest's folder: a socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="pl-") as run_folder:
        yield Engines(model, Path(run_folder), backend.install(tmp_path_factory.mktemp("backend")))


@pytest.fixture(scope="session")
def plain(engines: Engines) -> Iterator[Child]:
    with engines.plain() as child:
        yield child
