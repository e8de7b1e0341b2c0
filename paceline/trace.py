"""What a run's processes did and when, for Perfetto (ui.perfetto.dev) or chrome://tracing.

Each process writes its spans to a file of its own, a *part*; ``merge`` makes one file of them, in
the Trace Event Format (Google, 2016), which both viewers read. All times are of
``time.monotonic``, which on Linux is one clock for all processes of a node. Parts of several nodes
are laid over each other by the nodes' wall clocks: what lies between two nodes is as exact as
these clocks agree, what lies within one is not touched by them.

A part is lines of JSON: an ``Anchor``, then records ``[kind, track, name, start, end, more]``.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import msgspec

logger = logging.getLogger("paceline.trace")

MAX_RECORDS = 1_000_000
"""Of one process; what comes later is dropped and counted. About 100 MB of JSON."""

CHUNK_RECORDS = 500
CHUNK_SECONDS = 1.0
"""A chunk is written when it has so many records or spans so long: what kill -9 can lose."""

BEGIN_FILE = "begin.json"

_encoder = msgspec.json.Encoder(enc_hook=str)


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """The two clocks of a node at one moment, both in seconds."""

    process: str
    node: str
    """Differs between machines, and between two boots of one, but not between containers."""
    monotonic: float
    wall: float

    @classmethod
    def here(cls, process: str) -> Anchor:
        """Returns the clocks of this node, now."""
        return cls(process=process, node=_node(), monotonic=time.monotonic(), wall=time.time())


def _node() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return os.uname().nodename


class Tracer:
    """Takes down what one process does; without a folder it does nothing.

    Two spans of a track must lie apart, or one within the other. May be used from several threads.
    A disk that is full ends the trace and nothing else.

    Attributes:
        enabled: Whether anything is kept; look at it before working out costly arguments.
    """

    def __init__(self, process: str, folder: Path | None) -> None:
        """Begins the part of a process.

        Args:
            process: Its name in the viewer.
            folder: Where the part is written, an existing folder; None: nowhere.
        """
        self.enabled = folder is not None
        self._lock = threading.Lock()
        self._pending: list[tuple[object, ...]] = []
        self._pending_since = 0.0
        self._num_records = 0
        self._num_dropped = 0
        if folder is not None:
            self._anchor: Anchor | None = Anchor.here(process)
            name = re.sub(r"[^\w.@=-]+", "-", process)
            self._path = folder / f"{name}-{os.getpid()}.jsonl"

    def span(self, track: str, name: str, start: float, end: float, **args: object) -> None:
        """Something that lasted from ``start`` to ``end``; ``args`` are shown beside it."""
        if self.enabled:
            self._add("X", track, name, start, end, args)

    def instant(self, track: str, name: str, at: float, **args: object) -> None:
        """Something that happened at one moment."""
        if self.enabled:
            self._add("i", track, name, at, at, args)

    def flow_start(self, track: str, flow_id: str, at: float, name: str) -> None:
        """The tail of an arrow, within a span of ``track`` (viewers drop it elsewhere)."""
        if self.enabled:
            self._add("s", track, name, at, at, flow_id)

    def flow_end(self, track: str, flow_id: str, at: float, name: str) -> None:
        """The head of the arrow whose tail has the same id and name; within a span, too."""
        if self.enabled:
            self._add("f", track, name, at, at, flow_id)

    def close(self) -> None:
        """Writes what is left and ends the part; may be called twice."""
        with self._lock:
            if not self.enabled:
                return
            if self._num_dropped:
                self._pending.append(("dropped", self._num_dropped))
            self._write()
            self.enabled = False

    def _add(
        self, kind: str, track: str, name: str, start: float, end: float, more: object
    ) -> None:
        with self._lock:
            if self._num_records >= MAX_RECORDS:
                self._num_dropped += 1
                return
            self._num_records += 1
            if not self._pending:
                self._pending_since = end
            self._pending.append((kind, track, name, start, end, more))
            is_old = end - self._pending_since >= CHUNK_SECONDS
            if is_old or len(self._pending) >= CHUNK_RECORDS:
                self._write()

    def _write(self) -> None:
        lines = _encoder.encode_lines(self._pending)
        self._pending.clear()
        if self._anchor is not None:
            lines = _encoder.encode(self._anchor) + b"\n" + lines
            self._anchor = None
        try:
            with self._path.open("ab") as file:
                file.write(lines)
        except OSError as error:
            self.enabled = False
            logger.warning("the trace ends here: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


DISABLED = Tracer("", None)
"""For those who are given none."""


def flow_id(drafter: str, handle: int, base_length: int, kind: str) -> str:
    """Returns the id that both ends of an arrow work out for themselves.

    Args:
        drafter: A name of it that both ends know.
        handle: Of the request; unique within one verifier, and so is the id.
        base_length: Of the message.
        kind: Of the message: "commit", "proposal", …
    """
    return f"{drafter}/{handle}/{base_length}/{kind}"


def begin(folder: Path) -> None:
    """Lets ``merge`` leave out what began before now: what is done only to warm up."""
    (folder / BEGIN_FILE).write_bytes(_encoder.encode(Anchor.here("begin")))


@dataclass(frozen=True, kw_only=True, slots=True)
class Merged:
    """What ``merge`` has found."""

    num_processes: int
    """Those with a record."""
    num_records: int
    num_dropped: int
    """Records over ``MAX_RECORDS``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    path: Path
    anchor: Anchor
    group: str
    """Of the parts that arrows may connect."""

    def records(self) -> Iterator[list[Any]]:
        """Yields the records; a line that a killed process has not finished is no record."""
        with self.path.open("rb") as file:
            next(file)
            for line in file:
                with contextlib.suppress(msgspec.DecodeError):
                    yield msgspec.json.decode(line, type=list[Any])


