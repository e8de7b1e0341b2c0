"""A user's mistakes: one sentence on stderr, exit code 2, nothing left running."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline import models
from tests.cluster.conftest import Finished
from tests.tiny import make_tiny_llama

ALIAS = "smollm2-135m-instruct"
Run = Callable[..., Finished]
Write = Callable[..., str]
NGRAM = {"name": "n", "method": "ngram"}


def check(done: Finished, *words: str) -> None:
    """One sentence that holds ``words``; progress lines may stand before it."""
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    last = done.err.strip().splitlines()[-1]
    assert last.startswith("paceline: error: ")
    for word in words:
        assert word in last, last


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


def generate(paceline: Run, config: str) -> Finished:
    return paceline("generate", "--config", config, "--prompt", "Hello")


def target(**changes: Any) -> dict[str, Any]:
    return {"model": ALIAS, "dtype": "float32", "max_model_len": 512, **changes}


def test_missing_model_folder(paceline: Run, write_config: Write, tmp_path: Path) -> None:
    config = write_config(target=target(model=str(tmp_path / "nowhere")))
    check(generate(paceline, config), "nowhere", "does not exist")


def test_truncated_model(paceline: Run, write_config: Write, tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(tiny, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    check(generate(paceline, write_config(target=target(model=str(folder)))), "model.safetensors")


def test_draft_with_another_vocabulary(paceline: Run, write_config: Write, tiny: Path) -> None:
    drafter = {"name": "d", "method": "draft_model", "model": str(tiny)}
    config = write_config(target=target(), drafters=[drafter])
    check(generate(paceline, config), "vocabulary", "256", "49152")


def test_draft_with_another_tokenizer(paceline: Run, write_config: Write, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(models.resolve(ALIAS, "float32"), folder, symlinks=True)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_bytes())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
    drafter = {"name": "d", "method": "draft_model", "model": str(folder)}
    config = write_config(target=target(), drafters=[drafter])
    check(generate(paceline, config), "another tokenizer")


def test_port_in_use(paceline: Run, write_config: Write) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        config = write_config(target=target(), drafters=[NGRAM], transport={"control": address})
        check(generate(paceline, config), address, "in use")


def test_empty_input(paceline: Run, write_config: Write, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n", encoding="utf-8")
    config = write_config(target=target())
    check(paceline("generate", "--config", config, "--input", str(empty)), "empty.jsonl", "empty")


@pytest.mark.slow
@pytest.mark.ray
def test_too_little_memory_for_the_kv_cache(paceline: Run, write_config: Write) -> None:
    # vLLM itself finds out, in the engine's process.
    config = write_config(target=target(max_model_len=8192, kv_cache_gib=0.01), drafters=[NGRAM])
    check(generate(paceline, config), "KV cache", "target.kv_cache_gib")


@pytest.mark.slow
@pytest.mark.ray
def test_more_memory_for_the_kv_cache_than_there_is(paceline: Run, write_config: Write) -> None:
    config = write_config(target=target(kv_cache_gib=100_000), drafters=[NGRAM])
    check(generate(paceline, config), "100000", "target.kv_cache_gib")


@pytest.mark.slow
@pytest.mark.ray
def test_an_engine_argument_that_vllm_does_not_know(paceline: Run, write_config: Write) -> None:
    config = write_config(target=target(engine_args={"enforce_eagre": True}))
    check(generate(paceline, config), "enforce_eagre", "enforce_eager")
