"""A run's decisions, written down to be made again: every event, and what the state answered.

A recording is lines of JSON: a ``Header``, then one ``Record`` for each event. The state begins
empty, and time comes with the events, so ``replay`` must get the same commands bit for bit. The
last line may be torn, where the process was killed; any other line that is not whole is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from paceline.errors import DifferenceError, InputError
from paceline.scheduler.config import SpeculationConfig
from paceline.scheduler.counters import MissCause, RequestCounters
from paceline.scheduler.events import Command, Event, PassEnded, RequestAdmitted
from paceline.scheduler.state import PipelineState

FORMAT_VERSION = 1
"""Raised by every change of events or decisions that an older recording would be replayed wrongly
with."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line."""

    paceline_recording: int
    """``FORMAT_VERSION`` of who wrote it."""
    speculation: SpeculationConfig


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Each further line."""

    event: Event
    commands: list[Command]


class Recorder:
    """Writes a recording, a whole line at a time."""

    def __init__(self, write: Callable[[bytes], object], config: SpeculationConfig) -> None:
        self._write = write
        self._encoder = msgspec.json.Encoder()
        self._line(Header(paceline_recording=FORMAT_VERSION, speculation=config))

    def record(self, event: Event, commands: list[Command]) -> None:
        """Writes down one event, and what it was answered with."""
        self._line(Record(event=event, commands=commands))

    def _line(self, line: Header | Record) -> None:
        self._write(self._encoder.encode(line) + b"\n")


@dataclass(kw_only=True, slots=True)
class Replay:
    """What a recording held; all of it was answered as it was then."""

    num_events: int = 0
    num_passes: int = 0
    is_torn: bool = False
    """Its last line is not whole, and was left out."""
    counters: list[RequestCounters] = field(default_factory=list)
    """Of all requests, in the order of their admission."""

    @property
    def hits(self) -> int:
        """Hits of all requests."""
        return sum(counters.hits for counters in self.counters)

    @property
    def misses(self) -> Counter[MissCause]:
        """Misses of all requests by cause."""
        return sum((Counter(counters.misses) for counters in self.counters), Counter())


def replay(lines: Iterable[bytes]) -> Replay:
    """Feeds a new state what ``lines`` hold, each with its line break.

    Raises:
        DifferenceError: the state answers other than it did.
        InputError: this is no recording, one of another version, or a damaged one.
    """
    numbered = enumerate(lines, 1)
    header = _read_header(next(numbered, (1, b""))[1])
    state = PipelineState(header.speculation)
    done = Replay()
    decoder = msgspec.json.Decoder(Record)
    for number, line in numbered:
        try:
            record = decoder.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            if not line.endswith(b"\n"):
                done.is_torn = True
                break
            raise InputError(f"line {number} of the recording is damaged: {error}") from error
        commands = state.handle(record.event)
        if commands != record.commands:
            raise DifferenceError(
                f"line {number}: {record.event} was answered with {_told(record.commands)}, and is "
                f"answered with {_told(commands)} now"
            )
        done.num_events += 1
        match record.event:
            case PassEnded():
                done.num_passes += 1
            case RequestAdmitted(handle=handle):
                done.counters.append(state.requests[handle].counters)
    return done


def _read_header(line: bytes) -> Header:
    try:
        header = msgspec.json.decode(line, type=Header)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"it does not begin as a recording does: {error}") from error
    if header.paceline_recording != FORMAT_VERSION:
        raise InputError(
            f"it is a recording of version {header.paceline_recording}, this Paceline replays "
            f"version {FORMAT_VERSION}"
        )
    return header


def _told(commands: list[Command]) -> str:
    return ", ".join(map(str, commands)) or "nothing"
