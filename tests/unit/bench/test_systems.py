"""What ``--systems`` may name."""

from __future__ import annotations

import pytest

from paceline.bench.systems import PLAIN, System, parse_systems
from paceline.drafter.config import DrafterConfig
from paceline.errors import ConfigError
from tests.unit.bench.made import config

TWO = config(
    DrafterConfig(name="ngram", method="ngram"),
    DrafterConfig(name="small:v2", method="draft_model", model="m"),
)


def test_all_forms() -> None:
    assert parse_systems("plain, vllm:ngram,paceline:ngram@lockstep,vllm:small:v2", TWO) == [
        PLAIN,
        System(kind="vllm", drafter="ngram"),
        System(kind="paceline", drafter="ngram", mode="lockstep"),
        System(kind="vllm", drafter="small:v2"),
    ]


def test_plain_is_always_there_and_first() -> None:
    assert parse_systems("vllm:ngram,plain", TWO)[0] == PLAIN
    assert parse_systems("vllm:ngram", TWO)[0] == PLAIN


def test_the_mode_of_the_configuration_is_the_default_and_nothing_comes_twice() -> None:
    [_, only] = parse_systems("paceline:ngram,paceline:ngram@lockstep,plain,plain", TWO)
    assert only.mode == TWO.speculation.mode


@pytest.mark.parametrize("text", ["plain", "vllm:ngram", "paceline:ngram@lockstep"])
def test_a_system_is_written_as_it_was_named(text: str) -> None:
    assert text in map(str, parse_systems(text, TWO))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plane", "names 'plane', which is no system; there are plain, vllm:NAME, paceline:NAME"),
        ("", "names '', which is no system"),
        ("plain:ngram", "which is no system"),
        ("vllm:ngram@lockstep", "which is no system"),
        ("simulated:ngram", "which is no system"),
        ("vllm:ngrm", "the configuration has no drafter 'ngrm'; did you mean 'ngram'?"),
        ("paceline:other", "no drafter 'other'; it has ngram, small:v2"),
        ("vllm", "'vllm' without a drafter; write vllm:NAME, where NAME is one of"),
        (
            "paceline:",
            "write paceline:NAME, where NAME is one of the configuration's drafters (ng",
        ),
        ("paceline:ngram@pipelind", "there is no mode 'pipelind'; there are lockstep"),
        ("paceline:ngram@", "there is no mode ''"),
    ],
)
def test_what_is_no_system_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_systems(text, TWO)
    assert expected in str(refused.value)
