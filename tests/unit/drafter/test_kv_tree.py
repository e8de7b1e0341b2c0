"""The tree's bookkeeping against a plain picture of it: which text each cell was computed from."""

from __future__ import annotations

import random

import pytest

from paceline.drafter import kv_tree
from paceline.drafter.kv_tree import Feed, TokenTree

Text = tuple[int, ...]


class Picture:
    """A slot that remembers for each cell the text up to and with the cell's token.

    Attributes:
        known: What was computed and neither contradicted since nor dropped for the limit.
    """

    def __init__(self) -> None:
        self.tree = TokenTree()
        self.cells: dict[int, Text] = {}
        self.known: set[Text] = set()

    def feed(self, text: Text, paths: list[Text]) -> Feed:
        """Feeds; fails if a token sees what it should not, or if too much or too little is fed."""
        beginnings = {text[:end] for end in range(1, len(text) + 1)}
        self.known = {
            known for known in self.known if known in beginnings or is_behind(text, known)
        }
        assert self.tree.num_known(text) == len(self.known & beginnings)
        feed = self.tree.feed(text, paths)
        self._compute(text, feed)
        ends = [text + path for path in paths]
        wanted = beginnings | {end[:size] for end in ends for size in range(1, len(end) + 1)}
        branches = {known for known in self.known | wanted if len(known) > len(text)}
        if len(branches) > kv_tree.MAX_BRANCH_TOKENS:
            self.known &= wanted
        fed = [self.cells[cell] for cell in feed.cells]
        assert len(fed) == len(set(fed)), "fed twice"
        assert set(fed) == (wanted - self.known) | set(ends)
        assert [self.cells[feed.cells[end]] for end in feed.ends] == ends
        self.known |= wanted
        assert self.tree.num_cells == len(self.known)
        assert {self.cells[cell] for cell in range(self.tree.num_cells)} == self.known
        return feed

    def _compute(self, text: Text, feed: Feed) -> None:
        self.cells |= {after: self.cells[before] for before, after in feed.moves}
        sees = [[*range(b), *branch] for b, branch in zip(feed.bounds, feed.branches, strict=True)]
        for token, cell, branch in zip(feed.tokens, feed.cells, feed.branches, strict=True):
            above = self.cells[branch[-2]] if len(branch) > 1 else text if branch else text[:cell]
            self.cells[cell] = (*above, token)
        for position, cell, seen in zip(feed.positions, feed.cells, sees, strict=True):
            own = self.cells[cell]
            assert position == len(own) - 1
            # In order: a window over positions is the end of this list.
            assert [self.cells[c] for c in seen] == [own[:end] for end in range(1, len(own) + 1)]


def is_behind(text: Text, longer: Text) -> bool:
    return len(longer) > len(text) and longer[: len(text)] == text


def test_a_text_is_fed_in_order() -> None:
    picture = Picture()
    assert picture.feed((5, 6, 7), []).cells == [0, 1, 2]
    assert picture.feed((5, 6, 7, 8, 9), [()]).cells == [3, 4]


def test_the_last_token_of_a_known_path_is_fed_again() -> None:
    picture = Picture()
    picture.feed((1, 2), [(3, 4)])
    assert picture.feed((1, 2), [(3, 4)]).tokens == [4]
    assert picture.feed((1, 2), [(3,)]).tokens == [3]
    assert picture.feed((1, 2), [()]).tokens == [2]


def test_paths_share_what_they_have_in_common() -> None:
    picture = Picture()
    feed = picture.feed((1,), [(2, 3, 4), (2, 3, 5), (2, 6), (7,), ()])
    assert sorted(feed.tokens) == [1, 2, 3, 4, 5, 6, 7]
    assert picture.feed((1,), [(2, 3, 4, 8), (2, 6, 8)]).tokens == [8, 8]


def test_a_commit_that_came_in_order_moves_nothing() -> None:
    """As in lockstep: one path, of which a part is committed and then another token."""
    picture = Picture()
    for size in range(4):
        picture.feed((1,), [(2, 3, 4)[:size]])
    feed = picture.feed((1, 2, 3, 9), [()])
    assert feed.moves == []
    assert feed.cells == [3]


def test_a_commit_along_a_branch_keeps_what_is_behind_it() -> None:
    picture = Picture()
    picture.feed((1,), [(2, 3), (4, 5), (4, 6), (4, 5, 7)])
    feed = picture.feed((1, 4), [(5, 7, 8), (6, 8)])
    assert feed.tokens == [8, 8]
    assert picture.tree.num_cells == 7


def test_what_contradicts_the_text_is_dropped() -> None:
    picture = Picture()
    picture.feed((1,), [(2, 3), (4, 5)])
    assert picture.feed((1, 9), [()]).tokens == [9]
    assert picture.tree.num_cells == 2
    assert picture.feed((1, 9), [(2, 3)]).tokens == [2, 3]


def test_beyond_the_limit_only_the_latest_paths_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_tree, "MAX_BRANCH_TOKENS", 4)
    picture = Picture()
    picture.feed((1,), [(2, 3), (4, 5)])
    assert picture.feed((1,), [(4, 5, 6)]).tokens == [6]
    assert picture.tree.num_cells == 1 + 3
    assert picture.feed((1,), [(2, 3)]).tokens == [2, 3]
    assert picture.tree.num_cells == 1 + 2


@pytest.mark.parametrize("limit", [3, 12, 1000])
@pytest.mark.parametrize("seed", range(20))
def test_a_random_life(seed: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tokens, so that much is had in common, matched and met again."""
    monkeypatch.setattr(kv_tree, "MAX_BRANCH_TOKENS", limit)
    rng = random.Random(seed)
    picture = Picture()
    text: Text = (0,)
    for _ in range(60):
        if rng.random() < 0.4:
            along = [known for known in sorted(picture.known) if is_behind(text, known)]
            if along and rng.random() < 0.8:
                text = rng.choice(along)
            if rng.random() < 0.5:
                text += tuple(rng.choices(range(3), k=rng.randint(1, 3)))
        paths = {
            tuple(rng.choices(range(3), k=rng.randint(0, 5))) for _ in range(rng.randint(0, 8))
        }
        picture.feed(text, rng.sample(sorted(paths), len(paths)))
