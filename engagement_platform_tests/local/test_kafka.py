"""The embedded broker: what it keeps, what it refuses. Reading from any broker is tested with the Kafka source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from engagement_platform.local.kafka import EmbeddedKafka
from engagement_platform.local.ports import answers, free_ports
from engagement_platform.settings import KafkaSettings
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.local.test_producing import on_topic

pytestmark = pytest.mark.broker


def partitions(bootstrap_servers: str) -> Mapping[str, int]:
    topics = AdminClient({"bootstrap.servers": bootstrap_servers}).list_topics(timeout=20).topics
    return {name: len(topic.partitions) for name, topic in topics.items() if not name.startswith("__")}


@pytest.mark.parametrize("home", ["lake", "José, a=b #1\\%20"])
def test_messages_outlive_a_restart_on_other_ports_whatever_their_folder_is_called(
    home: str, kafka_jars: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a cron job, or in an image that sets no locale.
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.chdir(tmp_path)
    port, controller_port, next_port, next_controller_port = free_ports(4)
    folder = tmp_path / home
    first = EmbeddedKafka(folder, port, controller_port, kafka_jars)
    with first:
        first.create_topics({"kept": 1, "other": 3})
        Broker(first).produce("kept", [(None, b"key", b"one"), (None, None, b"two")])
    assert not answers(port)
    assert list(tmp_path.iterdir()) == [folder]
    with EmbeddedKafka(folder, next_port, next_controller_port, kafka_jars) as second:
        kept = on_topic(KafkaSettings(bootstrap_servers=second.bootstrap_servers), "kept")
        assert kept == [(b"key", b"one"), (None, b"two")]
        assert partitions(second.bootstrap_servers) == {"kept": 1, "other": 3}


def test_making_a_topic_again_leaves_it_as_it_is(broker: Broker) -> None:
    broker.create_topic("made-twice", partitions=2)
    broker.create_topic("made-twice", partitions=5)
    assert partitions(broker.bootstrap_servers)["made-twice"] == 2


def test_a_topic_is_not_made_by_writing_to_it(broker: Broker) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "message.timeout.ms": 1000})
    outcome: list[object] = []

    def delivered(error: object, _message: object) -> None:
        outcome.append(error)

    producer.produce("never-made", b"lost", on_delivery=delivered)
    assert producer.flush(20) == 0
    assert outcome[0] is not None  # compared by identity: KafkaError == None leaves a stray exception behind
    assert "never-made" not in partitions(broker.bootstrap_servers)
