"""The whole file: sections put together, and what they must agree on."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.cluster.config import PacelineConfig, load_config
from paceline.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "c.yaml"


def read(file: Path, drafters: str = "", rest: str = "") -> PacelineConfig:
    file.write_text(f"target: {{model: m}}\ndrafters: [{drafters}]\n{rest}\n")
    return load_config(file)


def ngram(name: str, more: str = "") -> str:
    return f"{{name: {name}, method: ngram{more}}}"


def test_a_target_alone_is_plain_decoding(file: Path) -> None:
    file.write_text("target: {model: m}")
    config = load_config(file)
    assert config.num_speculative_tokens == 0
    assert config.active_drafters == []
    assert config.cluster.address is None


def test_without_a_target_there_is_nothing_to_run(file: Path) -> None:
    file.write_text("drafters: []")
    with pytest.raises(ConfigError, match="target"):
        load_config(file)


def test_k_is_the_largest_of_all_drafters(file: Path) -> None:
    config = read(
        file,
        f"{ngram('a', ', num_speculative_tokens: 2')}, {ngram('b', ', num_speculative_tokens: 7')}",
    )
    assert config.num_speculative_tokens == 7


def test_a_drafter_with_k_zero_is_off(file: Path) -> None:
    config = read(file, f"{ngram('a', ', num_speculative_tokens: 0')}, {ngram('b')}")
    assert [drafter.name for drafter in config.active_drafters] == ["b"]
    assert read(file, ngram("a", ", num_speculative_tokens: 0")).num_speculative_tokens == 0


@pytest.mark.parametrize("k", [-1, 33, "four"])
def test_a_k_out_of_its_limits_names_the_drafter(file: Path, k: object) -> None:
    with pytest.raises(ConfigError, match=r"c\.yaml: drafters\[1\].*num_speculative_tokens"):
        read(file, f"{ngram('a')}, {ngram('b', f', num_speculative_tokens: {k}')}")


def test_a_name_that_is_used_twice_is_named(file: Path) -> None:
    with pytest.raises(ConfigError, match="the name 'a' is used twice; names are unique"):
        read(file, f"{ngram('a')}, {ngram('b')}, {ngram('a')}")


def test_a_replica_s_name_is_unique_as_well(file: Path) -> None:
    with pytest.raises(ConfigError, match="a-1"):
        read(file, f"{ngram('a', ', replicas: 2')}, {ngram('a-1')}")


def test_a_name_that_no_socket_takes_is_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match="name"):
        read(file, ngram("x" * 300))


def test_an_unknown_method_names_the_nearest(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"drafters\[0\]: method 'ngrams' .* mean 'ngram'\?"):
        read(file, "{name: a, method: ngrams}")


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("speculaton: {}", "unknown key 'speculaton'; did you mean 'speculation'"),
        ("speculation: {patience: 3}", r"'speculation\.patience'; did you mean 'patience_ms'"),
        ("transport: {controll: auto}", r"'transport\.controll'; did you mean 'control'"),
        ("cluster: {adress: auto}", r"'cluster\.adress'; did you mean 'address'"),
        ("transport: {control: 'tcp://*:5555'}", "transport: control is tcp.*no wildcard"),
    ],
)
def test_a_mistake_in_any_section_is_named_with_its_place(
    file: Path, rest: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        read(file, rest=rest)


def test_a_key_of_the_target_that_is_unknown_is_named(file: Path) -> None:
    file.write_text("target: {model: m, max_model_length: 5}")
    with pytest.raises(ConfigError, match=r"max_model_length.* mean 'max_model_len'"):
        load_config(file)


def test_vllm_s_own_arguments_are_passed_on_unread(file: Path) -> None:
    file.write_text("target: {model: m, engine_args: {anything: [1, {deep: true}]}}")
    assert load_config(file).target.engine_args == {"anything": [1, {"deep": True}]}


def test_drafts_on_the_target_s_states_are_refused_in_pipelined_mode(file: Path) -> None:
    text = (
        "target: {model: t}\n"
        "speculation: {mode: MODE}\n"
        "drafters: [{name: a, method: eagle3, model: m, num_speculative_tokens: K}]\n"
    )
    file.write_text(text.replace("MODE", "pipelined").replace("K", "4"))
    with pytest.raises(ConfigError, match=r"a has the method eagle3, .* set speculation.mode: lo"):
        load_config(file)
    for mode, number in (("lockstep", "4"), ("pipelined", "0")):
        file.write_text(text.replace("MODE", mode).replace("K", number))
        load_config(file)
