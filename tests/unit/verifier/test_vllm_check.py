"""The search for what the hooks need of vLLM, on modules that are always there."""

from __future__ import annotations

import pytest

from paceline.verifier.vllm_check import NEEDED, Symbol, first_missing

PRESENT: Symbol = ("json", "JSONDecoder.decode", ("s",))


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        (("no_such_module.runner", "Runner.run", ()), "no_such_module.runner.Runner.run"),
        (("json", "NoSuchClass.decode", ()), "json.NoSuchClass.decode"),
        (("json", "JSONDecoder.no_such_method", ()), "json.JSONDecoder.no_such_method"),
        (("json", "JSONDecoder.decode", ("s", "t")), "json.JSONDecoder.decode(s, t)"),
    ],
)
def test_what_is_missing_is_named(symbol: Symbol, name: str) -> None:
    assert first_missing([PRESENT, symbol, PRESENT]) == name


def test_nothing_is_missing() -> None:
    assert first_missing([PRESENT, ("json", "dumps", ("obj",))]) is None


def test_both_runners_are_looked_at() -> None:
    modules = {module for module, _, _ in NEEDED}
    assert {"vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"} <= modules
