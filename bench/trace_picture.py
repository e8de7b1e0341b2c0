"""A part of a trace as a picture: ``python -m paceline.bench.trace_picture TRACE.json OUT.svg
--from MS --to MS``, times as the trace's viewer shows them."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import InputError, UserError

WIDTH = 960
LEFT = 84
"""Width of the tracks' names."""
RIGHT = 30
TITLE, ROW, INSET = 20, 24, 4
"""Heights of a process's name and of a track; what a span within another is lower by, each side."""
LETTER = 6.2
"""Width of a letter, about: SVG does not tell."""

COLOURS = {
    "verify": "#5b8def",
    "draft": "#f2a33a",
    "branches": "#7cb85c",
    "prefill": "#c9a27a",
    "wait": "#e4e4e4",
    "schedule": "#9a8fd1",
    "update": "#c3b7ea",
    "send": "#2f6f6f",
    "receive": "#5fb3b3",
}
OTHERS = ("#d98aa5", "#b5bd4c", "#8fb0c9", "#a0a0a0")
"""Of names that are not in ``COLOURS``, in turns."""


class _Event(msgspec.Struct, frozen=True):
    """What is read of an event; ``paceline.trace`` writes it."""

    ph: str
    pid: int
    tid: int
    name: str
    ts: float = 0.0
    dur: float = 0.0
    id: str = ""
    args: dict[str, Any] = {}


class _Trace(msgspec.Struct, frozen=True):
    traceEvents: list[_Event]


Place = tuple[int, int]
"""Process and thread of an event."""


@dataclass(frozen=True, slots=True)
class Span:
    """A bar. Times in milliseconds."""

    place: Place
    name: str
    start: float
    end: float
    depth: int
    """In how many other spans of its track it lies."""
    about: str

    def holds(self, other: Span) -> bool:
        """Whether ``other`` lies within this span."""
        return (
            self.place == other.place
            and self.depth < other.depth
            and self.start <= other.start < self.end
        )


@dataclass(frozen=True, slots=True)
class Arrow:
    """A message from one track to another. Times in milliseconds."""

    tail: Place
    sent: float
    head: Place
    received: float


@dataclass(slots=True)
class Part:
    """What lies within an interval of a trace."""

    start: float
    end: float
    spans: list[Span] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    processes: dict[int, str] = field(default_factory=dict)
    tracks: dict[Place, str] = field(default_factory=dict)
    """Those that have a span, from top to bottom."""


def cut(trace: bytes, start: float, end: float) -> Part:
    """Reads what a trace has between ``start`` and ``end``, in milliseconds.

    Raises:
        InputError: it is no trace of Paceline's, or has no span there.
    """
    try:
        events = msgspec.json.decode(trace, type=_Trace).traceEvents
    except msgspec.DecodeError as error:
        raise InputError(f"it is no trace that paceline has written: {error}") from error
    part = Part(start, end)
    part.spans = list(_spans(events, start, end))
    if not part.spans:
        last = max((e.ts + e.dur for e in events), default=0.0) / 1000
        raise InputError(
            f"the trace has no span between {start:g} and {end:g} ms; it ends at {last:.0f} ms"
        )
    part.arrows = list(_arrows(events, start, end))
    named = {(e.name, e.pid, e.tid): e.args.get("name", "") for e in events if e.ph == "M"}
    for place in sorted({span.place for span in part.spans}):
        part.tracks[place] = named.get(("thread_name", *place), str(place[1]))
        part.processes[place[0]] = named.get(("process_name", place[0], 0), str(place[0]))
    return part


def _spans(events: Sequence[_Event], start: float, end: float) -> Iterator[Span]:
    """Yields track by track what overlaps the interval, each span before those within it."""
    open_ends: dict[Place, list[float]] = {}
    bars = (e for e in events if e.ph == "X" and e.ts < 1000 * end and e.ts + e.dur > 1000 * start)
    for event in sorted(bars, key=lambda e: (e.pid, e.tid, e.ts, -e.dur)):
        place = (event.pid, event.tid)
        around = [e for e in open_ends.get(place, []) if e > event.ts]
        open_ends[place] = [*around, event.ts + event.dur]
        values = ", ".join(f"{name} {value}" for name, value in event.args.items())
        yield Span(
            place=place,
            name=event.name,
            start=event.ts / 1000,
            end=(event.ts + event.dur) / 1000,
            depth=len(around),
            about=f"{event.name}, {event.dur / 1000:.2f} ms{': ' if values else ''}{values}",
        )


def _arrows(events: Sequence[_Event], start: float, end: float) -> Iterator[Arrow]:
    """Yields those with both ends in the interval; the others would point at nothing."""
    within = [e for e in events if e.ph in "sf" and start <= e.ts / 1000 <= end]
    tails = {(e.name, e.id): e for e in within if e.ph == "s"}
    for head in within:
        tail = tails.get((head.name, head.id))
        if head.ph == "f" and tail is not None:
            yield Arrow((tail.pid, tail.tid), tail.ts / 1000, (head.pid, head.tid), head.ts / 1000)


