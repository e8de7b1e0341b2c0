"""What has been measured so far, on disk, so that an interrupted run can go on."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from paceline.errors import ConfigError

RUN_FILE = "run.json"
MEASUREMENTS_FILE = "measurements.jsonl"
RESULTS_FILE = "results.json"
ANSWERS_FILE = "answers.jsonl"
"""What scripted drafters read."""
LOCK_FILE = "lock"
"""Held while a run uses the folder. It stays: taking it away would be a race."""


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one prompt in one repeat."""

    id: str
    error: str | None = None
    token_ids: list[int] = []
    seconds_to_first_token: float | None = None
    events: list[tuple[float, int]] = []
    """Seconds since the request's start and number of new tokens, of each output."""
    counts: dict[str, Any] | None = None
    """The keys of ``Pipeline.report``; None: nobody drafted, or nobody counted."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Where an output parts from plain decoding's."""

    id: str
    position: int
    """Of the first output token that differs, counted from 0."""
    top_two_gap: float | None
    """How far plain decoding's two best tokens are apart there, in log probability."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One contender under one load, once over all prompts."""

    group: int
    """Only contenders of a group have alternated."""
    contender: str
    concurrency: int
    temperature: float
    repeat: int
    seconds: float
    """Wall time in which requests of this contender were under way."""
    requests: list[RequestRecord]
    """One for each prompt, in the workload's order."""
    differences: list[Difference] | None = None
    """Against plain decoding in the same repeat; None: not compared."""

    @property
    def key(self) -> tuple[int, str, int, float, int]:
        """What tells measurements apart."""
        return self.key_of(self.contender)

    def key_of(self, contender: str) -> tuple[int, str, int, float, int]:
        """Returns the key of another contender's measurement at the same place."""
        return (self.group, contender, self.concurrency, self.temperature, self.repeat)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder's measurements have in common."""

    arguments: dict[str, Any]
    environment: dict[str, Any]
    max_resident: int
    """Decides the groups; kept, since a resumed run may find less memory."""
    load_average: list[float]


class Store:
    """The measurements of one output folder; use it with ``with``, nobody else can meanwhile."""

    def __init__(self, folder: Path, run: Run) -> None:
        self._folder = folder
        self._lock: int | None = None
        self.run = run
        self._measurements: dict[tuple[int, str, int, float, int], Measurement] = {}

    @classmethod
    def open(cls, folder: Path, run: Run, *, resume: bool) -> Store:
        """Makes the folder, or takes up what is in it; the first start's ``run`` is kept.

        Raises:
            ConfigError: the folder is not empty and ``resume`` is not set, it holds measurements
                of something else, another run uses it, or it cannot be written.
        """
        store = cls(folder, run)
        with contextlib.ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                if (folder / RUN_FILE).exists() or not store._is_used():
                    store._acquire()  # in a folder of something else nothing is left
                    stack.callback(store.close)
                if store._is_used():
                    if not resume:
                        raise ConfigError(
                            f"the output {folder} exists and is not empty; name another folder, or "
                            "add --resume to go on with what is in it"
                        )
                    store._take_up()
            except OSError as error:
                reason = (error.strerror or "").lower()
                raise ConfigError(f"the output {folder} cannot be written: {reason}") from error
            stack.pop_all()
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets others use the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self._measurements.values())

    def __len__(self) -> int:
        return len(self._measurements)

    def find(
        self, group: int, contender: str, concurrency: int, temperature: float, repeat: int
    ) -> Measurement | None:
        """Returns a finished measurement, None if there is none."""
        return self._measurements.get((group, contender, concurrency, temperature, repeat))

    def add(self, measurement: Measurement) -> None:
        """Keeps a finished measurement: one line, written at once; before the first one the run."""
        if not self._measurements:
            _write(self._folder / RUN_FILE, msgspec.json.encode(self.run))
        self._measurements[measurement.key] = measurement
        line = msgspec.json.encode(measurement) + b"\n"
        file = os.open(
            self._folder / MEASUREMENTS_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        try:
            os.write(file, line)
            os.fsync(file)
        finally:
            os.close(file)

    def write_results(self, results: dict[str, Any]) -> None:
        """Writes ``results.json``, whole or not at all."""
        text = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False)
        _write(self._folder / RESULTS_FILE, text.encode())

    def _is_used(self) -> bool:
        """Whether there is more than a start leaves that failed before it measured anything."""
        return not {path.name for path in self._folder.iterdir()} <= {LOCK_FILE, ANSWERS_FILE}

    def _acquire(self) -> None:
        lock = os.open(self._folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if error.errno != errno.EWOULDBLOCK:
                raise
            raise ConfigError(
                f"the output {self._folder} is used by another run; wait for its end, or name "
                "another folder"
            ) from error
        self._lock = lock

    def _take_up(self) -> None:
        try:
            earlier = msgspec.json.decode((self._folder / RUN_FILE).read_bytes(), type=Run)
        except (FileNotFoundError, msgspec.MsgspecError) as error:
            raise ConfigError(
                f"the output {self._folder} holds no run that could be resumed; name another folder"
            ) from error
        ours = json.loads(msgspec.json.encode(self.run))
        theirs = json.loads(msgspec.json.encode(earlier))
        for part in ("arguments", "environment"):
            for name in {**ours[part], **theirs[part]}:
                if ours[part].get(name) != theirs[part].get(name):
                    raise ConfigError(
                        f"the output {self._folder} was measured with {_said(name, theirs[part])}, "
                        f"this run has {_said(name, ours[part])}; name another folder"
                    )
        self.run = earlier
        path = self._folder / MEASUREMENTS_FILE
        if not path.exists():
            return
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(path, len(whole))  # the last run ended in the middle of a line
        for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
            try:
                measurement = msgspec.json.decode(line, type=Measurement)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"{path}, line {number} is damaged ({error}); delete this line, so that it is "
                    "measured again, or name another folder"
                ) from error
            self._measurements[measurement.key] = measurement


def _said(name: str, values: dict[str, Any]) -> str:
    """One difference, short enough for a sentence."""
    text = json.dumps(values.get(name))
    return f"{name} {text}" if len(text) <= 80 else f"another {name}"


def _write(path: Path, content: bytes) -> None:
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(content)
    unfinished.replace(path)
