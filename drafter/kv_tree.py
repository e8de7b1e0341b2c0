"""Which cells of a cache slot hold which tokens: a text, and the tree of what may follow it.

The text lies in order: the token at position p in cell p. Behind it lie the tree's tokens, one cell
each without a gap; their positions follow from their depth. So paths share the cells of what they
have in common, a commit along a branch moves a few cells, and what contradicts the text is gone by
not being mentioned any more.

Pure bookkeeping: what is decided here is done by kv_slots.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_BRANCH_TOKENS = 2048
"""Tokens of a request's tree; beyond it only the paths of the latest call are kept."""


@dataclass(eq=False, slots=True)
class _Node:
    """A token that may come to be."""

    cell: int = -1
    """-1: has none yet, its keys and values are not computed."""
    children: dict[int, _Node] = field(default_factory=dict)


@dataclass(slots=True)
class Feed:
    """What one forward does for a request: first the moves, then Q tokens are computed.

    The lists without another remark have one entry a token.
    """

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    """Where its keys and values go."""
    bounds: list[int] = field(default_factory=list)
    """It sees the text's cells below this."""
    branches: list[list[int]] = field(default_factory=list)
    """And these: of the tree's tokens above it and of itself, at consecutive positions."""
    ends: list[int] = field(default_factory=list)
    """Per path, which of the tokens is its last one."""
    moves: list[tuple[int, int]] = field(default_factory=list)
    """Cells whose content goes to other cells, all at the same time."""

    def add(self, token: int, position: int, cell: int, bound: int, branch: list[int]) -> None:
        """Appends a token."""
        self.tokens.append(token)
        self.positions.append(position)
        self.cells.append(cell)
        self.bounds.append(bound)
        self.branches.append(branch)


class TokenTree:
    """The cells of one request's slot."""

    def __init__(self) -> None:
        self._length = 0
        """Tokens of the text that are in."""
        self._root = _Node()
        """Stands for the text."""
        self._nodes: list[_Node] = []
        """The tree without its root, by cell: the first one lies in cell ``_length``."""

    @property
    def num_cells(self) -> int:
        """Cells that hold something."""
        return self._length + len(self._nodes)

    def num_known(self, text: Sequence[int]) -> int:
        """Returns how many tokens of ``text`` are in, those among them that lie in the tree."""
        return self._length + len(self._match(text))

    def feed(self, text: Sequence[int], paths: Sequence[tuple[int, ...]]) -> Feed:
        """Takes in ``text`` and ``paths`` behind it; returns what has to be computed for them.

        That is what is not in yet, and the last token of each path: its logits are wanted. What
        contradicts ``text`` is dropped. The forward must be run, or the cells do not hold what they
        are said to.

        Args:
            text: Not empty; begins with what the last call's began with.
            paths: Tokens behind ``text``; an empty one wants the logits behind ``text`` itself.
        """
        matched = self._match(text)
        num_known = self._length + len(matched)
        if num_known < len(text):
            self._root, self._nodes = _Node(), []
        elif matched:
            self._root = matched[-1]
            self._nodes = self._descendants()
        num_held = len(self._nodes)
        chains = [self._walk(path) for path in paths]
        if len(self._nodes) > MAX_BRANCH_TOKENS:
            num_held = self._keep_only(chains)
        feed = Feed(moves=self._place(matched, len(text)))
        for position in range(num_known, len(text)):
            feed.add(text[position], position, position, position + 1, [])
        first_new = len(text) + num_held
        indexes = {cell: index for index, cell in enumerate(feed.cells)}
        for path, chain in zip(paths, chains, strict=True):
            branch = [node.cell for node in chain]
            for depth, cell in enumerate(branch):
                if (cell >= first_new or depth == len(path) - 1) and cell not in indexes:
                    indexes[cell] = len(feed.cells)
                    position = len(text) + depth
                    feed.add(path[depth], position, cell, len(text), branch[: depth + 1])
            end = branch[-1] if branch else len(text) - 1
            if end not in indexes:
                indexes[end] = len(feed.cells)
                feed.add(text[end], end, end, end + 1, [])
            feed.ends.append(indexes[end])
        return feed

    def _match(self, text: Sequence[int]) -> list[_Node]:
        """Returns the nodes along what ``text`` has beyond the tokens that are in."""
        matched: list[_Node] = []
        children = self._root.children
        for position in range(self._length, len(text)):
            node = children.get(text[position])
            if node is None:
                break
            matched.append(node)
            children = node.children
        return matched

    def _descendants(self) -> list[_Node]:
        """Returns all nodes under the root, the nearest first: mostly as they came already."""
        nodes = list(self._root.children.values())
        for node in nodes:
            nodes.extend(node.children.values())  # which the loop comes to in turn
        return nodes

    def _walk(self, path: Sequence[int]) -> list[_Node]:
        """Returns the nodes along ``path``, and makes those that are missing."""
        chain = []
        node = self._root
        for token in path:
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = _Node()
                self._nodes.append(child)
            chain.append(child)
            node = child
        return chain

    def _keep_only(self, chains: list[list[_Node]]) -> int:
        """Drops the nodes that are in no chain; returns how many are left that have a cell."""
        kept = {node for chain in chains for node in chain}
        for node in [self._root, *kept]:
            node.children = {
                token: child for token, child in node.children.items() if child in kept
            }
        self._nodes = [node for node in self._nodes if node in kept]
        return sum(node.cell >= 0 for node in self._nodes)

    def _place(self, matched: list[_Node], length: int) -> list[tuple[int, int]]:
        """Gives each node its cell: text what was ``matched``, the tree behind ``length`` tokens.

        Returns the moves of nodes that had another cell.
        """
        moves = []
        for first, nodes in ((self._length, matched), (length, self._nodes)):
            for cell, node in enumerate(nodes, first):
                if node.cell not in (-1, cell):
                    moves.append((node.cell, cell))
                node.cell = cell
        self._length = length
        return moves
