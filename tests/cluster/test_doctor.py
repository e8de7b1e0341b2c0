"""``paceline doctor`` on this machine, with its real vLLM, Ray and model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.conftest import Finished

pytestmark = [pytest.mark.slow, pytest.mark.ray]
CONFIG = str(Path(__file__).parents[2] / "ray_configs" / "quickstart.yaml")


def test_an_engine_argument_that_this_vllm_does_not_know(
    paceline: Callable[..., Finished], write_config: Callable[..., str]
) -> None:
    target = {"model": "smollm2-135m-instruct", "dtype": "float32", "max_model_len": 512}
    config = write_config(target={**target, "engine_args": {"enforce_eagre": True}})
    done = paceline("doctor", "--config", config)
    assert done.code == 2, done.out + done.err
    [failed] = [line for line in done.out.splitlines() if line.startswith("fail")]
    sentence = "target.engine_args.enforce_eagre is no argument of vLLM's; did you mean "
    assert failed == f"fail  engine_args: {sentence}'enforce_eager'?"


def test_the_self_test_accepts_the_target_s_own_drafts(paceline: Callable[..., Finished]) -> None:
    done = paceline("doctor", "--config", CONFIG, "--self-test")
    assert done.code == 0, done.out + done.err
    lines = done.out.splitlines()
    assert not [line for line in lines if line.startswith("fail")]
    assert "vLLM: 0.32" in done.out
    assert lines[-1].startswith("ok    self-test: the target accepted ")
    assert "(100.0%) in float32" in lines[-1] or " (99." in lines[-1]
    assert lines[-1].endswith(", and 0 of 96 tokens differ from plain decoding")
