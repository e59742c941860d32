"""Ports are found out before anything starts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from engagement_platform.local import ports
from engagement_platform.local.ports import PortInUse, answers, check_ports, free_ports, is_free
from engagement_platform.settings import EmbeddedSettings


def test_all_taken_ports_are_named_at_once_with_the_settings_that_move_them() -> None:
    needs = {"kafka_port": "Kafka", "ui_port": "UI", "connect_port": "Spark Connect"}
    free, other = free_ports(2)
    check_ports(EmbeddedSettings(kafka_port=free, ui_port=other), {"kafka_port": "Kafka", "ui_port": "UI"})
    assert not answers(free)
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        # One port for two things is in use, too.
        embedded = EmbeddedSettings(kafka_port=taken, ui_port=free, connect_port=free)
        with pytest.raises(PortInUse, match=rf"port {taken} \(Kafka\).*__KAFKA_PORT .*port {free} \(Spark") as caught:
            check_ports(embedded, needs)
    assert "(UI)" not in str(caught.value)


def test_a_port_taken_on_all_addresses_is_taken_on_this_one_too() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:  # the case is a stranger's server, not ours
        port = server.getsockname()[1]
        assert not is_free(port)
        assert answers(port)


def test_a_port_whose_server_just_closed_a_connection_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()  # the side that closes first is the one that lingers
        client.close()
    assert is_free(port)


def test_free_ports_are_none_that_an_outgoing_connection_may_get_before_their_server_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "ip_local_port_range"
    given.write_text("10300\t65535\n")
    monkeypatch.setattr(ports, "_EPHEMERAL_PORTS", given)
    found = free_ports(20)
    assert len(set(found)) == 20
    assert all(10_240 <= port < 10_300 for port in found)
    # Where only few are left, ports of connections are better than none.
    assert len(set(free_ports(100))) == 100
