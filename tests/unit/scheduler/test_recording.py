"""A recording is replayed bit for bit, whatever happened; what is damaged is refused."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from paceline.errors import DifferenceError, InputError
from paceline.scheduler.config import SpeculationConfig
from paceline.scheduler.events import (
    Event,
    RequestAdmitted,
    SendOpen,
    StepAsked,
    TokensCommitted,
)
from paceline.scheduler.recording import FORMAT_VERSION, Header, Record, Recorder, replay
from paceline.scheduler.state import PipelineState
from tests.unit.both.network import Network, target_ranking
from tests.unit.drafter.playing import Played


def recorded(network: Network) -> list[bytes]:
    """Lets the network's state be recorded from now on; returns the lines, as they come."""
    lines: list[bytes] = []
    recorder = Recorder(lines.append, network.config)
    state = network.state
    answer: Callable[[Event], list[object]] = state.handle  # type: ignore[assignment]

    def handle(event: Event) -> list[object]:
        commands = answer(event)
        recorder.record(event, commands)  # type: ignore[arg-type]
        return commands

    state.handle = handle  # type: ignore[method-assign,assignment]
    return lines


def history(seed: int, num_turns: int = 300) -> tuple[Network, list[bytes], int, int]:
    """A long run at random; returns it with its recording, its hits and its misses."""
    rolls = random.Random(seed)
    network = Network()
    lines = recorded(network)
    counters = []
    for turn in range(num_turns):
        if rolls.random() < 0.03 or turn == 0:
            network.join(rolls.choice("ab"), rolls.randint(1, 4), 3, Played(target_ranking))
        if rolls.random() < 0.01:
            network.lose(rolls.choice("ab"))
        if rolls.random() < 0.1 or turn == 0:
            network.admit(turn + 1, rolls.randint(1, 5), rolls.random() < 0.9)
            counters.append(network.state.requests[turn + 1].counters)
        if rolls.random() < 0.04 and len(network.state.requests) > 1:
            network.abort(rolls.choice(list(network.state.requests)))
        for drafter in network.drafters.values():
            for _ in range(rolls.randint(0, 3)):
                if drafter.to_it:
                    network.deliver_to(drafter)
                drafter.step()
                if drafter.from_it:
                    network.deliver_from(drafter)
        handles = list(network.state.requests)
        decodes = [h for h in handles if network.state.requests[h].output_ids]
        plan = network.ask(decodes, prefill_ready=len(decodes) < len(handles))
        if plan.wait_until is not None:
            network.now += rolls.random() / 7
        else:
            network.end(network.start(handles), rolls.random() / 11)
    hits = sum(c.hits for c in counters)
    return network, lines, hits, sum(sum(c.misses.values()) for c in counters)


@pytest.mark.parametrize("seed", range(5))
def test_a_long_run_is_replayed_identically(seed: int) -> None:
    _, lines, hits, misses = history(seed)
    done = replay(lines)
    assert done.num_events == len(lines) - 1 > 400
    assert hits and misses
    assert (done.hits, done.misses.total()) == (hits, misses)
    assert done.num_passes == sum(b'"PassEnded"' in line for line in lines)
    assert not done.is_torn


def test_a_recording_of_nothing_is_identical() -> None:
    lines: list[bytes] = []
    Recorder(lines.append, SpeculationConfig())
    assert replay(lines).num_events == 0


def test_the_configuration_is_the_recorded_one() -> None:
    """With another patience the answer would be another one."""
    state = PipelineState(SpeculationConfig(patience_ms=0))
    lines: list[bytes] = []
    recorder = Recorder(lines.append, SpeculationConfig(patience_ms=0))
    for event in (
        RequestAdmitted(handle=1, prompt_ids=(1,)),
        TokensCommitted(handle=1, num_drafted=0, num_accepted=0, tokens=(2,), now=1.0),
        StepAsked(now=1.0, decodes=(1,), prefill_ready=False),
    ):
        recorder.record(event, state.handle(event))
    assert replay(lines).num_events == 3


def test_the_first_difference_is_told_with_its_line() -> None:
    _, lines, _, _ = history(1, 20)
    for number, line in enumerate(lines[1:], 1):
        record = msgspec.json.decode(line, type=Record)
        if any(isinstance(command, SendOpen) for command in record.commands):
            lines[number] = (
                msgspec.json.encode(msgspec.structs.replace(record, commands=[])) + b"\n"
            )
            break
    with pytest.raises(DifferenceError, match=rf"^line {number + 1}: .* with nothing.*SendOpen\("):
        replay(lines)


def test_a_difference_that_follows_from_a_lost_event_is_found() -> None:
    """What was a hit is none without its branch."""
    _, lines, hits, _ = history(1)
    assert hits
    without = [line for line in lines if b'"BranchArrived"' not in line]
    with pytest.raises(DifferenceError):
        replay(without)


@pytest.mark.parametrize("size", [1, 9, -1])
def test_a_torn_last_line_is_left_out(size: int) -> None:
    _, lines, _, _ = history(2, 30)
    whole = replay(lines).num_events
    torn = replay([*lines[:-1], lines[-1].rstrip(b"\n")[:size]])
    assert torn.is_torn and torn.num_events == whole - 1


def test_a_last_line_that_only_lacks_its_end_counts() -> None:
    _, lines, _, _ = history(2, 30)
    done = replay([*lines[:-1], lines[-1].rstrip(b"\n")])
    assert not done.is_torn and done.num_events == len(lines) - 1


@pytest.mark.parametrize(
    "damage",
    [
        b"\n",
        b"{\n",
        b"[]\n",
        b'{"event": {"type": "Nonsense"}, "commands": []}\n',
        b'{"event": {"type": "PassEnded"}, "commands": []}\n',
        b'{"event": {"type": "PassEnded", "now": "soon"}, "commands": []}\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
    ],
    ids=lambda damage: repr(damage[:40]),
)
def test_a_damaged_line_is_refused_with_its_number(damage: bytes) -> None:
    _, lines, _, _ = history(2, 10)
    lines[7] = damage
    with pytest.raises(InputError, match=r"^line 8 of the recording is damaged: "):
        replay(lines)
    with pytest.raises(InputError, match="damaged"):
        replay([*lines[:7], damage])


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (b"", "does not begin as a recording does"),
        (b"{}\n", "does not begin as a recording does"),
        (b'{"prompt": "x"}\n', "does not begin as a recording does"),
        (
            msgspec.json.encode(
                Header(paceline_recording=FORMAT_VERSION + 1, speculation=SpeculationConfig())
            ),
            f"it is a recording of version {FORMAT_VERSION + 1}",
        ),
    ],
)
def test_what_is_no_recording_is_refused(first: bytes, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        replay([first] if first else [])
