"""Messages as both ends of a link take them down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.messages import (
    Branch,
    Branches,
    Close,
    Commit,
    Committed,
    Message,
    Open,
    Proposal,
    Proposed,
    Sampling,
)
from paceline.trace import Tracer, merge
from paceline.transport import Dealer, Router
from tests.unit.wire import next_from, next_message, send_soon


def branch(*tokens: int) -> Branch:
    """Returns a branch of request 7."""
    return Branch(handle=7, base_length=40, num_outcome=1, tokens=list(tokens))


OPEN = Open(
    handle=7,
    prompt_ids=[1],
    output_ids=[],
    block_hashes=[],
    num_computed_tokens=0,
    sampling=Sampling(temperature=0.0, top_k=0, top_p=1.0),
)
COMMIT = Commit(
    commits=[Committed(handle=h, base_length=40, num_accepted=0, tokens=[3]) for h in (7, 8)]
)
PROPOSAL = Proposal(
    proposals=[Proposed(handle=7, base_length=41, tokens=[4, 5], confidence=[])], spent_s=0.0
)
TO_DRAFTER: list[Message] = [OPEN, COMMIT]
TO_VERIFIER: list[Message] = [
    PROPOSAL,
    Branches(branches=[branch(3, 4), branch(5, 6)]),
    Branches(branches=[branch(7, 8)]),
]


@pytest.fixture
def events(address: str, tmp_path: Path) -> list[dict[str, Any]]:
    """What is in the trace after each message has gone its way, and two that have no span."""
    with (
        Tracer("verifier", tmp_path) as ours,
        Tracer("drafter", tmp_path) as theirs,
        Router(address, 64, None, ours) as router,
        Dealer(address, 64, None, b"twin/1f", theirs) as dealer,
    ):
        for message in TO_VERIFIER:
            send_soon(dealer, message)
            assert next_from(router) == (b"twin/1f", message)
        for message in [*TO_DRAFTER, Commit(commits=[]), Close(handles=[7])]:
            assert router.send(b"twin/1f", message)
            assert next_message(dealer) == message
    merge(tmp_path, tmp_path / "t.json")
    found: list[dict[str, Any]] = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    return found


def test_each_has_a_span_at_both_ends(events: list[dict[str, Any]]) -> None:
    spans = [
        (e["pid"], e["name"], e["args"]["message"], e["args"]["size"])
        for e in events
        if e["ph"] == "X"
    ]
    assert spans == [
        (1, "receive", "Proposal", 1),
        (1, "receive", "Branches", 2),
        (1, "receive", "Branches", 1),
        (1, "send", "Open", 1),
        (1, "send", "Commit", 2),
        (2, "send", "Proposal", 1),
        (2, "send", "Branches", 2),
        (2, "send", "Branches", 1),
        (2, "receive", "Open", 1),
        (2, "receive", "Commit", 2),
    ]


def test_each_has_an_arrow_of_its_own(events: list[dict[str, Any]]) -> None:
    tails = {e["id"]: e for e in events if e["ph"] == "s"}
    heads = {e["id"]: e for e in events if e["ph"] == "f"}
    assert tails.keys() == heads.keys()
    assert len(tails) == len(TO_DRAFTER) + len(TO_VERIFIER)
    for name, tail in tails.items():
        assert tail["pid"] != heads[name]["pid"]
        assert tail["name"] == heads[name]["name"]
        assert tail["ts"] <= heads[name]["ts"]


def test_each_arrow_ends_in_spans(events: list[dict[str, Any]]) -> None:
    """Viewers drop it elsewhere."""
    starts = [(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] == "X"]
    ends = [(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] in "sf"]
    assert sorted(starts) == sorted(ends)
