"""A part of a trace as SVG: what is drawn, where, and what is left out."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from paceline.bench import trace_picture
from paceline.bench.trace_picture import COLOURS, LEFT, RIGHT, WIDTH, cut, draw
from paceline.trace import Tracer, merge

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two passes of 30 ms, and drafting, which begins with the first commit."""
    parts = tmp_path / "parts"
    parts.mkdir()
    with Tracer("verifier <a>", parts) as verifier, Tracer("drafter b", parts) as drafter:
        verifier.span("target", "verify", 100.0, 100.03, num_tokens=5)
        verifier.flow_start("target", "1", 100.03, "commit")
        verifier.span("target", "verify", 100.05, 100.08)
        drafter.span("draft", "draft", 100.03, 100.05)
        drafter.span("draft", "forward", 100.031, 100.04)
        drafter.flow_end("draft", "1", 100.0305, "commit")
    merge(parts, tmp_path / "t.json")
    return tmp_path / "t.json"


def picture(trace: Path, start: float, end: float) -> ElementTree.Element:
    """Returns the drawn interval, in milliseconds."""
    return ElementTree.fromstring(draw(cut(trace.read_bytes(), start, end)))


def bars(drawn: ElementTree.Element) -> list[tuple[str, float, float]]:
    """Returns colour, left edge and width of the bars."""
    return [
        (bar.attrib["fill"], float(bar.attrib["x"]), float(bar.attrib["width"]))
        for bar in drawn.iter(f"{SVG}rect")
        if bar.find(f"{SVG}title") is not None
    ]


def texts(drawn: ElementTree.Element) -> list[str]:
    """Returns all texts."""
    return [text.text or "" for text in drawn.iter(f"{SVG}text")]


def test_bars_lie_where_their_times_are(trace: Path) -> None:
    drawn = picture(trace, 0, 80)
    first, second, draft, inner = bars(drawn)
    length = WIDTH - LEFT - RIGHT
    assert [b[0] for b in (first, second, draft)] == [
        *(COLOURS["verify"], COLOURS["verify"], COLOURS["draft"]),
    ]
    assert first[1:] == pytest.approx((LEFT, length * 30 / 80), abs=0.02)
    assert second[1:] == pytest.approx((LEFT + length * 50 / 80, length * 30 / 80), abs=0.02)
    assert draft[1:] == pytest.approx((LEFT + length * 30 / 80, length * 20 / 80), abs=0.02)
    assert draft[1] < inner[1] and inner[2] < draft[2]


def test_what_is_written(trace: Path) -> None:
    found = texts(picture(trace, 0, 80))
    assert {"verifier <a>", "drafter b", "target", "70", "80 ms"} <= set(found)
    # In both bars and in the legend; what lies within a bar covers its name.
    assert (found.count("verify"), found.count("forward")) == (3, 2)
    assert [text for text in found if text == "draft"] == ["draft"] * 2, "track and legend"
    titles = [title.text for title in picture(trace, 0, 80).iter(f"{SVG}title")]
    assert titles[0] == "verify, 30.00 ms: num_tokens 5"


def test_what_reaches_over_the_interval_is_cut(trace: Path) -> None:
    [only] = bars(picture(trace, 10, 20))
    assert only[1:] == (LEFT, WIDTH - LEFT - RIGHT)
    assert "drafter b" not in texts(picture(trace, 10, 20)), "a process without a span"


def arrows(drawn: ElementTree.Element) -> list[ElementTree.Element]:
    """Returns the arrows."""
    return [path for path in drawn.iter(f"{SVG}path") if path.get("class") == "arrow"]


def test_arrows_need_both_ends(trace: Path) -> None:
    assert len(arrows(picture(trace, 0, 80))) == 1
    assert len(arrows(picture(trace, 0, 30.2))) == 0
    assert len(arrows(picture(trace, 30.2, 80))) == 0


def test_the_script(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "o.svg"
    interval = ["--from", "0", "--to", "80"]
    assert trace_picture.main([str(trace), str(out), *interval]) == 0
    assert out.read_text(encoding="utf-8").startswith("<svg ")
    for arguments, expected in (
        ([str(tmp_path / "no"), str(out), *interval], "no: no such file or directory"),
        ([str(trace), str(tmp_path / "no" / "o.svg"), *interval], "no such file or directory"),
        ([str(out), str(out), *interval], "it is no trace that paceline has written"),
        ([str(trace), str(out), "--from", "90", "--to", "99"], "it ends at 80 ms"),
    ):
        assert trace_picture.main(arguments) == 2
        assert expected in capsys.readouterr().err


def test_an_interval_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        trace_picture.main(["t", "o", "--from", "5", "--to", "5"])
    assert ended.value.code == 2
    assert "--from must be before --to" in capsys.readouterr().err
