"""The target's own answers on disk: JSON Lines that are only ever appended to.

One object a line: ``id`` and ``category`` of the prompt, ``temperature`` (0: greedy),
``prompt_ids`` (with the chat template), ``answer_ids`` and ``finish``: "stop" with the end token as
the last id, "length" where the limit cut it off. A folder of such files is one collection.
"""

from __future__ import annotations

import fcntl
import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import msgspec

from paceline.errors import InputError


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the target said to one prompt."""

    id: str
    category: str
    temperature: float
    prompt_ids: list[int]
    answer_ids: list[int]
    finish: str


class AnswerWriter:
    """Appends answers to one file, which nobody else may write to meanwhile."""

    def __init__(self, path: Path) -> None:
        """Opens ``path``, or makes it; a last line that a crash left without its end is cut off.

        Raises:
            InputError: another process is writing to the file.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise InputError(
                f"another process is writing to {path}: stop it, or wait for its end"
            ) from None
        self._file.truncate(_whole_lines(path))

    def __enter__(self) -> AnswerWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def write(self, answer: Answer) -> None:
        """Appends one line; a reader sees it at once."""
        self._file.write(msgspec.json.encode(answer) + b"\n")
        self._file.flush()


def _whole_lines(path: Path) -> int:
    """Bytes up to the end of the last line that has one."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - (1 << 16))
            file.seek(start)
            at = file.read(end - start).rfind(b"\n")
            if at >= 0:
                return start + at + 1
            end = start
    return 0


def answer_files(paths: list[Path]) -> list[Path]:
    """The files among ``paths``, and those in folders among them, in the order of their names."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(p for p in path.iterdir() if p.name.endswith((".jsonl", ".jsonl.gz")))
        else:
            found.append(path)
    return found


def read_answers(path: Path) -> Iterator[Answer]:
    """Yields the answers of one file, which may be gzipped, and may be growing: a last line without
    its end is left out.

    Raises:
        InputError: the file cannot be read, or a line of it is no answer.
    """
    decoder = msgspec.json.Decoder(Answer)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield decoder.decode(line)
                except msgspec.DecodeError as error:
                    raise InputError(
                        f"{path}, line {number}, is no answer ({error}): repair or remove the line"
                    ) from None
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"the answers {path} cannot be read: {reason}") from error
