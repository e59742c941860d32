"""Ranges of offsets on a real broker: what a batch takes, and what happens when the broker no longer has it."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from pyspark.sql import SparkSession

from engagement_platform.engine.model import Limits, Offsets
from engagement_platform.settings import KafkaSettings
from engagement_platform.sources.kafka import KafkaSource, share_budget
from engagement_platform.sources.kafka_errors import (
    BrokerUnavailable,
    KafkaRefused,
    OffsetsExpired,
    TopicMissing,
    TopicRecreated,
)
from engagement_platform_tests.conftest import Broker

PLENTY = Limits(max_records=1_000_000, max_bytes=1_000_000_000)
# Nothing listens on port 9 (discard) of this machine.
NOBODY = "127.0.0.1:9"


def new_source(broker: Broker, partitions: int = 1) -> KafkaSource:
    """A source on a fresh topic."""
    topic = f"t-{uuid.uuid4().hex}"
    broker.create_topic(topic, partitions)
    return source_on(broker, topic)


def source_on(broker: Broker, topic: str) -> KafkaSource:
    return KafkaSource(topic, KafkaSettings(bootstrap_servers=broker.bootstrap_servers))


def fill(broker: Broker, source: KafkaSource, *counts: int, value: bytes = b"{}") -> None:
    """So many records into partition 0, 1, …"""
    broker.produce(source.topic, [(number, b"k", value) for number, count in enumerate(counts) for _ in range(count)])


def expire(broker: Broker, source: KafkaSource, partition: int, before: int) -> None:
    """What retention does, now: the broker forgets everything before an offset."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for gone in admin.delete_records([TopicPartition(source.topic, partition, before)]).values():
        gone.result(20)


def recreate(broker: Broker, source: KafkaSource, partitions: int) -> None:
    """Delete the topic and create it anew."""
    broker.delete_topic(source.topic)
    deadline = time.monotonic() + 20
    while True:
        try:
            source.end_offsets()
        except TopicMissing:
            break
        assert time.monotonic() < deadline, "the topic is still there"
    broker.create_topic(source.topic, partitions)


def planned(source: KafkaSource, start: Offsets | None, limits: Limits = PLENTY) -> tuple[Offsets, Offsets]:
    plan = source.plan(start, limits, mean_bytes=3.0)
    assert plan is not None, "nothing was waiting"
    return plan


@given(st.dictionaries(st.integers(0, 40), st.integers(0, 10**12), max_size=8), st.integers(1, 10**9))
def test_a_shared_budget_is_used_up_and_nobody_starves(backlog: dict[int, int], budget: int) -> None:
    taken = share_budget(backlog, budget)
    assert sum(taken.values()) == min(budget, sum(backlog.values()))
    assert taken.keys() == backlog.keys()
    assert all(0 <= taken[partition] <= waiting for partition, waiting in backlog.items())
    waiting_partitions = [partition for partition, waiting in backlog.items() if waiting]
    if budget >= len(waiting_partitions):
        assert all(taken[partition] > 0 for partition in waiting_partitions)


def test_a_budget_is_shared_in_proportion() -> None:
    assert share_budget({0: 900, 1: 90, 2: 10, 3: 0}, 100) == {0: 90, 1: 9, 2: 1, 3: 0}
    assert share_budget({0: 5, 1: 7, 2: 6}, 1) == {0: 0, 1: 1, 2: 0}


@pytest.mark.broker
def test_a_first_plan_begins_at_the_earliest_and_names_idle_partitions_too(broker: Broker) -> None:
    source = new_source(broker, partitions=3)
    nothing = {"0": 0, "1": 0, "2": 0}
    assert source.end_offsets() == source.earliest_offsets() == nothing
    assert source.plan(None, PLENTY, None) is source.plan(nothing, PLENTY, None) is None
    assert source.backlog(None) == 0
    fill(broker, source, 5, 0, 7)
    expire(broker, source, partition=2, before=3)
    assert planned(source, None) == ({"0": 0, "1": 0, "2": 3}, {"0": 5, "1": 0, "2": 7})
    assert source.backlog(None) == 9
    assert source.backlog({"0": 4, "1": 0, "2": 7}) == 1