def merge(folder: Path, file: Path) -> Merged:
    """Makes one trace of the parts in ``folder`` and the folders in it; ``file`` appears whole.

    Arrows connect the parts of one folder only: each target and its drafters have their own.

    Raises:
        OSError: ``file`` cannot be written.
    """
    parts = sorted(
        _read_parts(folder),
        # Targets on top, their drafters below.
        key=lambda p: (p.path.parent, not p.anchor.process.startswith("verifier"), p.path.name),
    )
    clocks = _Clocks(parts)
    starts = {part.path: _begin_of(part, folder, clocks) for part in parts}
    times = (
        time
        for part in parts
        for record in part.records()
        if record[0] != "dropped"
        and (time := clocks.place(part.anchor, record[3])) >= starts[part.path]
    )
    earliest = min(times, default=0.0)
    temporary = file.with_name(f".{file.name}-{os.getpid()}")
    try:
        with temporary.open("wb") as out:
            merged = _Writer(out, clocks, earliest).write(parts, starts)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    return merged


def _read_parts(folder: Path) -> Iterator[_Part]:
    for path in folder.rglob("*.jsonl"):
        group = str(path.parent.relative_to(folder))
        with path.open("rb") as file, contextlib.suppress(msgspec.DecodeError):
            anchor = msgspec.json.decode(file.readline(), type=Anchor)
            yield _Part(path=path, anchor=anchor, group=group)


def _begin_of(part: _Part, folder: Path, clocks: _Clocks) -> float:
    """Returns from when on a part is wanted; ``begin`` holds for its folder and all within."""
    place = part.path.parent
    while not (place / BEGIN_FILE).exists():
        if place == folder:
            return -math.inf
        place = place.parent
    anchor = msgspec.json.decode((place / BEGIN_FILE).read_bytes(), type=Anchor)
    return clocks.place(anchor, anchor.monotonic)


class _Clocks:
    """Brings all times to the monotonic clock of one of the nodes.

    Each node's two clocks are compared once: a wall clock that is set while a run lasts moves
    nothing. Not simply wall time: its seconds are too many for a float to tell microseconds apart.
    """

    def __init__(self, parts: list[_Part]) -> None:
        self._boots: dict[str, float] = {}
        for part in sorted(parts, key=lambda p: p.anchor.monotonic):
            self._boots.setdefault(part.anchor.node, _boot(part.anchor))
        self._reference = next(iter(self._boots.values()), 0.0)

    def place(self, anchor: Anchor, at: float) -> float:
        """Returns what the common clock showed at ``at`` on the anchor's node."""
        return at + (self._boots.get(anchor.node, _boot(anchor)) - self._reference)


def _boot(anchor: Anchor) -> float:
    """The wall time at which the node's monotonic clock was zero."""
    return anchor.wall - anchor.monotonic


class _Writer:
    """Streams the parts: a long trace is larger than what memory should be spent on it."""

    def __init__(self, out: BinaryIO, clocks: _Clocks, earliest: float) -> None:
        self._out = out
        self._clocks = clocks
        self._earliest = earliest
        self._num_records = 0
        self._separator = b""

    def write(self, parts: list[_Part], starts: dict[Path, float]) -> Merged:
        num_processes = num_dropped = 0
        self._out.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        for number, part in enumerate(parts, start=1):
            threads: dict[str, int] = {}
            for record in part.records():
                if record[0] == "dropped":
                    num_dropped += record[1]
                elif self._clocks.place(part.anchor, record[3]) >= starts[part.path]:
                    if not threads:
                        num_processes += 1
                        self._name("process", number, 0, part.anchor.process, number)
                    self._record(number, threads, part, record)
        self._out.write(b'\n],"otherData":' + _encoder.encode({"dropped": num_dropped}) + b"}\n")
        return Merged(
            num_processes=num_processes, num_records=self._num_records, num_dropped=num_dropped
        )

    def _record(self, number: int, threads: dict[str, int], part: _Part, record: list[Any]) -> None:
        kind, track, name, start, end, more = record
        if track not in threads:
            threads[track] = len(threads) + 1
            self._name("thread", number, threads[track], track, threads[track])
        event: dict[str, Any] = {
            "ph": kind,
            "pid": number,
            "tid": threads[track],
            "name": name,
            "ts": (ts := self._microseconds(part, start)),
        }
        match kind:
            case "X":
                # Of what is written, so that spans which meet still meet.
                event |= {"dur": round(self._microseconds(part, end) - ts, 3), "args": more}
            case "i":
                event |= {"s": "t", "args": more}
            case "s" | "f":
                event |= {"cat": "message", "id": f"{part.group}/{more}"}
        if kind == "f":
            event["bp"] = "e"  # to the span around it, not to the next one
        self._num_records += 1
        self._event(event)

    def _microseconds(self, part: _Part, at: float) -> float:
        return round((self._clocks.place(part.anchor, at) - self._earliest) * 1e6, 3)

    def _name(self, what: str, number: int, thread: int, name: str, place: int) -> None:
        for key, args in (("name", {"name": name}), ("sort_index", {"sort_index": place})):
            self._event(
                {"ph": "M", "pid": number, "tid": thread, "name": f"{what}_{key}", "args": args}
            )

    def _event(self, event: dict[str, Any]) -> None:
        self._out.write(self._separator + _encoder.encode(event))
        self._separator = b",\n"