def draw(part: Part) -> str:
    """Returns the picture as SVG."""
    colours = _colours(part)
    tops: dict[Place, float] = {}
    lines: list[str] = []
    axis: list[str] = []
    y = 6.0
    for process, places in itertools.groupby(part.tracks, key=lambda place: place[0]):
        lines.append(_text(8, y + 14, part.processes[process], 'class="process"'))
        y += TITLE
        for place in places:
            tops[place] = y
            lines.append(_text(LEFT - 8, y + 16, part.tracks[place], 'class="track"'))
            axis.append(f'<path class="ground" d="M{LEFT} {y + ROW / 2:g}H{WIDTH - RIGHT}"/>')
            y += ROW
        y += 6
    axis += _axis(part, y)
    # What is within a span covers its name, and comes next in the order of ``_spans``.
    covered = {i for i, (a, b) in enumerate(itertools.pairwise(part.spans)) if a.holds(b)}
    bars = [
        _bar(part, span, tops[span.place], colours[span.name], has_name=number not in covered)
        for number, span in enumerate(part.spans)
    ]
    arrows = [_arrow(part, one, tops) for one in part.arrows if {one.tail, one.head} <= tops.keys()]
    legend = _legend(colours, y + 34)
    height = y + 58
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
            f'width="{WIDTH}" height="{height:g}">',
            _STYLE,
            f'<rect width="{WIDTH}" height="{height:g}" fill="#fff"/>',
            *axis,
            *bars,
            *arrows,
            *lines,
            *legend,
            "</svg>\n",
        ]
    )


_STYLE = """<style>
text { font: 11px system-ui, "DejaVu Sans", sans-serif; fill: #333 }
.process { font-weight: 600; font-size: 12px; paint-order: stroke; stroke: #fff; stroke-width: 3 }
.track, .tick { fill: #777 } .track { text-anchor: end } .tick, .in { text-anchor: middle }
.in { fill: #fff } .in.dark { fill: #555 }
.ground, .grid { stroke: #eee }
.arrow { stroke: #555; stroke-width: 0.8; fill: none; marker-end: url(#head) }
</style>
<marker id="head" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6"
orient="auto"><path d="M0 0L6 3L0 6Z" fill="#555"/></marker>"""


def _colours(part: Part) -> dict[str, str]:
    """Returns a colour for each name in the part, known names first."""
    names = dict.fromkeys(span.name for span in part.spans)
    others = itertools.cycle(OTHERS)
    found = {name: colour for name, colour in COLOURS.items() if name in names}
    return found | {name: next(others) for name in names if name not in COLOURS}


def _x(part: Part, at: float) -> float:
    share = (min(max(at, part.start), part.end) - part.start) / (part.end - part.start)
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 2)


def _bar(part: Part, span: Span, top: float, colour: str, *, has_name: bool) -> str:
    left, right = _x(part, span.start), _x(part, span.end)
    # Narrower than this it could not be seen.
    width = max(right - left, 0.75)
    inset = 2 + INSET * min(span.depth, 2)
    bar = (
        f'<rect x="{left:g}" y="{top + inset:g}" width="{width:.2f}" '
        f'height="{ROW - 2 * inset:g}" rx="2" fill="{colour}">'
        f"<title>{escape(span.about)}</title></rect>"
    )
    if not has_name or width < LETTER * len(span.name) + 6:
        return bar
    shade = "in dark" if span.name == "wait" else "in"
    return bar + _text((left + right) / 2, top + 16, span.name, f'class="{shade}"')


def _arrow(part: Part, arrow: Arrow, tops: dict[Place, float]) -> str:
    down = tops[arrow.tail] < tops[arrow.head]
    # From the edge of one bar to the edge of the other.
    tail = tops[arrow.tail] + (ROW - 2 if down else 2)
    head = tops[arrow.head] + (2 if down else ROW - 2)
    x, to = _x(part, arrow.sent), _x(part, arrow.received)
    return f'<path class="arrow" d="M{x:g} {tail:g}L{to:g} {head:g}"/>'


def _axis(part: Part, bottom: float) -> list[str]:
    step = _step((part.end - part.start) / 10)
    lines = []
    for number in range(math.ceil(part.start / step), math.floor(part.end / step) + 1):
        at = number * step
        x = _x(part, at)
        lines.append(f'<path class="grid" d="M{x:g} 6V{bottom:g}"/>')
        last = number == math.floor(part.end / step)
        lines.append(_text(x, bottom + 14, f"{at:.10g}{' ms' if last else ''}", 'class="tick"'))
    return lines


def _step(least: float) -> float:
    """Returns the smallest of 1, 2, 5, 10, … that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)


def _legend(colours: dict[str, str], top: float) -> list[str]:
    lines, x = [], float(LEFT)
    for name, colour in colours.items():
        lines.append(f'<rect x="{x:g}" y="{top:g}" width="11" height="11" rx="2" fill="{colour}"/>')
        lines.append(_text(x + 16, top + 10, name, ""))
        x = round(x + 34 + LETTER * len(name), 1)
    return lines


def _text(x: float, y: float, text: str, attributes: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" {attributes}>{escape(text)}</text>'


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the script; returns 0, or 2 if the user has something to correct."""
    parser = argparse.ArgumentParser(prog="python -m paceline.bench.trace_picture")
    parser.add_argument("trace", type=Path, metavar="TRACE.json")
    parser.add_argument("out", type=Path, metavar="OUT.svg")
    parser.add_argument("--from", type=float, required=True, metavar="MS", dest="start")
    parser.add_argument("--to", type=float, required=True, metavar="MS", dest="end")
    arguments = parser.parse_args(argv)
    if not 0 <= arguments.start < arguments.end < math.inf:
        parser.error("--from must be before --to")
    try:
        picture = draw(cut(arguments.trace.read_bytes(), arguments.start, arguments.end))
        arguments.out.write_text(picture, encoding="utf-8")
    except OSError as error:
        print(f"error: {error.filename}: {(error.strerror or '').lower()}", file=sys.stderr)
        return 2
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