@pytest.mark.broker
def test_of_each_partition_that_is_not_read_to_its_end_the_first_unread_record_tells_its_time(broker: Broker) -> None:
    source = new_source(broker, partitions=3)
    times = [datetime(2024, 3, day, tzinfo=UTC) for day in (1, 3, 2)]
    for time_ in times:
        broker.produce(source.topic, [(0, b"k", b"{}"), (1, b"k", b"{}")], time_)
    first, second, third = (int(time_.timestamp() * 1000) for time_ in times)
    assert source.first_unread(None) == {"0": first, "1": first}
    assert source.first_unread({"0": 1, "1": 2, "2": 0}) == {"0": second, "1": third}
    assert source.first_unread({"0": 3, "1": 3, "2": 0}) == {}
    expire(broker, source, partition=0, before=2)
    with pytest.raises(OffsetsExpired):
        source.first_unread({"0": 1, "1": 3, "2": 0})


@pytest.mark.broker
def test_bounded_batches_lie_end_to_end_and_reach_the_end(broker: Broker) -> None:
    source = new_source(broker, partitions=3)
    fill(broker, source, 50, 1, 9)
    start, sizes = None, []
    while (plan := source.plan(start, Limits(max_records=7, max_bytes=10**9), 3.0)) is not None:
        begin, end = plan
        assert start is None or begin == start
        sizes.append(sum(end[p] - begin[p] for p in begin))
        start = end
    assert sizes == [7] * 8 + [4]
    assert start == {"0": 50, "1": 1, "2": 9}


@pytest.mark.broker
def test_a_batch_is_bounded_in_bytes_by_the_batch_before_or_a_sample(broker: Broker) -> None:
    source = new_source(broker)
    fill(broker, source, 60, value=b"x" * 999)
    limits = Limits(max_records=1000, max_bytes=10_000)
    assert source.plan(None, limits, None) == ({"0": 0}, {"0": 10})
    assert source.plan({"0": 10}, limits, 500.0) == ({"0": 10}, {"0": 30})
    assert source.plan({"0": 10}, Limits(1000, max_bytes=1), None) == ({"0": 10}, {"0": 11})


@pytest.mark.broker
def test_a_partition_that_comes_later_is_read_from_its_first_record(broker: Broker) -> None:
    source = new_source(broker)
    fill(broker, source, 3)
    _, end = planned(source, None)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions(source.topic, 2)])[source.topic].result(20)
    deadline = time.monotonic() + 20
    while "1" not in source.end_offsets():
        assert time.monotonic() < deadline, "the new partition never showed"
    fill(broker, source, 0, 4)
    assert planned(source, end) == ({"0": 3, "1": 0}, {"0": 3, "1": 4})


@pytest.mark.broker
def test_expired_records_stop_the_job_and_the_lost_range_is_named(broker: Broker) -> None:
    source = new_source(broker, partitions=2)
    fill(broker, source, 10, 10)
    expire(broker, source, partition=1, before=6)
    with pytest.raises(OffsetsExpired, match=rf"{source.topic}\[1\].*\[4, 6\).*No table was changed.*reset JOB"):
        source.plan({"0": 4, "1": 4}, PLENTY, None)
    with pytest.raises(OffsetsExpired):
        source.backlog({"0": 4, "1": 4})
    with pytest.raises(OffsetsExpired, match=r"\[0, 6\)"):
        source.plan({"0": 4}, PLENTY, None)  # to which partition 1 is new
    with pytest.raises(OffsetsExpired, match=r"\[4, 5\)"):
        source.check({"0": 4, "1": 4}, {"0": 10, "1": 5})
    source.check({"0": 4, "1": 6}, {"0": 10, "1": 10})
    source.check({"0": 4, "1": 4}, {"0": 10, "1": 4})


