"""What processes take down, and the one file that is made of it."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline import trace
from paceline.trace import DISABLED, Anchor, Tracer, flow_id, merge


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the next anchors are made of; a test changes it to be on another node."""
    values: dict[str, Any] = {"node": "a", "monotonic": 1000.0, "wall": 1_800_000_000.0}

    def here(process: str) -> Anchor:
        return Anchor(process=process, **values)

    monkeypatch.setattr(Anchor, "here", here)
    return values


def merged(folder: Path) -> list[dict[str, Any]]:
    """Merges the parts in ``folder`` and returns the events."""
    merge(folder, folder / "trace.json")
    events: list[dict[str, Any]] = json.loads((folder / "trace.json").read_text())["traceEvents"]
    return events


def kind(events: list[dict[str, Any]], *phases: str) -> list[dict[str, Any]]:
    """Returns the events of these phases."""
    return [event for event in events if event["ph"] in phases]


def names(events: list[dict[str, Any]], what: str) -> dict[tuple[int, int], str]:
    """Returns the names of all processes or threads by process and thread."""
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == f"{what}_name"}


def part(folder: Path) -> Path:
    """Returns the only part in ``folder``."""
    [path] = folder.glob("*.jsonl")
    return path


def test_two_processes_on_one_clock(tmp_path: Path) -> None:
    with Tracer("drafter ngram", tmp_path) as drafter, Tracer("verifier target", tmp_path) as ours:
        ours.span("target", "verify", 1001.0, 1001.025, num_requests=2)
        ours.span("scheduler", "update", 1001.025, 1001.0255)
        drafter.span("draft", "draft", 1001.026, 1001.0275, rows=2)
        drafter.instant("draft", "stale", 1001.0275)
    events = merged(tmp_path)
    assert names(events, "process") == {(1, 0): "verifier target", (2, 0): "drafter ngram"}
    assert names(events, "thread") == {(1, 1): "target", (1, 2): "scheduler", (2, 1): "draft"}
    verify, update, draft = kind(events, "X")
    assert verify == {
        "ph": "X",
        "pid": 1,
        "tid": 1,
        "name": "verify",
        "ts": 0.0,
        "dur": 25000.0,
        "args": {"num_requests": 2},
    }
    assert (update["tid"], update["ts"], update["dur"]) == (2, 25000.0, 500.0)
    assert (draft["pid"], draft["ts"], draft["dur"]) == (2, 26000.0, 1500.0)
    [instant] = kind(events, "i")
    assert (instant["ts"], instant["s"]) == (27500.0, "t")


def test_spans_that_meet_still_meet(tmp_path: Path) -> None:
    """A span that seems to begin before the last one ended is drawn wrongly or not at all."""
    times = [1234567.0 + 0.0123456789 * i for i in range(1000)]
    with Tracer("p", tmp_path) as tracer:
        for start, end in itertools.pairwise(times):
            tracer.span("t", "s", start, end)
    spans = kind(merged(tmp_path), "X")
    assert len(spans) == 999
    for before, after in itertools.pairwise(spans):
        assert round(before["ts"] + before["dur"], 3) == after["ts"]


def test_arrows_connect_the_parts_of_one_folder(tmp_path: Path) -> None:
    name = flow_id("ngram", 7, 40, "proposal")
    for folder in (tmp_path / "0", tmp_path / "1"):
        folder.mkdir()
        with Tracer("drafter", folder) as drafter, Tracer("verifier", folder) as verifier:
            drafter.flow_start("draft", name, 1.0, "proposal")
            verifier.flow_end("target", name, 2.0, "proposal")
    tails, heads = (kind(merged(tmp_path), phase) for phase in "sf")
    assert [e["id"] for e in tails] == [e["id"] for e in heads]
    assert len({e["id"] for e in tails}) == 2
    assert {e["bp"] for e in heads} == {"e"}
    assert len({(e["cat"], e["name"]) for e in tails + heads}) == 1


