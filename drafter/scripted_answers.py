"""The file that says what the target will answer, for drafts that are made up from it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from paceline.errors import InputError


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the file."""

    prompt_ids: list[int]
    token_ids: list[int]
    """The output of the target alone, at temperature 0."""


def write_answers(path: Path, answers: Iterable[Answer]) -> None:
    """Replaces the file, so that a reader finds the old one or the new one, whole."""
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(b"".join(msgspec.json.encode(answer) + b"\n" for answer in answers))
    unfinished.replace(path)


class AnswerFile:
    """Reads the file when it is asked, and again once it has changed; it need not exist yet."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._version: tuple[int, int, int] | None = None
        self._answers: dict[tuple[int, ...], list[int]] = {}
        """By prompt."""
        self._lengths: list[int] = []
        """Of the prompts, the longest first."""

    def find(self, tokens: Sequence[int]) -> tuple[int, list[int]] | None:
        """Looks up the prompt that ``tokens`` begins with.

        ``tokens`` may go on behind the prompt, as the answer does; the longest such prompt counts.

        Returns:
            The prompt's length and its answer, None if there is none.

        Raises:
            InputError: the file cannot be read, or a line of it is no answer.
        """
        self._read_if_changed()
        for length in self._lengths:
            if length > len(tokens):
                continue
            answer = self._answers.get(tuple(tokens[:length]))
            if answer is not None and answer[: len(tokens) - length] == tokens[length:]:
                return length, answer
        return None

    def _read_if_changed(self) -> None:
        try:
            status = os.stat(self._path)
            version = (status.st_ino, status.st_mtime_ns, status.st_size)
            if version == self._version:
                return
            content = Path(self._path).read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            reason = (error.strerror or "").lower()
            raise InputError(f"scripted_answers {self._path} cannot be read: {reason}") from error
        self._answers = {}
        for number, line in enumerate(content.split(b"\n"), start=1):
            if line.strip():
                answer = self._decode(line, number)
                self._answers[tuple(answer.prompt_ids)] = answer.token_ids
        self._lengths = sorted({len(prompt) for prompt in self._answers}, reverse=True)
        self._version = version

    def _decode(self, line: bytes, number: int) -> Answer:
        try:
            return msgspec.json.decode(line, type=Answer)
        except msgspec.MsgspecError as error:
            raise InputError(
                f"scripted_answers {self._path}, line {number} is no object with prompt_ids and "
                f"token_ids ({error}); write the file anew"
            ) from error
