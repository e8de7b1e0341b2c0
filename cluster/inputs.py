"""Prompts from the command line or a JSONL file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import InputError

SAMPLING_KEYS: dict[str, tuple[type, ...]] = {
    "max_tokens": (int,),
    "temperature": (int, float),
    "top_p": (int, float),
    "top_k": (int,),
    "seed": (int,),
    "min_p": (int, float),
    "presence_penalty": (int, float),
    "frequency_penalty": (int, float),
    "repetition_penalty": (int, float),
    "min_tokens": (int,),
    "stop": (str, list),
}
"""Keys of an input line that override the command line's sampling, with their types."""

REFUSED_KEYS = {
    *("allowed_token_ids", "bad_words", "best_of", "guided_choice", "guided_json", "guided_regex"),
    *("ignore_eos", "logit_bias", "logprobs", "max_completion_tokens", "n", "prompt_logprobs"),
    *("response_format", "stop_token_ids", "structured_outputs", "tool_choice", "tools"),
    *("top_logprobs", "use_beam_search"),
}
"""Keys that would change the answer and are not served here: never ignored, but refused by name.
Others, such as a data set's own, are no parameters of a request."""


_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prompt:
    """One line of input; two lines are two prompts, whatever is in them."""

    line: int
    """Counted from 1; 0 for a prompt from the command line."""
    id: str
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    category: str = ""
    """What kind of prompt it is, for those who measure; "" if the line does not say."""
    sampling: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenLine:
    """A line that is no prompt."""

    line: int
    id: str
    reason: str


def read_prompts(path: Path) -> Iterator[Prompt | BrokenLine]:
    """Reads the lines of a JSONL file one by one; blank ones are skipped.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if raw.strip():
                    yield _parse(number, raw)
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise InputError(f"the input {path} cannot be read: {reason}") from error


def open_prompts(path: Path) -> tuple[int, Iterable[Prompt | BrokenLine]]:
    """Returns how many lines ``path`` has that are not blank, and the lines.

    A file is read twice and never held in memory; a pipe, which can be read once only, is.

    Raises:
        InputError: it cannot be read, or has no such line.
    """
    if path.is_file():
        number = sum(1 for _ in read_prompts(path))
        prompts: Iterable[Prompt | BrokenLine] = read_prompts(path)
    else:
        prompts = list(read_prompts(path))
        number = len(prompts)
    if number == 0:
        raise InputError(
            f"the input {path} is empty; each line is a JSON object with 'prompt' or 'messages'"
        )
    return number, prompts


def _parse(number: int, raw: bytes) -> Prompt | BrokenLine:
    fallback_id = str(number)

    def broken(reason: str, line_id: str = fallback_id) -> BrokenLine:
        return BrokenLine(line=number, id=line_id, reason=reason)

    try:
        values = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return broken(f"it is not valid JSON ({error})")
    if not isinstance(values, dict):
        return broken("it is not a JSON object")
    if _SURROGATE.search(json.dumps(values, ensure_ascii=False)):
        return broken("it holds half of a surrogate pair, which is no character")
    line_id = fallback_id if values.get("id") is None else str(values["id"])
    prompt, messages = values.get("prompt"), values.get("messages")
    if (prompt is None) == (messages is None):
        return broken("it needs either 'prompt' or 'messages'", line_id)
    if prompt is not None and (not isinstance(prompt, str) or not prompt):
        return broken("'prompt' is not a text, or an empty one", line_id)
    if messages is not None and (problem := _message_problem(messages)):
        return broken(problem, line_id)
    for key in REFUSED_KEYS & values.keys():
        if values[key] is not None:
            return broken(f"'{key}' cannot be used here; leave it out", line_id)
    sampling = {}
    for key, kinds in SAMPLING_KEYS.items():
        value = values.get(key)
        if value is None:
            continue
        if not isinstance(value, kinds) or isinstance(value, bool):
            return broken(f"'{key}' is {json.dumps(value)}, which is of the wrong type", line_id)
        if isinstance(value, list) and not all(isinstance(item, str) for item in value):
            return broken(f"'{key}' is {json.dumps(value)}, which is no list of texts", line_id)
        if isinstance(value, int) and not -(1 << 31) <= value < 1 << 31:
            return broken(f"'{key}' is {value}, which is out of range", line_id)
        sampling[key] = value
    if messages is not None:
        messages = [{**message, "content": _text(message["content"])} for message in messages]
    return Prompt(
        line=number,
        id=line_id,
        prompt=prompt,
        messages=messages,
        category="" if values.get("category") is None else str(values["category"]),
        sampling=sampling,
    )


def _message_problem(messages: Any) -> str | None:
    if not isinstance(messages, list) or not messages:
        return "'messages' is not a list, or an empty one"
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return "a message is not an object with 'role' and 'content'"
        if _text(message.get("content")) is None:
            return "a message's 'content' is not a text, nor a list of parts of type text"
    return None


def _text(content: Any) -> str | None:
    """Returns a message's text, which may come in parts; None for anything else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts: list[str] = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            return None
        if not isinstance(part.get("text"), str):
            return None
        texts.append(part["text"])
    return "".join(texts)
