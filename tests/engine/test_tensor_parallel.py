"""Two ranks of one target accept the same drafts: they come inside vLLM's own scheduler output."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.verifier.environment import engine_environment
from tests.engine.conftest import EngineHost, prompt, speculation, start_engine, tiny_target
from tests.fakes import FakeDrafter, oracle_of, perfect, wrong
from tests.tiny import VOCAB_SIZE

pytestmark = pytest.mark.slow
K = 3
PROMPTS = [(20, 9), (21, 30), (22, 50)]


def test_two_ranks_equal_one(
    tiny_folder: Path, run_folder: Path, plain: EngineHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [r["token_ids"] for r in plain.generate([prompt(*p) for p in PROMPTS], 3)]
    oracle = oracle_of(
        (prompt(*p).prompt_token_ids or []) + output
        for p, output in zip(PROMPTS, expected, strict=True)
    )
    target = tiny_target(tiny_folder, tensor_parallel_size=2)
    for name, value in engine_environment(target, str(run_folder)).items():
        monkeypatch.setenv(name, value)
    host = start_engine(target, speculation(run_folder, "tp", K), run_folder, "tp")
    try:
        for script in (perfect(oracle, K), wrong(oracle, K, VOCAB_SIZE)):
            with FakeDrafter(host.control, script, k=K):
                results = host.generate([prompt(*p) for p in PROMPTS], concurrency=3)
            assert [r["token_ids"] for r in results] == expected
            counts = [r["speculation"] for r in results]
            assert all(count["proposed"] > 0 for count in counts), counts
    finally:
        host.close()
