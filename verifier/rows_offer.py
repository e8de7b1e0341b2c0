"""What of the target's states an engine can send, fixed when it loads, and what a drafter may ask.

Fixed, because the layers that give their states away are baked into the captured graphs of a GPU:
the union of what the configured drafters need is declared, and a drafter asks for a part of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from paceline.config import Config
from paceline.messages import RowNeeds, RowsEndpoint
from paceline.transport import check_address


class RowsOffer(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What there is, and where each rank sends it from."""

    needs: RowNeeds
    """The union over all drafters."""
    addresses: list[str]
    """Where each rank of the target binds, rank 0 first."""

    def endpoints(self, needs: RowNeeds, num_kv_heads: int) -> list[RowsEndpoint]:
        """Returns whom a drafter with ``needs`` dials.

        Hidden states are equal on all ranks, so that the first one's are enough. Keys and values
        are split by head: every rank has some, and neighbours the same ones where the target has
        fewer of them than ranks.
        """
        num_ranks = len(self.addresses)
        ranks = range(0, num_ranks, max(1, num_ranks // num_kv_heads)) if needs.kv_layers else [0]
        return [RowsEndpoint(address=self.addresses[rank], rank=rank) for rank in ranks]


def rows_addresses(control: str, num_ranks: int) -> list[str]:
    """Returns an address for each rank beside ``control``: another socket file, or the next ports.

    Raises:
        ValueError: there is no room beside it: a path too long, or no further port.
    """
    if control.startswith("ipc://"):
        addresses = [f"{control}.rows{rank}" for rank in range(num_ranks)]
    else:
        host, _, port = control.rpartition(":")
        addresses = [f"{host}:{int(port) + 1 + rank}" for rank in range(num_ranks)]
    for address in addresses:
        check_address(address)
    return addresses


def union(needs: Iterable[RowNeeds | None]) -> RowNeeds | None:
    """Returns what all of ``needs`` ask for together; None where nobody needs anything."""
    some = [need for need in needs if need is not None and not is_empty(need)]
    if not some:
        return None
    return RowNeeds(
        aux_layers=sorted({layer for need in some for layer in need.aux_layers}),
        final=any(need.final for need in some),
        kv_layers=sorted({layer for need in some for layer in need.kv_layers}),
    )


def is_empty(needs: RowNeeds) -> bool:
    """Whether ``needs`` ask for nothing."""
    return not (needs.aux_layers or needs.final or needs.kv_layers)


def missing(needs: RowNeeds, offer: RowNeeds | None) -> str | None:
    """Returns what of ``needs`` is not in ``offer``, in words; None where everything is."""
    offered = offer or RowNeeds()
    parts = [
        f"{what} {', '.join(map(str, lacking))}"
        for what, asked, there in (
            ("the input of layer", needs.aux_layers, offered.aux_layers),
            ("keys and values of layer", needs.kv_layers, offered.kv_layers),
        )
        if (lacking := sorted(set(asked) - set(there)))
    ]
    if needs.final and not offered.final:
        parts.append("the last norm's output")
    return " and ".join(parts) or None
