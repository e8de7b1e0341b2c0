"""What is declared when the target loads."""

from __future__ import annotations

import pytest

from paceline.errors import ConfigError
from paceline.messages import RowNeeds
from paceline.scheduler.config import SpeculationConfig
from paceline.transport import TransportConfig
from paceline.verifier.engine import Speculation
from paceline.verifier.rows_offer import rows_addresses, union


def test_the_union_has_every_layer_once() -> None:
    all_of = union(
        [
            None,
            RowNeeds(aux_layers=[27, 2]),
            RowNeeds(aux_layers=[2, 15], final=True),
            RowNeeds(kv_layers=[29, 28]),
        ]
    )
    assert all_of == RowNeeds(aux_layers=[2, 15, 27], final=True, kv_layers=[28, 29])


@pytest.mark.parametrize("needs", [[], [None], [RowNeeds(), None]])
def test_nobody_needs_anything(needs: list[RowNeeds | None]) -> None:
    assert union(needs) is None


def test_every_rank_has_an_address_of_its_own() -> None:
    assert rows_addresses("ipc:///run/c", 2) == ["ipc:///run/c.rows0", "ipc:///run/c.rows1"]
    assert rows_addresses("tcp://10.0.0.1:5000", 2) == [
        "tcp://10.0.0.1:5001",
        "tcp://10.0.0.1:5002",
    ]
    assert rows_addresses("tcp://[::1]:5000", 1) == ["tcp://[::1]:5001"]


@pytest.mark.parametrize("control", ["tcp://10.0.0.1:65535", "ipc:///" + "s" * 104])
def test_no_room_beside_the_control_address_is_one_sentence(control: str) -> None:
    speculation = Speculation(
        num_speculative_tokens=4,
        control=control,
        key_file=None,
        config=SpeculationConfig(),
        transport=TransportConfig(),
        rows=RowNeeds(final=True),
    )
    with pytest.raises(ConfigError, match="no address for the target's states fits"):
        speculation.rows_offer(1)
