"""Every check of a component's configuration names the field and the value that is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.config import Config, parse
from paceline.drafter.config import DrafterConfig
from paceline.errors import ConfigError
from paceline.scheduler.config import SpeculationConfig
from paceline.transport import TransportConfig
from paceline.verifier.config import OWNED_ENGINE_ARGS, TargetConfig

TARGET = {"model": "m"}
NGRAM = {"name": "n", "method": "ngram"}
RIGHT: dict[type[Config], dict[str, Any]] = {
    TransportConfig: {},
    SpeculationConfig: {},
    TargetConfig: TARGET,
    DrafterConfig: NGRAM,
}
"""The least that each component takes."""

WRONG: list[tuple[type[Config], dict[str, Any], str]] = [
    (
        TransportConfig,
        {"high_water_mark": 0},
        "high_water_mark is 0, it lies between 1 and 1000000",
    ),
    (TransportConfig, {"heartbeat_ms": 0}, "heartbeat_ms is 0"),
    (TransportConfig, {"heartbeat_ms": 10_000}, r"heartbeat_ms is 10000.*\(10000\)"),
    (TransportConfig, {"control": "udp://x:1"}, "control is udp://x:1: write auto"),
    (SpeculationConfig, {"patience_ms": -1}, r"patience_ms is -1\.0, it lies between 0 and 60000"),
    (SpeculationConfig, {"patience_ms": 60_001}, r"patience_ms is 60001\.0"),
    (SpeculationConfig, {"patience_ms": float("nan")}, "patience_ms is nan"),
    (SpeculationConfig, {"mode": "pipeline"}, "mode: .*'pipeline'"),
    (TargetConfig, {"model": ""}, "model is empty"),
    (TargetConfig, {"dtype": "int8"}, "dtype: .*'int8'"),
    (TargetConfig, {"tensor_parallel_size": 0}, "tensor_parallel_size is 0"),
    (TargetConfig, {"max_num_seqs": -3}, "max_num_seqs is -3"),
    (TargetConfig, {"threads": 0}, "threads is 0, it lies between 1 and 1024"),
    (TargetConfig, {"max_model_len": 1}, "max_model_len is 1, it must be at least 2"),
    (TargetConfig, {"kv_cache_gib": 0}, r"kv_cache_gib is 0\.0, it must be a number above 0"),
    (DrafterConfig, {"name": ""}, "name .. is empty"),
    (DrafterConfig, {"method": "ngrm"}, "method 'ngrm' is unknown; did you mean 'ngram'"),
    (DrafterConfig, {"method": "draft-model"}, "did you mean 'draft_model'"),
    (
        DrafterConfig,
        {"method": "zzz"},
        "method 'zzz' is unknown; known are ngram, suffix, draft",
    ),
    (DrafterConfig, {"method": "draft_model"}, "draft_model needs a model"),
    (DrafterConfig, {"model": "m"}, "ngram has no model, but model is m"),
    (DrafterConfig, {"num_speculative_tokens": -1}, "num_speculative_tokens is -1.* 0 and 32"),
    (DrafterConfig, {"num_speculative_tokens": 33}, "num_speculative_tokens is 33"),
    (DrafterConfig, {"replicas": 0}, "replicas is 0"),
    (DrafterConfig, {"threads": 0}, "threads is 0"),
    (DrafterConfig, {"max_requests": 0}, "max_requests is 0"),
    (DrafterConfig, {"prompt_lookup_min": 0}, r"prompt_lookup_min is 0.*\(4\)"),
    (DrafterConfig, {"prompt_lookup_min": 5}, r"prompt_lookup_min is 5.*\(4\)"),
    (DrafterConfig, {"method": "suffix", "model": "m"}, "suffix has no model, but model is m"),
    (DrafterConfig, {"suffix_max_tree_depth": 1}, "suffix_max_tree_depth is 1, .* 2 and 256"),
    (DrafterConfig, {"suffix_max_tree_depth": 257}, "suffix_max_tree_depth is 257"),
    (
        DrafterConfig,
        {"suffix_max_spec_factor": 0},
        r"suffix_max_spec_factor is 0\.0, it lies",
    ),
    (DrafterConfig, {"suffix_max_spec_factor": 33}, r"suffix_max_spec_factor is 33\.0"),
    (DrafterConfig, {"suffix_max_spec_factor": float("nan")}, "suffix_max_spec_factor is nan"),
    (DrafterConfig, {"suffix_min_token_prob": 1.1}, r"suffix_min_token_prob is 1\.1.* 0 and 1"),
    (DrafterConfig, {"suffix_min_token_prob": float("nan")}, "suffix_min_token_prob is nan"),
    (DrafterConfig, {"suffix_max_cached_requests": 0}, "leave suffix_share_across_requests out"),
    (DrafterConfig, {"suffix_max_cached_requests": 100_001}, "between 1 and 100000"),
    (DrafterConfig, {"suffix_max_cached_tokens": 0}, "suffix_max_cached_tokens is 0"),
    (DrafterConfig, {"suffix_max_cached_tokens": 10**8 + 1}, "between 1 and 100000000"),
    (DrafterConfig, {"method": "scripted", "model": "m"}, "scripted has no model, but model is m"),
    (DrafterConfig, {"scripted_accuracy": 1.1}, r"scripted_accuracy is 1\.1.* 0 and 1"),
    (DrafterConfig, {"scripted_accuracy": float("nan")}, "scripted_accuracy is nan"),
    (
        DrafterConfig,
        {"scripted_forward_ms": -1},
        r"scripted_forward_ms is -1\.0, it lies",
    ),
    (DrafterConfig, {"device": "tpu"}, "device: .*'tpu'"),
    (DrafterConfig, {"dtype": "int4"}, "dtype: .*'int4'"),
]


def name_of(value: object) -> str | None:
    return value.__name__ if isinstance(value, type) else None


@pytest.mark.parametrize(("schema", "changes", "expected"), WRONG, ids=name_of)
def test_a_wrong_value_is_named(
    schema: type[Config], changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse({**RIGHT[schema], **changes}, schema, source="test")


@pytest.mark.parametrize(
    ("schema", "changes"),
    [
        (TransportConfig, {"high_water_mark": 1, "heartbeat_ms": 9999}),
        (SpeculationConfig, {"patience_ms": 0}),
        (SpeculationConfig, {"patience_ms": 60_000}),
        (TargetConfig, {"max_model_len": 2, "engine_args": {"seed": 1}}),
        (DrafterConfig, {"num_speculative_tokens": 0}),
        (DrafterConfig, {"num_speculative_tokens": 32, "prompt_lookup_min": 4}),
        (DrafterConfig, {"method": "draft_model", "model": "m", "device": "cuda"}),
        (DrafterConfig, {"suffix_max_tree_depth": 2, "suffix_min_token_prob": 0}),
        (DrafterConfig, {"suffix_max_spec_factor": 32, "suffix_min_token_prob": 1}),
        (DrafterConfig, {"method": "scripted", "scripted_accuracy": 0, "scripted_forward_ms": 0}),
        (DrafterConfig, {"method": "scripted", "scripted_accuracy": 1}),
    ],
    ids=name_of,
)
def test_the_last_value_that_is_allowed_passes(
    schema: type[Config], changes: dict[str, Any]
) -> None:
    config = parse({**RIGHT[schema], **changes}, schema, source="test")
    assert {name: getattr(config, name) for name in changes} == changes


@pytest.mark.parametrize("name", OWNED_ENGINE_ARGS)
def test_an_engine_argument_of_paceline_s_own_is_refused_with_advice(name: str) -> None:
    advice = OWNED_ENGINE_ARGS[name] or "it is Paceline's to set"
    with pytest.raises(ConfigError, match=rf"engine_args\.{name} cannot be set; .*{advice}"):
        parse({**TARGET, "engine_args": {name: 1}}, TargetConfig, source="test")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_kv_cache_of_no_finite_size_is_refused(value: float) -> None:
    with pytest.raises(ConfigError):
        parse({**TARGET, "kv_cache_gib": value}, TargetConfig, source="test")
