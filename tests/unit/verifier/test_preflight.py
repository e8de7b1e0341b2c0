"""What is said of a target, and what its process is given, before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline import shipped
from paceline.errors import ConfigError, ModelError
from paceline.verifier.config import TargetConfig
from paceline.verifier.environment import MODEL_RUNNER, engine_environment
from paceline.verifier.preflight import check_target, tokenizer_fingerprint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with eight heads, a context of 512, and weights of four bytes."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"num_attention_heads": 8, "max_position_embeddings": 512})
    )
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    weights = len(header).to_bytes(8, "little") + header + bytes(4)
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def target(
    folder: Path | str, *, tensor_parallel_size: int = 1, max_model_len: int | None = None
) -> TargetConfig:
    return TargetConfig(
        model=str(folder), tensor_parallel_size=tensor_parallel_size, max_model_len=max_model_len
    )


def test_a_right_folder_is_returned(folder: Path) -> None:
    assert check_target(target(folder)) == str(folder)


def test_a_hub_id_is_left_to_vllm() -> None:
    assert check_target(target("somebody/some-model", max_model_len=9)) == "somebody/some-model"


def test_a_truncated_weights_file_is_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"model\.safetensors has \d+ bytes .* says \d+: copy it"):
        check_target(target(folder))


def test_a_folder_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelError, match="'/no/such/folder' does not exist"):
        check_target(target("/no/such/folder"))


@pytest.mark.parametrize("length", [2, 511, 512])
def test_a_context_that_the_model_has_is_allowed(folder: Path, length: int) -> None:
    check_target(target(folder, max_model_len=length))


def test_a_longer_one_is_refused_with_both_numbers(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"target\.max_model_len is 513, .* 512 positions"):
        check_target(target(folder, max_model_len=513))


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_ranks_that_divide_the_heads_are_allowed(folder: Path, size: int) -> None:
    check_target(target(folder, tensor_parallel_size=size))


@pytest.mark.parametrize("size", [3, 16])
def test_ranks_that_do_not_are_refused_with_both_numbers(folder: Path, size: int) -> None:
    with pytest.raises(ConfigError, match=rf"tensor_parallel_size is {size}, .* the 8 attention"):
        check_target(target(folder, tensor_parallel_size=size))


def test_without_a_tokenizer_there_is_no_fingerprint(folder: Path) -> None:
    assert tokenizer_fingerprint(str(folder)) == ""


def test_the_fingerprint_tells_tokenizers_apart_by_content(folder: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    def fingerprint(vocabulary: dict[str, int]) -> str:
        Tokenizer(WordLevel(vocabulary, unk_token="a")).save(str(folder / "tokenizer.json"))
        return tokenizer_fingerprint(str(folder))

    one = fingerprint({"a": 0, "b": 1})
    assert one == fingerprint({"b": 1, "a": 0})
    assert one != fingerprint({"a": 1, "b": 0})
    assert len(one) == 64


@pytest.mark.parametrize(
    ("tensor_parallel_size", "threads", "own_process"), [(1, 3, "0"), (2, 1, "1")]
)
def test_the_environment_follows_the_configuration(
    tensor_parallel_size: int, threads: int, own_process: str
) -> None:
    environment = engine_environment(
        TargetConfig(model="m", tensor_parallel_size=tensor_parallel_size, threads=threads),
        run_folder="/run/folder",
    )
    assert environment["OMP_NUM_THREADS"] == str(threads)
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == own_process
    assert environment["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert environment["VLLM_NO_USAGE_STATS"] == "1"
    assert environment["TMPDIR"] == environment["VLLM_RPC_BASE_PATH"] == "/run/folder"
    assert all(isinstance(value, str) for value in environment.values())


@pytest.mark.parametrize("chosen", [None, "0", "1"])
def test_the_users_choice_of_model_runner_goes_along(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    if chosen is None:
        monkeypatch.delenv(MODEL_RUNNER, raising=False)
    else:
        monkeypatch.setenv(MODEL_RUNNER, chosen)
    assert engine_environment(TargetConfig(model="m"), "/run").get(MODEL_RUNNER) == chosen


def test_a_shipped_draft_is_no_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "models" / "tiny-draft").mkdir(parents=True)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "models")
    with pytest.raises(ModelError, match="the target tiny-draft is a draft"):
        check_target(TargetConfig(model="tiny-draft"))