def test_a_killed_process_loses_its_last_line_only(tmp_path: Path) -> None:
    with Tracer("p", tmp_path) as tracer:
        for i in range(3):
            tracer.span("t", f"s{i}", i, i + 1)
    path = part(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    assert [e["name"] for e in kind(merged(tmp_path), "X")] == ["s0", "s1"]


@pytest.mark.parametrize("content", [b"", b'{"process":"p","no', b"\xff\n"])
def test_a_part_without_a_whole_anchor_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p-1.jsonl").write_bytes(content)
    assert merged(tmp_path) == []


def test_chunks_reach_the_disk_before_the_end(tmp_path: Path) -> None:
    tracer = Tracer("p", tmp_path)
    for i in range(trace.CHUNK_RECORDS - 1):
        tracer.instant("t", "i", i / 1e6)
    assert not list(tmp_path.iterdir())
    tracer.instant("t", "i", 1.0)
    assert len(kind(merged(tmp_path), "i")) == trace.CHUNK_RECORDS
    tracer.instant("t", "i", 2.0)
    tracer.instant("t", "i", 2.0 + trace.CHUNK_SECONDS)
    assert len(kind(merged(tmp_path), "i")) == trace.CHUNK_RECORDS + 2


def test_what_is_over_the_limit_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_RECORDS", 10)
    with Tracer("p", tmp_path) as tracer:
        for i in range(25):
            tracer.span("t", "s", i, i + 0.5)
    found = merge(tmp_path, tmp_path / "trace.json")
    assert (found.num_processes, found.num_records, found.num_dropped) == (1, 10, 15)
    assert json.loads((tmp_path / "trace.json").read_text())["otherData"] == {"dropped": 15}


def test_two_threads_lose_nothing(tmp_path: Path) -> None:
    def work(tracer: Tracer, track: str) -> None:
        for i in range(5000):
            tracer.span(track, "s", i, i + 1)

    with Tracer("p", tmp_path) as tracer:
        threads = [threading.Thread(target=work, args=(tracer, name)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    spans = kind(merged(tmp_path), "X")
    assert len(spans) == 10_000
    assert all(len([s for s in spans if s["tid"] == tid]) == 5000 for tid in (1, 2))


def test_without_a_folder_nothing_is_kept() -> None:
    assert not DISABLED.enabled
    DISABLED.span("t", "s", 0.0, 1.0)
    DISABLED.instant("t", "i", 0.0)
    DISABLED.flow_start("t", "f", 0.0, "f")
    DISABLED.flow_end("t", "f", 0.0, "f")
    DISABLED.close()
    assert not DISABLED._pending


def test_after_the_end_nothing_is_kept(tmp_path: Path) -> None:
    tracer = Tracer("p", tmp_path)
    tracer.span("t", "s", 0.0, 1.0)
    tracer.close()
    written = part(tmp_path).read_bytes()
    tracer.span("t", "s", 1.0, 2.0)
    tracer.close()
    assert not tracer.enabled
    assert part(tmp_path).read_bytes() == written


def test_a_disk_that_takes_nothing_ends_the_trace_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracer = Tracer("p", tmp_path / "gone")
    tracer.span("t", "s", 0.0, 5.0)
    tracer.span("t", "s", 5.0, 10.0)
    assert not tracer.enabled
    assert "the trace ends here" in caplog.text


def test_what_came_before_the_beginning_is_left_out(tmp_path: Path, clocks: dict[str, Any]) -> None:
    early, late = tmp_path / "early", tmp_path / "late"
    for folder in (early, late):
        (folder / "0").mkdir(parents=True)
        with Tracer(folder.name, folder / "0") as tracer:
            tracer.span("t", "warm-up", 1001.0, 1002.5)
            tracer.span("t", "s", 1003.0, 1004.0)
    clocks.update(monotonic=1002.0, wall=1_800_000_002.0)
    trace.begin(late)
    events = merged(tmp_path)
    assert [(e["pid"], e["name"]) for e in kind(events, "X")] == [
        *((1, "warm-up"), (1, "s"), (2, "s")),
    ]
    trace.begin(tmp_path)
    clocks.update(monotonic=1009.0, wall=1_800_000_009.0)
    trace.begin(early)
    assert [(e["pid"], e["name"], e["ts"]) for e in kind(merged(tmp_path), "X")] == [(2, "s", 0.0)]
    assert list(names(merged(tmp_path), "process").values()) == ["late"]


def test_nodes_are_laid_over_each_other_by_their_wall_clocks(
    tmp_path: Path, clocks: dict[str, Any]
) -> None:
    with Tracer("verifier", tmp_path) as tracer:
        tracer.span("t", "s", 1001.0, 1002.0)
    # Meanwhile somebody has set the clock of this node.
    clocks.update(monotonic=1000.5, wall=1_800_003_600.5)
    with Tracer("drafter a", tmp_path) as tracer:
        tracer.span("t", "s", 1001.5, 1002.0)
    clocks.update(node="b", monotonic=50.0, wall=1_800_000_000.0)
    with Tracer("drafter b", tmp_path) as tracer:
        tracer.span("t", "s", 51.25, 52.0)
    assert [e["ts"] for e in kind(merged(tmp_path), "X")] == pytest.approx([0.0, 5e5, 2.5e5])


def test_the_file_appears_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Tracer("p", tmp_path) as tracer:
        tracer.span("t", "s", 0.0, 1.0)
    file = tmp_path / "trace.json"
    file.write_text("before")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(trace._Writer, "_event", full)
        with pytest.raises(OSError, match="No space"):
            merge(tmp_path, file)
    assert file.read_text() == "before"
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".json", ".jsonl"]
    assert merged(tmp_path)


def test_any_value_may_stand_beside_a_span(tmp_path: Path) -> None:
    with Tracer("p", tmp_path) as tracer:
        tracer.span("t", "s", 0.0, 1.0, path=tmp_path, ids=(1, 2), ratio=float("nan"), odd={1j})
    [span] = kind(merged(tmp_path), "X")
    assert span["args"]["path"] == str(tmp_path)
    assert (span["args"]["ids"], span["args"]["ratio"]) == ([1, 2], None)


def test_the_names_of_processes_make_file_names(tmp_path: Path) -> None:
    name = "verifier paceline:a/b@pipelined K=4 ../x"
    with Tracer(name, tmp_path) as tracer:
        tracer.span("t", "s", 0.0, 1.0)
    assert list(names(merged(tmp_path), "process").values()) == [name]
    first = part(tmp_path).read_bytes().splitlines()[0]
    assert msgspec.json.decode(first, type=Anchor).process == name
