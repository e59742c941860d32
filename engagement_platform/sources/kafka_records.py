"""Records that librdkafka reads: samples, and partitions that Spark's reader ends with.

That reader has timestamps in microseconds, and Kafka any 64 bits of milliseconds: a producer that stamps its records in
nanoseconds, or far before 1970, would stop a topic for ever. Brokers refuse such records only where they have to
(`message.timestamp.after.max.ms`, by default an hour from Kafka 4.0 on, and `message.timestamp.before.max.ms`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, Message, TopicPartition

from engagement_platform.settings import KafkaSettings
from engagement_platform.sources.kafka_errors import BrokerUnavailable, KafkaRefused
from engagement_platform.sources.kafka_options import client_options, servers, without_secrets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Answers that another moment changes: a topic that was just made has no leader yet, a leader moves.
PASSING = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
UNREACHABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._WAIT_COORD,
        KafkaError.REQUEST_TIMED_OUT,
        *PASSING,
    }
)
_MOST_MS = (2**63 - 1) // 1000
_ROWS = 1_000
_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
_DDL = "topic string, partition int, offset bigint, key binary, value binary, timestamp timestamp"


def left(deadline: float) -> float:
    """Seconds until then, for librdkafka, which takes no timeout of 0."""
    return max(0.1, deadline - time.monotonic())


def place(record: Message) -> tuple[int, int]:
    """Partition and offset of a record that came."""
    partition, offset = record.partition(), record.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def produced_ms(record: Message) -> int | None:
    """When a record was produced, in milliseconds since 1970 UTC; None: it has no timestamp."""
    kind, timestamp = record.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp


def fits_spark(timestamp_ms: int | None) -> bool:
    """Whether Spark's reader survives a record with this timestamp."""
    return timestamp_ms is None or abs(timestamp_ms) <= _MOST_MS


def records(
    topic: str, settings: KafkaSettings, begin: Mapping[int, int], end: Mapping[int, int] | None = None
) -> Generator[Message, None, None]:
    """Records from these offsets on, partition by partition in any turn.

    end: the offsets to stop before; all until there come. Without it whatever comes within settings.timeout, until
    every partition is at its end.
    To be closed. Raises BrokerUnavailable when no record comes in that time, KafkaRefused.
    """
    options: dict[str, str | int | float | bool] = client_options(settings) | {
        # Required by the client; never joined and never committed to.
        "group.id": "engagement-platform-sample",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "queued.max.messages.kbytes": 4096,
    }
    seconds = settings.timeout.total_seconds()
    deadline = time.monotonic() + seconds
    consumer = Consumer(options)
    try:
        consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in begin.items()])
        came, unfinished = False, set(begin)
        while unfinished and time.monotonic() < deadline:
            message = consumer.poll(left(deadline))
            if message is None:
                break
            error = message.error()
            if error is None:
                came, (partition, offset) = True, place(message)
                if end is None or offset < end[partition]:
                    yield message
                if end is not None:
                    deadline = time.monotonic() + seconds
                    if offset + 1 >= end[partition] and partition in unfinished:
                        unfinished.remove(partition)
                        consumer.pause([TopicPartition(topic, partition)])
            elif error.code() == KafkaError._PARTITION_EOF:
                unfinished.discard(message.partition())
            elif error.code() not in UNREACHABLE:
                reason = f"{error.name()} ({without_secrets(error.str(), settings)})"
                raise KafkaRefused(f"the broker at {servers(settings)} did not give records of topic {topic}, {reason}")
        if unfinished and (end is not None or not came):
            raise BrokerUnavailable(servers(settings), seconds, "no record came")
    finally:
        consumer.close()


def read_apart(
    spark: SparkSession, topic: str, settings: KafkaSettings, ranges: Mapping[int, tuple[int, int]]
) -> DataFrame:
    """The records of (start, end) of each partition, as Spark's reader would give them; read by Spark's Python workers.

    A timestamp that Spark cannot hold is null: the record counts as produced when it is read. Lazy.
    """
    rows = [(partition, start, end) for partition, (start, end) in ranges.items()]
    wanted = spark.createDataFrame(rows, "partition int, start bigint, end bigint").repartition(len(rows), "partition")
    return wanted.mapInArrow(_fetch(topic, settings), _DDL)


def _fetch(topic: str, settings: KafkaSettings) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def step(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for wanted in (row for batch in batches for row in batch.to_pylist()):
            start, end = ({wanted["partition"]: wanted[side]} for side in ("start", "end"))
            with closing(records(topic, settings, start, end)) as found:
                while rows := [_row(topic, record) for record in islice(found, _ROWS)]:
                    yield pa.RecordBatch.from_pylist(rows, _SCHEMA)

    return step


def _row(topic: str, record: Message) -> dict[str, object]:
    timestamp = produced_ms(record)
    return {
        "topic": topic,
        "partition": record.partition(),
        "offset": record.offset(),
        "key": record.key(),
        "value": record.value(),
        "timestamp": timestamp * 1000 if timestamp is not None and fits_spark(timestamp) else None,
    }
