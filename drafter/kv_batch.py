"""One forward's inputs on the device, made from what each request feeds.

All indexes go over in a single copy out of pinned memory, and masks are made on the device from
them: the host never waits for the device here.

Shape legend: R requests, Q tokens of the widest one, L cells that the forward may see, P paths,
M moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from paceline.drafter.kv_tree import Feed


class Batch:
    """The feeds of several requests, padded on the right.

    A padding token writes to the spare cell, which nobody sees, and sees the text's first token
    itself: a row that sees nothing would be NaN.
    """

    input_ids: torch.Tensor  # [R, Q]
    positions: torch.Tensor  # [R, Q]
    cells: torch.Tensor  # [R, Q]
    slots: torch.Tensor  # [R]
    ends: torch.Tensor  # [P], into R * Q: the last token of each path, request by request
    moves: torch.Tensor  # [3, M]: slots, cells from, cells to
    masks: dict[str, torch.Tensor]
    """[R, 1, Q, L] per kind of attention layer: what each token sees."""

    def __init__(
        self,
        feeds: Sequence[Feed],
        slots: Sequence[int],
        length: int,
        spare: int,
        windows: Mapping[str, int | None],
        device: torch.device,
    ) -> None:
        """Packs ``feeds``.

        Args:
            feeds: Of each request.
            slots: Of each request.
            length: L.
            spare: A cell of every slot that holds nothing.
            windows: Per kind of attention layer, how many positions back it sees; None: all.
        """
        width = max(len(feed.tokens) for feed in feeds)
        shape = (len(feeds), width)
        pads = [width - len(feed.tokens) for feed in feeds]
        padded = list(zip(feeds, pads, strict=True))
        moves = [
            (slot, *move) for slot, feed in zip(slots, feeds, strict=True) for move in feed.moves
        ]
        parts = [
            [token for feed, pad in padded for token in feed.tokens + [0] * pad],
            [position for feed, pad in padded for position in feed.positions + [0] * pad],
            [cell for feed, pad in padded for cell in feed.cells + [spare] * pad],
            [bound for feed, pad in padded for bound in feed.bounds + [1] * pad],
            list(slots),
            [row * width + end for row, feed in enumerate(feeds) for end in feed.ends],
            [index for column in zip(*moves, strict=True) for index in column],
        ]
        for window in windows.values():
            parts.append(_seen(feeds, width, length, window))
        packed = torch.tensor(
            [number for part in parts for number in part], pin_memory=device.type == "cuda"
        )
        there = torch.split(packed.to(device, non_blocking=True), [len(part) for part in parts])
        self.input_ids = there[0].view(shape)
        self.positions = there[1].view(shape)
        self.cells = there[2].view(shape)
        bounds = there[3].view(*shape, 1)
        self.slots, self.ends = there[4], there[5]
        self.moves = there[6].view(3, len(moves))
        keys = torch.arange(length, device=device)  # [L]
        self.masks = {}
        for (kind, window), seen in zip(windows.items(), there[7:], strict=True):
            mask = keys < bounds  # [R, Q, L]
            if window is not None:
                mask &= keys > self.positions[..., None] - window
            mask.view(-1).index_fill_(0, seen, True)
            self.masks[kind] = mask[:, None]


def _seen(feeds: Sequence[Feed], width: int, length: int, window: int | None) -> list[int]:
    """Returns where a mask [R, Q, L] is true for cells of trees."""
    seen: list[int] = []
    for row, feed in enumerate(feeds):
        for index, branch in enumerate(feed.branches, row * width):
            # One position a cell, the token's own last: a window is the end of the branch.
            seen.extend(index * length + cell for cell in branch[-window if window else None :])
    return seen
