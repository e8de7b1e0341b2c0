"""How much of the KV cache a request takes, as far as a model's config.json tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import ConfigError
from paceline.verifier.config import TargetConfig
from paceline.verifier.preflight import check_kv_cache, kv_bytes_per_token

LLAMA_8B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("changes", "target", "expected"),
    [
        ({}, {}, 128 << 10),
        ({}, {"dtype": "float32"}, 256 << 10),
        ({}, {"tensor_parallel_size": 2}, 64 << 10),
        ({}, {"tensor_parallel_size": 16}, 16 << 10),
        ({"num_key_value_heads": None}, {}, 512 << 10),
        ({"head_dim": 64}, {}, 64 << 10),
        ({"layer_types": ["full_attention", "sliding_attention"]}, {}, 128 << 10),
        ({"layer_types": ["full_attention", "linear_attention"]}, {}, None),
        ({"kv_lora_rank": 512}, {}, None),
        ({"num_hidden_layers": None}, {}, None),
    ],
)
def test_bytes_per_token(
    changes: dict[str, Any], target: dict[str, Any], expected: int | None
) -> None:
    assert (
        kv_bytes_per_token({**LLAMA_8B, **changes}, TargetConfig(model="m", **target)) == expected
    )


def said(folder: Path, *, is_cpu: bool, config: dict[str, Any] = LLAMA_8B, **target: Any) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return check_kv_cache(TargetConfig(model="m", **target), str(folder), is_cpu=is_cpu)


def test_the_longest_request_is_compared_with_the_cache(tmp_path: Path) -> None:
    assert "8192 tokens takes 1.00 of 1 GiB per rank: 1 at a time" in said(tmp_path, is_cpu=True)
    with pytest.raises(ConfigError, match=r"takes 1\.00 GiB .* there are 0\.9 GiB; raise target"):
        said(tmp_path, is_cpu=False, kv_cache_gib=0.9)
    assert "2048 tokens takes 0.25 of 0.9 GiB" in said(
        tmp_path, is_cpu=False, kv_cache_gib=0.9, max_model_len=2048
    )


def test_what_vllm_sizes_itself_is_left_to_it(tmp_path: Path) -> None:
    assert "takes 1.00 GiB per rank; vLLM sizes the cache" in said(tmp_path, is_cpu=False)
    assert "sized by vLLM" in said(tmp_path, is_cpu=True, config={})