@pytest.mark.broker
def test_another_cluster_and_a_topic_that_was_made_anew_stop_the_job(broker: Broker) -> None:
    source = new_source(broker, partitions=2)
    fill(broker, source, 5, 5)
    start, end = planned(source, None)
    pinned = source.identify({})
    assert set(pinned) == {"topic", "topic_id", "cluster_id"}
    assert source.identify(pinned) == pinned, "as long as it is the same, nothing is wrong"
    assert source.identify({"topic": source.topic}) == pinned, "of a broker that gave no ids nothing is known"
    found = f"cluster with id another-cluster.*{pinned['cluster_id']}.*BOOTSTRAP_SERVERS"
    with pytest.raises(TopicRecreated, match=found):
        source.identify({**pinned, "cluster_id": "another-cluster", "topic_id": "another-topic"})

    recreate(broker, source, 2)
    fill(broker, source, 2, 0)
    for ask in (lambda: source.plan(end, PLENTY, None), lambda: source.check(start, end), lambda: source.backlog(end)):
        with pytest.raises(TopicRecreated, match="reset JOB") as told:
            ask()
        assert "is at offset 5" in str(told.value)
        assert "last one is 2" in str(told.value)

    fill(broker, source, 4, 6)
    assert source.plan(end, PLENTY, None) is not None, "by its offsets nobody can tell"
    with pytest.raises(TopicRecreated, match="reset JOB") as told:
        source.identify(pinned)
    assert pinned["topic_id"] in str(told.value)
    assert source.identify({})["topic_id"] in str(told.value)


@pytest.mark.broker
def test_vanished_partitions_are_named(broker: Broker) -> None:
    source = new_source(broker)
    with pytest.raises(TopicRecreated) as told:
        source.plan({"0": 0, "1": 3, "10": 3, "2": 0}, PLENTY, None)
    assert "partition 1, 2, 10," in str(told.value)
    with pytest.raises(TopicRecreated):
        source.check({"1": 0}, {"1": 3})


@pytest.mark.broker
def test_a_missing_topic_is_named_and_not_made(broker: Broker) -> None:
    source = source_on(broker, f"t-{uuid.uuid4().hex}")
    for _ in range(2):
        with pytest.raises(TopicMissing, match=source.topic):
            source.plan(None, PLENTY, None)


@pytest.mark.broker
def test_records_of_an_open_transaction_wait(broker: Broker) -> None:
    source = new_source(broker)
    fill(broker, source, 2)
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": source.topic, "log_level": 0}
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(source.topic, value=b"not yet", partition=0)
    producer.flush(20)
    assert planned(source, None) == ({"0": 0}, {"0": 2})
    producer.abort_transaction(20)
    deadline = time.monotonic() + 20
    while source.end_offsets() != {"0": 4}:
        assert time.monotonic() < deadline, "the abort marker never came"
    # The record and the marker that takes it back are offsets, yet no record comes: no mean to go by.
    assert source.plan({"0": 2}, PLENTY, None) == ({"0": 2}, {"0": 4})


def test_a_broker_that_is_down_is_told_in_time_and_by_its_setting() -> None:
    source = KafkaSource("any", KafkaSettings(bootstrap_servers=NOBODY, timeout=timedelta(seconds=2)))
    began = time.monotonic()
    with pytest.raises(BrokerUnavailable, match="ENGAGEMENT_PLATFORM_KAFKA__BOOTSTRAP_SERVERS") as told:
        source.plan(None, PLENTY, None)
    assert time.monotonic() - began < 5
    assert NOBODY in str(told.value)


def test_nothing_secret_is_in_an_error_or_a_repr(capfd: pytest.CaptureFixture[str]) -> None:
    security = {
        "security.protocol": SecretStr("SASL_PLAINTEXT"),
        "sasl.mechanism": SecretStr("PLAIN"),
        "sasl.username": SecretStr("ada-the-user"),
        "sasl.password": SecretStr("hunter2"),
    }
    settings = KafkaSettings(bootstrap_servers=NOBODY, timeout=timedelta(seconds=1), security=security)
    source = KafkaSource("any", settings)
    with pytest.raises(BrokerUnavailable) as told:
        source.end_offsets()
    wrong = {"enable.ssl.certificate.verification": SecretStr("hunter2")}
    with pytest.raises(KafkaRefused, match=r"enable\.ssl\.certificate\.verification") as refused:
        KafkaSource("any", settings.model_copy(update={"security": wrong})).end_offsets()
    printed = "".join(capfd.readouterr())
    for text in (repr(source), str(told.value), str(refused.value), printed):
        assert "hunter2" not in text
        assert "ada-the-user" not in text
    assert printed == ""


