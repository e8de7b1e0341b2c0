"""Which addresses may be bound or dialled."""

from __future__ import annotations

import pytest

from paceline.transport import TransportConfig, check_address


@pytest.mark.parametrize(
    "address",
    [
        "ipc:///tmp/socket",
        "ipc:///tmp/with space:and colon",
        "ipc:///" + "x" * 106,
        "tcp://127.0.0.1:1",
        "tcp://10.0.0.1:65535",
        "tcp://[::1]:5555",
        "tcp://node-3.cluster:5555",
    ],
)
def test_a_socket_file_or_one_interface_is_allowed(address: str) -> None:
    check_address(address)
    assert TransportConfig(control=address).control == address


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("", "write auto"),
        ("auto", "write auto"),
        ("tcp", "write auto"),
        ("127.0.0.1:5555", "write auto"),
        ("udp://127.0.0.1:5555", "write auto"),
        ("inproc://x", "write auto"),
        ("ipc://", "write auto"),
        ("ipc://relative/path", "write auto"),
        ("ipc://@abstract", "write auto"),
        ("ipc://*", "write auto"),
        ("tcp://127.0.0.1", "write auto"),
        ("tcp://127.0.0.1:", "write auto"),
        ("tcp://127.0.0.1:*", "write auto"),
        ("tcp://127.0.0.1:-1", "write auto"),
        ("tcp://127.0.0.1:http", "write auto"),
        ("tcp://127.0.0.1:5555/path", "write auto"),
        ("tcp://*:5555", "wildcard"),
        ("tcp://0.0.0.0:5555", "wildcard"),
        ("tcp://[::]:5555", "wildcard"),
        ("tcp://:5555", "wildcard"),
        ("tcp://127.0.0.1:0", "between 1 and 65535"),
        ("tcp://127.0.0.1:65536", "between 1 and 65535"),
        ("ipc:///" + "x" * 107, "at most 107 bytes"),
        ("ipc:///" + "é" * 54, "at most 107 bytes"),
    ],
)
def test_any_other_is_refused_with_its_reason(address: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        check_address(address)
    assert f"control is {address}" in str(caught.value)


@pytest.mark.parametrize("host", ["0", "00.0.0.0", "0x0", "0.0", "[0::0]"])
def test_a_wildcard_in_another_spelling_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="wildcard"):
        check_address(f"tcp://{host}:5555")
