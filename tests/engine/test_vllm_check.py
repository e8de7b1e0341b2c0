"""What the installed vLLM must have, and how it is said what it lacks."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from paceline.cluster.resume import FREE_ENGINE_ARGS
from paceline.errors import EnvironmentError_
from paceline.verifier.config import OWNED_ENGINE_ARGS
from paceline.verifier.environment import MODEL_RUNNER
from paceline.verifier.preflight import known_engine_args
from paceline.verifier.vllm_check import NEEDED, check_vllm
from tests.engine.conftest import EngineHost

pytestmark = pytest.mark.slow


def test_the_installed_vllm_has_it_all() -> None:
    check_vllm()


def test_engine_arguments_that_are_known_by_name_are_vllm_s() -> None:
    known = set(known_engine_args())
    assert known >= FREE_ENGINE_ARGS
    assert known >= OWNED_ENGINE_ARGS.keys()
    speculative = {name for name in known if name.startswith(("spec_", "speculative"))}
    assert speculative <= OWNED_ENGINE_ARGS.keys()


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, name, _ in NEEDED])
def test_each_symbol_is_missed(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    monkeypatch.setattr(f"{module}.{name}", None)  # deleted, an interface's would be found
    with pytest.raises(EnvironmentError_, match=rf"has no {module}\.{name} .* install vLLM 0\.32"):
        check_vllm()


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.version.__version__", "0.33.1")
    with pytest.raises(EnvironmentError_, match=r"vLLM 0\.33\.1 is installed"):
        check_vllm()


def test_v2_without_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODEL_RUNNER, "1")
    monkeypatch.setattr("vllm.triton_utils.HAS_TRITON", False)
    with pytest.raises(EnvironmentError_, match=f"unset {MODEL_RUNNER}"):
        check_vllm()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU gets what vLLM chooses")
def test_a_cpu_gets_v1_unless_told_otherwise(plain: EngineHost) -> None:
    assert os.environ[MODEL_RUNNER] == "0"


def test_a_v2_runner_that_keeps_drafts_elsewhere_is_refused() -> None:
    from paceline.verifier.vllm_worker import _V2Hooks

    runner = SimpleNamespace(
        max_num_reqs=4, num_speculative_steps=3, req_states=SimpleNamespace(), speculator=None
    )
    with pytest.raises(EnvironmentError_, match=r"no req_states\.draft_tokens of shape \[4, 3\]"):
        _V2Hooks.check_and_prepare(runner)  # type: ignore[arg-type]


def test_drafts_are_filled_up_and_hold_no_placeholder() -> None:
    from paceline.verifier.vllm_worker import put_drafts

    table = torch.full((4, 3), 99)
    drafts = {"a": [7, 8, 9], "b": [5], "c": [-1, -1, -1]}
    put_drafts(table, drafts, {"a": 2, "b": 0, "c": 1, "other": 3})
    assert table.tolist() == [[5, 0, 0], [0, 0, 0], [7, 8, 9], [99, 99, 99]]
