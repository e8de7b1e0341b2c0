"""What a contender is run with: equal targets, and the same drafter on both sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.bench.hit_model import expected_hit_rate
from paceline.bench.matrix import Contender
from paceline.bench.sides import bench_target, colocated_config, expected_hits, side
from paceline.bench.systems import System
from paceline.drafter.config import DrafterConfig
from paceline.errors import ConfigError
from paceline.scheduler.config import SpeculationConfig
from paceline.verifier.config import TargetConfig
from tests.unit.bench.made import NGRAM_CONTENDER, PLAIN_CONTENDER, SCRIPTED_CONTENDER, config

VLLM = Contender(
    system=System(kind="vllm", drafter="ngram"), dtype="float32", num_speculative_tokens=2
)
ANSWERS = Path("/results/answers.jsonl")


def test_all_sides_have_the_same_target() -> None:
    whole = config(threads=2, max_num_seqs=4)
    sides = [
        side(contender, whole, ANSWERS) for contender in (PLAIN_CONTENDER, NGRAM_CONTENDER, VLLM)
    ]
    assert [one.target for one in sides] == [bench_target(whole.target, "float32")] * 3
    assert sides[0].target.threads == 2
    assert len({one.name for one in sides}) == 3


def test_plain_has_nobody_who_drafts() -> None:
    made = side(PLAIN_CONTENDER, config(), ANSWERS)
    assert not made.drafters and made.colocated is None


def test_only_the_named_drafter_drafts_with_the_k_of_the_contender() -> None:
    whole = config(
        DrafterConfig(name="other", method="ngram"),
        DrafterConfig(name="ngram", method="ngram", num_speculative_tokens=7, replicas=3),
    )
    made = side(NGRAM_CONTENDER, whole, ANSWERS)
    [drafter] = made.drafters
    assert (drafter.name, drafter.num_speculative_tokens, drafter.replicas) == ("ngram", 2, 3)
    assert made.speculation.mode == "lockstep"
    assert made.colocated is None


def test_vllm_looks_up_the_same_ngrams() -> None:
    drafter = DrafterConfig(name="ngram", method="ngram", prompt_lookup_min=3, prompt_lookup_max=5)
    made = side(VLLM, config(drafter), ANSWERS)
    assert not made.drafters and made.colocated is not None
    assert made.colocated.speculative_config == {
        "method": "ngram",
        "num_speculative_tokens": 2,
        "prompt_lookup_min": 3,
        "prompt_lookup_max": 5,
    }


def test_prefix_caching_is_off_unless_the_configuration_wants_it() -> None:
    target = TargetConfig(model="m")
    assert bench_target(target, "float32").engine_args["enable_prefix_caching"] is False
    wanted = msgspec.structs.replace(target, engine_args={"enable_prefix_caching": True})
    assert bench_target(wanted, "float32").engine_args["enable_prefix_caching"] is True


def draft_model(**changes: Any) -> DrafterConfig:
    return DrafterConfig(name="small", method="draft_model", model="org/small", **changes)


def test_vllms_draft_model() -> None:
    target = TargetConfig(model="m", dtype="float32", tensor_parallel_size=3)
    assert colocated_config(draft_model(), target) == {
        "method": "draft_model",
        "model": "org/small",
        "num_speculative_tokens": 4,
        "draft_tensor_parallel_size": 3,
    }


def test_vllms_draft_model_has_the_targets_dtype() -> None:
    with pytest.raises(ConfigError, match=r"drafters.small.dtype is float16"):
        colocated_config(draft_model(dtype="float16"), TargetConfig(model="m"))


def test_a_scripted_drafter_reads_the_answers_of_this_run() -> None:
    drafter = DrafterConfig(name="s", method="scripted", scripted_answers="another.jsonl")
    system = System(kind="paceline", drafter="s", mode=SpeculationConfig().mode)
    contender = Contender(system=system, dtype="float32", num_speculative_tokens=3)
    [made] = side(contender, config(drafter), ANSWERS).drafters
    assert made.scripted_answers == str(ANSWERS)
    assert (made.method, made.num_speculative_tokens) == ("scripted", 3)


@pytest.mark.parametrize(
    ("method", "expected"),
    [("scripted", "drafts by no script; write paceline:d"), ("suffix", "own suffix cannot be")],
)
def test_what_vllm_cannot_draft_by(method: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"vllm:d is not possible: .*{expected}"):
        colocated_config(DrafterConfig(name="d", method=method), TargetConfig(model="m"))


def test_hits_are_expected_of_a_pipelined_script_only() -> None:
    sim = DrafterConfig(name="sim", method="scripted", scripted_accuracy=0.5)
    whole = msgspec.structs.replace(config(sim), speculation=SpeculationConfig(fanout=3))
    expected = expected_hits(SCRIPTED_CONTENDER, whole)
    assert expected == expected_hit_rate(0.5, num_drafts=4, fanout=3)
    lockstep = Contender(
        system=System(kind="paceline", drafter="sim", mode="lockstep"),
        dtype="float32",
        num_speculative_tokens=4,
    )
    ngram = config(DrafterConfig(name="sim", method="ngram"))
    assert expected_hits(lockstep, whole) is expected_hits(PLAIN_CONTENDER, whole) is None
    assert expected_hits(SCRIPTED_CONTENDER, ngram) is None