@pytest.mark.broker
def test_spark_reads_exactly_the_planned_range(broker: Broker, spark: SparkSession) -> None:
    source = new_source(broker, partitions=3)
    sent = [(number % 2, b"key-%d" % number, b"\xff%d" % number) for number in range(40)]
    broker.produce(source.topic, sent)
    frame = source.read(spark, {"0": 5, "1": 0, "2": 0}, {"0": 12, "1": 3, "2": 0}, tasks=4)
    assert frame.columns == ["topic", "partition", "offset", "key", "value", "timestamp"]
    rows = {(row.topic, row.partition, row.offset, bytes(row.key), bytes(row.value)) for row in frame.collect()}
    by_partition = {number: [record for record in sent if record[0] == number] for number in (0, 1)}
    wanted = [(0, offset) for offset in range(5, 12)] + [(1, offset) for offset in range(3)]
    assert rows == {(source.topic, number, offset, *by_partition[number][offset][1:]) for number, offset in wanted}
    nothing = source.read(spark, {"0": 5, "1": 0, "2": 0}, {"0": 5, "1": 0, "2": 0})
    assert nothing.collect() == []


# In nanoseconds instead of milliseconds, the first number that does not fit, far before 1970, and the two extremes.
BEYOND_SPARK = [1_795_000_000_000_000_000, 2**63 // 1000 + 1, -(10**16), -(2**63) + 1, 2**63 - 1]


@pytest.mark.broker
def test_records_whose_timestamp_spark_cannot_hold_are_read_by_another_reader_once_they_have_ended_sparks(
    broker: Broker, spark: SparkSession
) -> None:
    source = new_source(broker, partitions=3)
    broker.accept_any_timestamp(source.topic)
    sent: list[tuple[int, bytes, bytes | None, int]] = []
    times: list[int] = [1_700_000_000_123, *BEYOND_SPARK, 2**63 // 1000, -(2**63) // 1000 + 1, -1, 1_700_000_000_124]
    for number, produced in enumerate(times):
        for partition in (0, 1):
            at = produced if partition == 0 else 1_700_000_000_000 + number
            value = None if number == 3 else b"\xff%d" % number
            broker.produce(source.topic, [(partition, b"k%d" % number, value)], at)
            sent.append((partition, b"k%d" % number, value, at))
    start, end = {"0": 0, "1": 1, "2": 0}, {"0": len(times) - 1, "1": len(times), "2": 0}
    assert not source.read_otherwise({"0": 0, "1": 0, "2": 0}, {"0": 1, "1": len(times), "2": 0})
    with pytest.raises(Exception, match="overflows"):
        source.read(spark, start, end, tasks=2).collect()
    assert source.read_otherwise(start, end)
    assert not source.read_otherwise(start, end)
    assert not source.read_otherwise(end, end)
    frame = source.read(spark, start, end, tasks=2)
    assert frame.columns == ["topic", "partition", "offset", "key", "value", "timestamp"]
    rows = {
        (row.topic, row.partition, row.offset, bytes(row.key), row.value and bytes(row.value), row.us)
        for row in frame.selectExpr("*", "unix_micros(timestamp) AS us").drop("timestamp").collect()
    }
    wanted: set[tuple[object, ...]] = set()
    for partition, first, last in ((0, 0, len(times) - 1), (1, 1, len(times))):
        of_it = [one for one in sent if one[0] == partition]
        for offset in range(first, last):
            _, key, value, at = of_it[offset]
            held = None if at in BEYOND_SPARK else at * 1000
            wanted.add((source.topic, partition, offset, key, value, held))
    assert rows == wanted
    # Before and after these records Spark reads by itself again.
    assert "MapInArrow" not in source.read(spark, {"0": 0}, {"0": 1})._jdf.queryExecution().toString()
    assert "MapInArrow" in source.read(spark, {"0": 0}, {"0": 2})._jdf.queryExecution().toString()
