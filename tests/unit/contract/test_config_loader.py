"""The loader: whatever is wrong with the file, one ConfigError that says where and what."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from paceline.config import Config, load, parse
from paceline.errors import ConfigError


class Wheel(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Part of a list."""

    spokes: int = 32
    kind: Literal["road", "track"] = "road"


class Frame(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section that is optional."""

    size_cm: float
    maker: str | None = None


class Bike(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    name: str
    wheels: list[Wheel] = []
    frame: Frame | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name is empty")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "bike.yaml"


def error_of(file: Path, text: str) -> str:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(file, Bike)
    message = str(caught.value)
    assert str(file) in message, "the file is not named"
    assert "\n" not in message, "more than one sentence"
    return message.replace(str(file), "FILE")


def test_a_right_file_loads_with_defaults_filled_in(file: Path) -> None:
    file.write_text("name: Bü\nwheels: [{spokes: 28}, {kind: track}]\nframe: {size_cm: 56}\n")
    assert load(file, Bike) == Bike(
        name="Bü", wheels=[Wheel(spokes=28), Wheel(kind="track")], frame=Frame(size_cm=56.0)
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nmae: x", "FILE: unknown key 'nmae'; did you mean 'name'?"),
        ("name: x\nframe: {size: 5}", "FILE: unknown key 'frame.size'; did you mean 'size_cm'?"),
        (
            "name: x\nwheels: [{}, {spoke: 5}]",
            "FILE: unknown key 'wheels[1].spoke'; did you mean 'spokes'?",
        ),
        ("name: x\nframe: {qqq: 5}", "FILE: unknown key 'frame.qqq'; known are maker, size_cm"),
        ("name: x\n7: x", "FILE: unknown key '7'; known are frame, name, wheels"),
    ],
)
def test_an_unknown_key_is_named_with_its_place_and_the_nearest(
    file: Path, text: str, expected: str
) -> None:
    assert error_of(file, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: 3", "FILE: name: expected str, got int"),
        ("name: x\nframe: [1]", "FILE: frame: expected a mapping  empty, got a list"),
        ("name: x\nframe: {size_cm: big}", "FILE: frame.size_cm: expected float, got str"),
        ("name: x\nwheels: [{spokes: 1.5}]", "FILE: wheels[0].spokes: expected int, got float"),
        ("name: x\nwheels: [{spokes: yes}]", "FILE: wheels[0].spokes: expected int, got bool"),
        ("name: x\nwheels: {spokes: 1}", "FILE: wheels: expected a list, got a mapping"),
        ("name: x\nwheels:", "FILE: wheels: expected a list, got empty"),
        ("name: x\nwheels: [{kind: sea}]", "FILE: wheels[0].kind: invalid enum value 'sea'"),
    ],
)
def test_a_wrong_type_is_named_with_its_place(file: Path, text: str, expected: str) -> None:
    message = error_of(file, text)
    # Whether "| null" of an optional key is worded well is not the point here.
    assert message == expected or message.startswith(expected.partition("  ")[0])


def test_a_missing_key_is_named(file: Path) -> None:
    message = error_of(file, "frame: {size_cm: 5}")
    assert "missing required field" in message and message.endswith("name")


def test_a_component_s_own_check_is_shown_as_it_is(file: Path) -> None:
    assert error_of(file, "name: ''") == "FILE: name is empty"


@pytest.mark.parametrize("text", ["", "# nothing", "- name: x", "name", "3", "null"])
def test_a_file_without_keys_is_refused(file: Path, text: str) -> None:
    assert "holds no keys" in error_of(file, text)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("name: [x", " (line 1, column 9)"),
        ("name: x\n\tframe: 1", " (line 2, column 1)"),
        ("name: x\nframe: *other", " (line 2, column 8)"),
        ("name: !!python/object:os.system x", ""),
        ("? [a]\n: b", ""),
    ],
)
def test_broken_yaml_is_refused_with_its_place(file: Path, text: str, place: str) -> None:
    assert f"is not valid YAML{place}" in error_of(file, text)


def test_a_missing_file_is_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"bike\.yaml cannot be read: No such file"):
        load(file, Bike)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path, Bike)


def test_a_file_that_is_no_text_is_refused(file: Path) -> None:
    file.write_bytes(b"name: \xff\xfe")
    with pytest.raises(ConfigError, match="it is not UTF-8 text"):
        load(file, Bike)


def test_parse_names_the_source_it_was_given() -> None:
    with pytest.raises(ConfigError, match=r"^the job: unknown key 'nane'"):
        parse({"nane": 1}, Bike, source="the job")


def test_a_loaded_configuration_cannot_be_changed() -> None:
    bike = parse({"name": "x"}, Bike, source="test")
    with pytest.raises(AttributeError):
        bike.name = "y"  # type: ignore[misc]


def test_what_looks_like_a_date_is_a_text(file: Path) -> None:
    file.write_text("name: 2024-13-45", encoding="utf-8")
    assert load(file, Bike).name == "2024-13-45"


@pytest.mark.parametrize("value", ["0x_", "[" * 5000])
def test_a_value_that_yaml_cannot_convert_is_a_config_error(file: Path, value: str) -> None:
    assert "FILE" in error_of(file, f"name: {value}")


@pytest.mark.parametrize("value", ["array", "object", "null_", "a`b"])
def test_the_user_s_value_is_shown_as_it_was_written(file: Path, value: str) -> None:
    assert repr(value) in error_of(file, f"name: x\nwheels: [{{kind: '{value}'}}]")


def test_a_value_may_hold_the_words_of_an_error(file: Path) -> None:
    message = error_of(file, "name: x\nwheels: [{kind: 'sea - at dawn'}]")
    assert message.startswith("FILE: wheels[0].kind: ") and "'sea - at dawn'" in message
