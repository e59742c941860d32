"""A Kafka topic as a source of bounded batches: which offsets a batch takes, and the frame that holds them.

Offsets are planned here and kept in the Checkpoint Store; no consumer group, nothing is ever committed to the broker.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from engagement_platform.engine.model import Limits, Offsets
from engagement_platform.errors import PlatformError
from engagement_platform.settings import KafkaSettings
from engagement_platform.sources.kafka_errors import (
    BrokerUnavailable,
    KafkaRefused,
    OffsetsExpired,
    TopicMissing,
    TopicRecreated,
)
from engagement_platform.sources.kafka_options import client_options, servers, spark_options, without_secrets
from engagement_platform.sources.kafka_records import (
    PASSING,
    UNREACHABLE,
    fits_spark,
    left,
    place,
    produced_ms,
    read_apart,
    records,
)

if TYPE_CHECKING:
    from confluent_kafka.admin._topic import TopicDescription
    from pyspark.sql import DataFrame, SparkSession

_FEW_RECORDS = 50_000
"""Up to so many records a task for each partition costs more than reading them one after the other (a guess)."""
_RECORDS_PER_TASK = 5_000
"""Records that take as long as a task costs before its first one (a guess)."""
_SAMPLE_RECORDS = 200
_COLUMNS = ("topic", "partition", "offset", "key", "value", "timestamp")
_PAUSE_S = 0.2
_TOPIC_ID, _CLUSTER_ID = "topic_id", "cluster_id"
# What brokers before Kafka 2.8 say, which know no ids.
_NO_ID = frozenset({"AAAAAAAAAAAAAAAAAAAAAA", "None", ""})
_T = TypeVar("_T")


class _Kept(NamedTuple):
    """What the broker has of a partition: offsets low (included) to high (excluded, the last stable offset)."""

    low: int
    high: int


class KafkaSource:
    """One topic, read in ranges of offsets keyed by the partition's number as text.

    Every method that asks the broker raises BrokerUnavailable within settings.timeout, KafkaRefused or TopicMissing;
    those that take offsets also TopicRecreated and OffsetsExpired.
    The counts are of offsets: with transactional producers some hold markers, not records.
    """

    def __init__(self, topic: str, settings: KafkaSettings) -> None:
        self.topic, self.settings = topic, settings
        self._complaint: KafkaError | None = None
        self._apart: dict[int, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"KafkaSource({self.topic!r}, {self.settings.bootstrap_servers!r})"

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> tuple[Offsets, Offsets] | None:
        """The next range (start, end) of at most limits.max_records and about limits.max_bytes; None when idle.

        start None: the earliest offsets. A partition that `start` does not know begins at its very first record.
        mean_bytes: of the batch before; None takes a sample of up to 200 records.
        """
        kept = self._kept()
        begin = self._begin(start, kept)
        backlog = {partition: kept[partition].high - offset for partition, offset in begin.items()}
        if not any(backlog.values()):
            return None
        if mean_bytes is None:
            mean_bytes = self._sampled_mean_bytes({p: begin[p] for p, waiting in backlog.items() if waiting})
        budget = limits.max_records
        if mean_bytes:
            budget = min(budget, max(1, int(limits.max_bytes / mean_bytes)))
        taken = share_budget(backlog, budget)
        end = {partition: offset + taken[partition] for partition, offset in begin.items()}
        return _as_offsets(begin), _as_offsets(end)

    def check(self, start: Offsets, end: Offsets) -> None:
        """Raise when the pinned range can no longer be read whole."""
        kept = self._kept()
        last = _as_partitions(end)
        self._refuse_recreated(last, kept)
        # An empty range has lost nothing, whatever has expired since.
        self._refuse_expired({p: o for p, o in _as_partitions(start).items() if o < last[p]}, kept, last)

    def read_otherwise(self, start: Offsets, end: Offsets) -> bool:
        """Look for records that Spark's reader ends with; from now on their partitions are read without it.

        False where that changes nothing. Reads the whole range.
        """
        first, last = _as_partitions(start), _as_partitions(end)
        ranges = {partition: offset for partition, offset in first.items() if offset < last[partition]}
        if not ranges:
            return False
        before = dict(self._apart)
        with closing(records(self.topic, self.settings, ranges, last)) as found:
            for record in found:
                if not fits_spark(produced_ms(record)):
                    partition, offset = place(record)
                    lowest, highest = self._apart.get(partition, (offset, offset))
                    self._apart[partition] = min(lowest, offset), max(highest, offset)
        return self._apart != before

    def identify(self, pinned: Mapping[str, str]) -> Mapping[str, str]:
        """topic, topic_id and cluster_id (KIP-516) as the broker has them now, without what it does not say.

        A topic that is deleted and made anew under its name has another id, however far it has grown since.
        Raises TopicRecreated when `pinned` names others.
        """
        now = self._asked(self._identity)
        for name, of in ((_CLUSTER_ID, "cluster"), (_TOPIC_ID, "topic")):
            was = pinned.get(name)
            if was is not None and was != now.get(name, was):
                found = f"is of the {of} with id {was}, and {servers(self.settings)} has the {of} {now[name]}"
                raise TopicRecreated(self.topic, found)
        return now

    def size(self, start: Offsets, end: Offsets) -> int:
        """How many offsets a range has; asks nobody."""
        return sum(end[partition] - offset for partition, offset in start.items())

    def backlog(self, start: Offsets | None) -> int:
        """How many offsets wait at or after `start`. Raises what plan would, so that a lost range is not idleness."""
        kept = self._kept()
        return sum(kept[partition].high - offset for partition, offset in self._begin(start, kept).items())

    def first_unread(self, start: Offsets | None) -> dict[str, int | None]:
        """Kafka timestamps (as `first_timestamps`) of the first records at or after `start`, where there are any.

        Raises what plan would.
        """
        kept = self._kept()
        begin = self._begin(start, kept).items()
        return self.first_timestamps(_as_offsets({p: offset for p, offset in begin if offset < kept[p].high}))

    def first_timestamps(self, offsets: Offsets) -> dict[str, int | None]:
        """Kafka timestamp of the first record at or after each offset, in milliseconds since 1970 UTC.

        None where that record has no timestamp, and where none came. Cost: one record of each partition.
        """
        first: dict[str, int | None] = {}
        if offsets:
            with closing(records(self.topic, self.settings, _as_partitions(offsets))) as found:
                for record in found:
                    first.setdefault(str(record.partition()), produced_ms(record))
                    if len(first) == len(offsets):
                        break
        return {partition: first.get(partition) for partition in offsets}

    def end_offsets(self) -> Offsets:
        """Per partition the offset after the last record that a reader of committed records sees."""
        return _as_offsets({partition: kept.high for partition, kept in self._kept().items()})

    def earliest_offsets(self) -> Offsets:
        """Per partition the first offset that the broker still has."""
        return _as_offsets({partition: kept.low for partition, kept in self._kept().items()})

    def read(self, spark: SparkSession, start: Offsets, end: Offsets, *, tasks: int | None = None) -> DataFrame:
        """The records of a range: topic, partition, offset, key, value, timestamp. Lazy; fails on lost records.

        tasks: a range is split into at least so many; one of few records into no more, however many partitions it has,
        and into less where a task would have less than _RECORDS_PER_TASK. Without it one task per topic partition.
        """
        first, last = _as_partitions(start), _as_partitions(end)
        apart = {
            partition: (first[partition], last[partition])
            for partition, (lowest, highest) in self._apart.items()
            if partition in first and first[partition] <= highest and lowest < last[partition]
        }
        if apart:
            others = {p: offset for p, offset in start.items() if int(p) not in apart}
            found = read_apart(spark, self.topic, self.settings, apart)
            return found.unionAll(self.read(spark, others, end, tasks=tasks)) if others else found
        # Spark must not look at partitions without anything to read: what they had may have expired.
        wanted = sorted(p for p in first if first[p] < last[p]) or sorted(first)
        options = {
            **spark_options(self.settings),
            "assign": json.dumps({self.topic: wanted}),
            "startingOffsets": json.dumps({self.topic: {str(p): first[p] for p in wanted}}),
            "endingOffsets": json.dumps({self.topic: {str(p): last[p] for p in wanted}}),
            "failOnDataLoss": "true",
        }
        size = self.size(start, end)
        if tasks is not None:
            tasks = min(tasks, 1 + size // _RECORDS_PER_TASK)
            options["minPartitions"] = str(tasks)
        frame = spark.read.format("kafka").options(**options).load().select(*_COLUMNS)
        return frame if tasks is None or size > _FEW_RECORDS else frame.coalesce(tasks)

    def stream(self, spark: SparkSession) -> DataFrame:
        """The topic as a streaming frame, from its first record on; columns as `read`. Fails on lost records.

        A stream's position is in its own checkpoint folder. Asks the broker nothing.
        """
        options = {"subscribe": self.topic, "startingOffsets": "earliest", "failOnDataLoss": "true"}
        reader = spark.readStream.format("kafka").options(**spark_options(self.settings), **options)
        return reader.load().select(*_COLUMNS)

    @cached_property
    def _admin(self) -> AdminClient:
        try:
            options = client_options(self.settings) | {"error_cb": self._complained}
            return AdminClient(options)  # type: ignore[arg-type]
        except KafkaException as refused:
            raise KafkaRefused(without_secrets(_error(refused).str(), self.settings)) from None

    def _complained(self, error: KafkaError) -> None:
        """librdkafka's own reason, such as a refused connection; a call that fails says just "timed out"."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._complaint = error

    def _kept(self) -> dict[int, _Kept]:
        """What the broker has of each partition, in their order."""
        return self._asked(self._ask)

    def _asked(self, ask: Callable[[float], _T]) -> _T:
        """What the broker answers to a question, which is put again until the timeout while the answer may change."""
        deadline = time.monotonic() + self.settings.timeout.total_seconds()
        while True:
            try:
                answer = ask(deadline)
            except KafkaException as failed:
                if _error(failed).code() not in PASSING or time.monotonic() + _PAUSE_S > deadline:
                    raise self._named(_error(failed)) from None
                time.sleep(_PAUSE_S)
            else:
                # What was wrong until now must not be given as the reason for what goes wrong later.
                self._admin.poll(0)
                self._complaint = None
                return answer

    def _described(self, deadline: float) -> TopicDescription:
        described = self._admin.describe_topics(TopicCollection([self.topic]), request_timeout=left(deadline))
        try:
            topic: TopicDescription = described[self.topic].result()
        except KafkaException as failed:
            if _error(failed).code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise TopicMissing(servers(self.settings), self.topic) from None
            raise
        return topic

    def _identity(self, deadline: float) -> dict[str, str]:
        topic_id = str(self._described(deadline).topic_id)
        cluster_id = self._admin.describe_cluster(request_timeout=left(deadline)).result().cluster_id
        found = {"topic": self.topic, _CLUSTER_ID: cluster_id, _TOPIC_ID: None if topic_id in _NO_ID else topic_id}
        return {name: value for name, value in found.items() if value}

    def _ask(self, deadline: float) -> dict[int, _Kept]:
        topic = self._described(deadline)
        partitions = [TopicPartition(self.topic, partition.id) for partition in topic.partitions]
        lows, highs = (
            self._admin.list_offsets(
                dict.fromkeys(partitions, spec),
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=left(deadline),
            )
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
        )
        return {
            asked.partition: _Kept(lows[asked].result().offset, highs[asked].result().offset)
            for asked in sorted(partitions, key=lambda asked: asked.partition)
        }

    def _named(self, error: KafkaError) -> PlatformError:
        self._admin.poll(0)  # delivers what librdkafka complained about meanwhile
        cause = self._complaint if error.code() in UNREACHABLE and self._complaint else error
        reason = without_secrets(cause.str(), self.settings)
        if cause.code() in UNREACHABLE:
            return BrokerUnavailable(servers(self.settings), self.settings.timeout.total_seconds(), reason)
        where = servers(self.settings)
        return KafkaRefused(f"the broker at {where} did not describe topic {self.topic}, {cause.name()} ({reason})")

    def _begin(self, start: Offsets | None, kept: Mapping[int, _Kept]) -> dict[int, int]:
        """Where to go on in every partition of today, after a look whether everything since `start` is still there."""
        if start is None:
            return {partition: low for partition, (low, _high) in kept.items()}
        known = _as_partitions(start)
        self._refuse_recreated(known, kept)
        # A partition that came later is read from 0 and not from what is left of it, so that a loss is noticed.
        begin = {partition: known.get(partition, 0) for partition in kept}
        self._refuse_expired(begin, kept)
        return begin

    def _refuse_expired(
        self, begin: Mapping[int, int], kept: Mapping[int, _Kept], end: Mapping[int, int] | None = None
    ) -> None:
        for partition, offset in begin.items():
            low = kept[partition].low
            if offset < low:
                raise OffsetsExpired(self.topic, partition, offset, min(low, end[partition]) if end else low)

    def _refuse_recreated(self, known: Mapping[int, int], kept: Mapping[int, _Kept]) -> None:
        """Raise TopicRecreated where the broker has less than was read: partitions of a living topic never go away."""
        if vanished := sorted(known.keys() - kept.keys()):
            names = ", ".join(map(str, vanished))
            raise TopicRecreated(self.topic, f"has read from partition {names}, which the broker no longer has")
        for partition, offset in known.items():
            if offset > kept[partition].high:
                last = f"{self.topic}[{partition}], but the broker's last one is {kept[partition].high}"
                raise TopicRecreated(self.topic, f"is at offset {offset} of {last}")

    def _sampled_mean_bytes(self, begin: Mapping[int, int]) -> float | None:
        """Mean bytes of key and value over the next records of the partitions; None when there are only markers."""
        with closing(records(self.topic, self.settings, begin)) as found:
            sizes = [len(one.value() or b"") + len(one.key() or b"") for one in islice(found, _SAMPLE_RECORDS)]
        return sum(sizes) / len(sizes) if sizes else None


def share_budget(backlog: Mapping[int, int], budget: int) -> dict[int, int]:
    """How much of its backlog each partition gives to a batch of at most `budget`: all of it when it fits.

    Otherwise in proportion, rounded up, so that every partition gives at least 1 as long as the budget lasts; the sum
    is the budget. Integers only, so that a replayed plan is the same.
    """
    waiting = sum(backlog.values())
    left, taken = min(budget, waiting), dict.fromkeys(backlog, 0)
    longest_first = budget < sum(1 for records in backlog.values() if records)
    for partition in sorted((p for p in backlog if backlog[p]), key=lambda p: (backlog[p], p), reverse=longest_first):
        taken[partition] = -(-left * backlog[partition] // waiting)
        left, waiting = left - taken[partition], waiting - backlog[partition]
    return taken


def _error(failed: KafkaException) -> KafkaError:
    error: KafkaError = failed.args[0]
    return error


def _as_partitions(offsets: Offsets) -> dict[int, int]:
    return {int(partition): offset for partition, offset in offsets.items()}


def _as_offsets(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offsets[partition] for partition in sorted(offsets)}
