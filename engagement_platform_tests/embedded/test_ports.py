"""Ports are found out before anything starts."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from engagement_platform.embedded.ports import PortInUse, PortNeed, answers, check_ports, free_ports, is_free


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_taken_port_is_named_with_the_setting_that_moves_it(taken: int) -> None:
    need = PortNeed(taken, "kafka_port", "Kafka")
    with pytest.raises(PortInUse, match=rf"port {taken} \(Kafka\).*ENGAGEMENT_PLATFORM_EMBEDDED__KAFKA_PORT") as caught:
        check_ports([need])
    assert caught.value.needs == (need,)


def test_all_taken_ports_are_named_at_once(taken: int) -> None:
    (free,) = free_ports(1)
    needs = [PortNeed(taken, "kafka_port", "Kafka"), PortNeed(free, "ui_port", "UI")]
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(PortInUse) as caught:
        check_ports([*needs, PortNeed(other.getsockname()[1], "connect_port", "Spark Connect")])
    assert [need.name for need in caught.value.needs] == ["kafka_port", "connect_port"]


def test_one_port_for_two_things_is_refused() -> None:
    (port,) = free_ports(1)
    with pytest.raises(PortInUse) as caught:
        check_ports([PortNeed(port, "kafka_port", "Kafka"), PortNeed(port, "ui_port", "UI")])
    assert [need.name for need in caught.value.needs] == ["ui_port"]


def test_free_ports_pass_and_do_not_answer() -> None:
    ports = free_ports(2)
    check_ports([PortNeed(port, f"port_{port}", "test") for port in ports])
    assert [answers(port) for port in ports] == [False, False]


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
