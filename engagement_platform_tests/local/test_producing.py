"""Producing to a real broker: nothing is dropped silently, the pace is kept, files go through byte for byte."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pydantic import SecretStr

from engagement_platform.local.producing import NotDelivered, produce, produce_from
from engagement_platform.local.traffic import Message, Traffic
from engagement_platform.settings import KafkaSettings, PipelinesSettings, Settings, TrafficSettings
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform.sources.kafka_errors import BrokerUnavailable, TopicMissing

START = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def kafka(broker: Any) -> KafkaSettings:
    """Settings of a broker with three fresh topics."""
    name = uuid.uuid4().hex
    topics = {f"{kind}_topic": f"{kind}-{name}" for kind in ("engagements", "mutation_requests", "profile_changes")}
    for topic in topics.values():
        broker.create_topic(topic)
    return KafkaSettings.model_validate(
        {"bootstrap_servers": broker.bootstrap_servers, "timeout": timedelta(seconds=10), **topics}
    )


def noise(size: int) -> bytes:
    """Text of `size` bytes that does not compress: the broker's limit is on what comes over the wire."""
    return Random(size).randbytes(size // 2).hex().encode()


def on_topic(kafka: KafkaSettings, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Key and value of all messages of partition 0."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "test", "fetch.max.bytes": 8 << 20})
    try:
        _, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[tuple[bytes | None, bytes | None]] = []
        deadline = time.monotonic() + 20
        while len(found) < high:
            assert time.monotonic() < deadline, f"read {len(found)} of {high} messages"
            found += [(m.key(), m.value()) for m in consumer.consume(1_000, timeout=1) if m.error() is None]
        return found
    finally:
        consumer.close()


@pytest.mark.broker
def test_what_traffic_makes_is_what_the_topics_hold(kafka: KafkaSettings) -> None:
    made = list(islice(Traffic(TrafficSettings(bad_share=0.05), start=START).messages(), 3_000))
    report = produce(kafka, made)
    for kind, topic in (
        ("engagements", kafka.engagements_topic),
        ("mutation-requests", kafka.mutation_requests_topic),
    ):
        expected = [(m.key, m.value) for m in made if m.kind == kind]
        assert on_topic(kafka, topic) == expected
        assert report.produced[topic] == len(expected)
    assert report.failed == 0


@pytest.mark.broker
def test_a_file_goes_through_byte_for_byte(kafka: KafkaSettings, tmp_path: Path) -> None:
    lines = [
        b'{"organization_id": "org-\xc3\xa9"}',
        b"",
        b"{broken",
        b'\xff\xfe "no text"',
        b'{"organization_id": "\\ud800"}',
        b'{"organization_id": 7}\r',
    ]
    file, made = tmp_path / "messages.jsonl", list(zip(["org-é".encode(), *[None] * 5], lines, strict=True))
    for end in (b"\n", b""):
        file.write_bytes(b"\n".join(lines) + end)
        produce_from(Settings(home=tmp_path, kafka=kafka), file=file, topic=kafka.mutation_requests_topic)
    assert on_topic(kafka, kafka.mutation_requests_topic) == [*made, *made]


@pytest.mark.broker
def test_messages_too_large_for_the_broker_end_with_an_error_and_the_others_arrive(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    file = tmp_path / "large.jsonl"
    file.write_bytes(b"\n".join(noise(size) for size in (10, 3 << 20, 5 << 20, 40 << 20, 10)))
    with pytest.raises(NotDelivered, match="2 were not delivered") as caught:
        produce_from(Settings(home=tmp_path, kafka=kafka), file=file)
    report = caught.value.report
    assert (report.produced, report.failures) == ({kafka.engagements_topic: 3}, {"MSG_SIZE_TOO_LARGE": 2})
    assert [len(value or b"") for _, value in on_topic(kafka, kafka.engagements_topic)] == [10, 3 << 20, 10]


@pytest.mark.broker
def test_the_same_sample_again_is_the_same_bytes(kafka: KafkaSettings, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, kafka=kafka)
    for _ in range(2):
        produce_from(settings, sample=500)
    found = on_topic(kafka, kafka.engagements_topic)
    half = len(found) // 2
    assert found[:half] == found[half:]


@pytest.mark.broker
def test_the_pace_is_kept(kafka: KafkaSettings) -> None:
    report = produce(kafka, Traffic(TrafficSettings(), start=START).messages(), rate=400, limit=801)
    # The last message is due at 2.0 s; what comes on top is one linger and one acknowledgement.
    assert 2.0 <= report.seconds < 3.5
    assert sum(report.produced.values()) == 801


class Stops(threading.Event):
    """The wish to stop, which comes before one of the messages."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def is_set(self) -> bool:
        """Asked before each message."""
        self.left -= 1
        return self.left < 0


@pytest.mark.broker
def test_endless_traffic_stops_when_told(kafka: KafkaSettings, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, kafka=kafka, pipelines=PipelinesSettings(page_views=False))
    produced = produce_from(settings, rate=100, stop=Stops(after=100)).produced
    assert sum(produced.values()) == 100
    assert produced[kafka.engagements_topic] > 50
    assert produce_from(settings, rate=0).produced == {}
    on_their_own = settings.model_copy(update={"pipelines": PipelinesSettings(engagements=False, page_views=False)})
    assert produce_from(on_their_own, rate=100, stop=Stops(after=9)).produced == {kafka.profile_changes_topic: 9}


@pytest.mark.broker
def test_a_topic_that_a_broker_learns_of_later_is_produced_to(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, asked = KafkaSource.end_offsets, []

    def late(source: KafkaSource) -> Any:
        asked.append(source.topic)
        if len(asked) < 3:
            raise TopicMissing("a:1", source.topic)
        return answer(source)

    monkeypatch.setattr(KafkaSource, "end_offsets", late)
    assert produce(kafka, [Message("engagements", None, b"{}")]).produced == {kafka.engagements_topic: 1}
    assert len(asked) == 3


@pytest.mark.broker
def test_a_missing_topic_is_named_and_what_was_sent_before_arrives(kafka: KafkaSettings) -> None:
    made = [Message("engagements", None, b"{}"), Message("mutation-requests", None, b"{}")]
    with pytest.raises(TopicMissing, match="nowhere"):
        produce(kafka, made, topics={"engagements": kafka.engagements_topic, "mutation-requests": "nowhere"})
    assert on_topic(kafka, kafka.engagements_topic) == [(None, b"{}")]


def test_a_broker_that_is_not_there_is_named_in_time() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        kafka = KafkaSettings(
            bootstrap_servers=address, timeout=timedelta(seconds=1), security={"sasl.password": SecretStr("s3cret")}
        )
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable, match=address) as caught:
            produce(kafka, [Message("engagements", None, b"{}")])
    assert time.monotonic() - began < 5
    assert "s3cret" not in str(caught.value)
