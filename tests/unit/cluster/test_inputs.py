"""Lines of input: each is a prompt or says by its number why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.cluster.inputs import BrokenLine, Prompt, _parse, open_prompts, read_prompts
from paceline.errors import InputError


def lines(tmp_path: Path, *raw: str | bytes | dict[str, Any]) -> list[Prompt | BrokenLine]:
    path = tmp_path / "in.jsonl"
    texts = [json.dumps(line) if isinstance(line, dict) else line for line in raw]
    path.write_bytes(
        b"\n".join(text if isinstance(text, bytes) else text.encode() for text in texts)
    )
    return list(read_prompts(path))


def one(tmp_path: Path, line: str | bytes | dict[str, Any]) -> Prompt | BrokenLine:
    [parsed] = lines(tmp_path, line)
    return parsed


def test_a_prompt_and_messages_are_read(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": ""}, {"role": "user", "content": "Hi"}]
    first, second = lines(tmp_path, {"prompt": "Grüße"}, {"messages": messages, "id": "m"})
    assert isinstance(first, Prompt) and isinstance(second, Prompt)
    assert (first.line, first.id, first.prompt, first.messages) == (1, "1", "Grüße", None)
    assert (second.line, second.id, second.prompt, second.messages) == (2, "m", None, messages)


def test_blank_lines_are_skipped_and_counted_in_the_numbers(tmp_path: Path) -> None:
    parsed = lines(tmp_path, "", {"prompt": "a"}, "  \t", "\r", {"prompt": "b"}, "")
    assert [(line.line, line.id) for line in parsed] == [(2, "2"), (5, "5")]


def test_a_last_line_without_its_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}')
    assert open_prompts(path)[0] == 2


def test_a_broken_line_does_not_end_the_file(tmp_path: Path) -> None:
    parsed = lines(tmp_path, {"prompt": "a"}, "{oops", {"prompt": "c"})
    assert [type(line) for line in parsed] == [Prompt, BrokenLine, Prompt]
    assert parsed[1].line == 2 and parsed[1].id == "2"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{oops", "it is not valid JSON"),
        (b"\xff\xfe\x00", "it is not valid JSON"),
        ("[" * 100_000, "it is not valid JSON"),
        ("[1]", "it is not a JSON object"),
        ('"prompt"', "it is not a JSON object"),
        ("null", "it is not a JSON object"),
        ({}, "it needs either 'prompt' or 'messages'"),
        ({"text": "a"}, "it needs either 'prompt' or 'messages'"),
        ({"prompt": None}, "it needs either 'prompt' or 'messages'"),
        (
            {"prompt": "a", "messages": [{"role": "user", "content": "b"}]},
            "it needs either 'prompt' or 'messages'",
        ),
        ({"prompt": ""}, "'prompt' is not a text, or an empty one"),
        ({"prompt": 3}, "'prompt' is not a text, or an empty one"),
        ({"prompt": ["a"]}, "'prompt' is not a text, or an empty one"),
        ({"messages": []}, "'messages' is not a list, or an empty one"),
        ({"messages": "hi"}, "'messages' is not a list, or an empty one"),
        ({"messages": {"role": "user"}}, "'messages' is not a list, or an empty one"),
        ({"messages": ["hi"]}, "a message is not an object with 'role' and 'content'"),
        ({"messages": [{"content": "x"}]}, "a message is not an object with 'role'"),
        ({"messages": [{"role": 1, "content": "x"}]}, "a message is not an object with 'role'"),
        ({"messages": [{"role": "user"}]}, "a message's 'content' is not a text"),
        ({"messages": [{"role": "user", "content": [1]}]}, "a message's 'content' is not a text"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_line_that_is_no_prompt_says_why(
    tmp_path: Path, line: str | bytes | dict[str, Any], reason: str
) -> None:
    broken = one(tmp_path, line)
    assert isinstance(broken, BrokenLine)
    assert broken.reason.startswith(reason)
    assert "\n" not in broken.reason


def test_a_broken_line_keeps_its_id(tmp_path: Path) -> None:
    assert one(tmp_path, {"id": "q7", "prompt": ""}).id == "q7"
    assert one(tmp_path, {"id": 7, "prompt": "a"}).id == "7"


def test_sampling_of_a_line_is_kept_and_other_keys_are_not(tmp_path: Path) -> None:
    sampling = {
        "max_tokens": 5,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 3,
        "seed": 0,
        "stop": ["x"],
    }
    prompt = one(tmp_path, {"prompt": "a", **sampling, "answer": "42"})
    assert isinstance(prompt, Prompt)
    assert prompt.sampling == sampling


def test_a_key_that_is_null_is_as_if_it_was_not_there(tmp_path: Path) -> None:
    prompt = one(tmp_path, {"prompt": "a", "seed": None, "messages": None})
    assert isinstance(prompt, Prompt) and prompt.sampling == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_tokens", 1.5),
        ("max_tokens", "5"),
        ("max_tokens", True),
        ("temperature", "hot"),
        ("temperature", False),
        ("top_p", [1]),
        ("top_k", 0.5),
        ("seed", "x"),
        ("stop", 3),
        ("stop", {"a": 1}),
    ],
)
def test_sampling_of_a_wrong_type_is_named_with_its_value(
    tmp_path: Path, key: str, value: object
) -> None:
    broken = one(tmp_path, {"id": "q", "prompt": "a", key: value})
    assert broken == BrokenLine(
        line=1, id="q", reason=f"'{key}' is {json.dumps(value)}, which is of the wrong type"
    )


@given(st.binary(max_size=60))
def test_any_bytes_are_a_prompt_or_a_broken_line(raw: bytes) -> None:
    assert _parse(3, raw).line == 3


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
KEYS = st.sampled_from(["id", "prompt", "messages", "max_tokens", "stop", "seed", "role"])


@given(st.dictionaries(KEYS, json_values))
def test_any_object_is_a_prompt_or_a_broken_line(values: dict[str, Any]) -> None:
    parsed = _parse(3, json.dumps(values).encode())
    assert isinstance(parsed, Prompt | BrokenLine)
    if isinstance(parsed, Prompt):
        assert (parsed.prompt is None) != (parsed.messages is None)


def test_count_agrees_with_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('\n{"prompt": "a"}\n\nbroken\n')
    assert open_prompts(path)[0] == len(list(read_prompts(path))) == 2


@pytest.mark.parametrize("text", ["", "\n\n  \n"])
def test_an_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=r"in\.jsonl is empty; each line is a JSON object"):
        open_prompts(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.jsonl cannot be read: no such file"):
        open_prompts(tmp_path / "nothing.jsonl")[0]
    with pytest.raises(InputError, match="cannot be read: is a directory"):
        list(read_prompts(tmp_path))


@pytest.mark.parametrize("key", ["prompt", "id"])
def test_half_a_character_is_no_text(tmp_path: Path, key: str) -> None:
    line = b'{"prompt": "a", "%s": "\\ud800"}' % key.encode()
    assert isinstance(one(tmp_path, line), BrokenLine)


def test_an_id_that_is_null_is_the_line_s_number(tmp_path: Path) -> None:
    assert one(tmp_path, {"prompt": "a", "id": None}).id == "1"


def test_stop_lists_texts(tmp_path: Path) -> None:
    assert isinstance(one(tmp_path, {"prompt": "a", "stop": [1]}), BrokenLine)


@pytest.mark.parametrize("key", ["n", "logprobs", "response_format", "logit_bias"])
def test_a_parameter_that_is_not_served_is_refused_by_name(key: str) -> None:
    parsed = _parse(1, json.dumps({"prompt": "a", key: 2}).encode())
    assert isinstance(parsed, BrokenLine)
    assert f"'{key}'" in parsed.reason
