"""How many engines can be in memory at the same time, here or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from paceline.bench import environment
from paceline.bench.matrix import MAX_RESIDENT
from paceline.bench.sides import needed_gib
from paceline.cluster.config import PacelineConfig
from paceline.cluster.runtime import Side, cluster_address, node_resources

_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What there is for engines."""

    num_gpus: int
    memory_gib: list[float]
    """Free, of each node; an engine is on one of them."""
    cluster: dict[str, int] | None = None
    """Nodes, cores and GPUs of a Ray cluster that is joined; None: this machine, where Ray is told
    of as many cores as are asked for."""


def find_room(config: PacelineConfig) -> Room:
    """Asks Ray where the run joins a cluster, else this machine.

    Raises:
        ConfigError: the cluster cannot be joined.
    """
    address = cluster_address(config)
    if address is None:
        free = psutil.virtual_memory().available / _GIB
        # A fifth stays free: what an engine needs is only estimated.
        return Room(num_gpus=len(environment.gpus()), memory_gib=[0.8 * free])
    return cluster_room(node_resources(address))


def cluster_room(nodes: Sequence[dict[str, float]]) -> Room:
    """Returns the room on these nodes; of a node's memory Ray itself offers only a part."""
    num_gpus = int(sum(node.get("GPU", 0) for node in nodes))
    return Room(
        num_gpus=num_gpus,
        memory_gib=[node.get("memory", 0) / _GIB for node in nodes],
        cluster={
            "nodes": len(nodes),
            "cores": int(sum(node.get("CPU", 0) for node in nodes)),
            "gpus": num_gpus,
        },
    )


def num_resident(config: PacelineConfig, sides: Sequence[Side], room: Room) -> int:
    """Returns how many of the sides can run at the same time, at least 2."""
    if config.transport.control != "auto":
        return 2  # one address, so one target that drafters dial
    if room.num_gpus:
        needed: float = max(
            side.target.tensor_parallel_size
            + sum(d.replicas for d in side.drafters if d.device != "cpu")
            for side in sides
        )
        fitting = room.num_gpus // needed
    else:
        needed = max(needed_gib(side) for side in sides)
        fitting = sum(memory // needed for memory in room.memory_gib)
    if room.cluster is not None:
        fitting = min(fitting, room.cluster["cores"] // max(_num_cores(side) for side in sides))
    return max(2, min(MAX_RESIDENT, int(fitting)))


def _num_cores(side: Side) -> int:
    ranks = side.target.threads * side.target.tensor_parallel_size
    return ranks + sum(d.threads * d.replicas for d in side.drafters)
