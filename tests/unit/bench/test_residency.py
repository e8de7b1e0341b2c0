"""How many engines run at the same time: what there is decides, here or on a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.bench import environment, residency
from paceline.bench.matrix import MAX_RESIDENT
from paceline.bench.residency import Room, cluster_room, find_room, num_resident
from paceline.cluster.config import ClusterConfig, PacelineConfig
from paceline.cluster.runtime import Side
from paceline.drafter.config import DrafterConfig
from paceline.transport import TransportConfig
from paceline.verifier.config import TargetConfig

GIB = 1 << 30
TARGET = TargetConfig(model="org/on-another-machine", kv_cache_gib=1.3, threads=2)
NEEDED = 2.5
"""GiB of one such target, whose weights are not here."""


def config(**sections: Any) -> PacelineConfig:
    return PacelineConfig(target=TARGET, **sections)


def side(**drafter: Any) -> Side:
    drafters = [DrafterConfig(name="d", method="ngram", **drafter)] if drafter else []
    return Side(name="s", target=TARGET, drafters=drafters)


def in_memory(*gib: float) -> Room:
    return Room(num_gpus=0, memory_gib=list(gib))


@pytest.mark.parametrize(
    ("gib", "expected"), [(0.5, 2), (2.4, 2), (10.0, 4), (2000.0, MAX_RESIDENT)]
)
def test_as_many_as_memory_holds(gib: float, expected: int) -> None:
    assert num_resident(config(), [side()], in_memory(gib)) == expected


def test_a_node_s_memory_ends_at_the_node() -> None:
    assert num_resident(config(), [side()], in_memory(4.9, 4.9, 4.9)) == 3


def test_gpus_count_instead_of_memory_and_a_drafter_takes_its_own() -> None:
    room = Room(num_gpus=7, memory_gib=[0.1])
    assert num_resident(config(), [side(), side(device="cpu")], room) == 7
    assert num_resident(config(), [side(), side(device="cuda")], room) == 3
    assert num_resident(config(), [side(device="cuda", replicas=2)], room) == 2


def test_one_address_is_for_one_target_with_drafters() -> None:
    fixed = config(transport=TransportConfig(control="tcp://127.0.0.1:5555"))
    assert num_resident(fixed, [side()], in_memory(100)) == 2


def test_a_cluster_is_the_sum_of_its_nodes() -> None:
    room = cluster_room([{"CPU": 8.0, "GPU": 2.0, "memory": 3.0 * GIB}, {"CPU": 4.0}])
    assert room.num_gpus == 2
    assert room.memory_gib == [3.0, 0.0]
    assert room.cluster == {"nodes": 2, "cores": 12, "gpus": 2}


def test_on_a_cluster_an_actor_without_cores_would_wait_for_ever() -> None:
    room = cluster_room([{"CPU": 16.0, "memory": 1000.0 * GIB}])
    assert num_resident(config(), [side()], room) == 8
    assert num_resident(config(), [side(), side(threads=1, replicas=2)], room) == 4


def test_ray_is_asked_where_a_cluster_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def node_resources(address: str) -> list[dict[str, float]]:
        asked.append(address)
        return [{"CPU": 64.0, "GPU": 6.0}]

    monkeypatch.setattr(residency, "node_resources", node_resources)
    monkeypatch.setattr(environment, "gpus", lambda: ["the driver's own"])
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert find_room(config()).num_gpus == 1
    assert not asked
    joined = config(cluster=ClusterConfig(address="head:6379"))
    assert find_room(joined).num_gpus == 6
    monkeypatch.setenv("RAY_ADDRESS", "other:6379")
    assert find_room(config()).cluster == {"nodes": 1, "cores": 64, "gpus": 6}
    assert asked == ["head:6379", "other:6379"]
