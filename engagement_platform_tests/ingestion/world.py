"""A fresh lake, fresh stores and a fresh topic for one test, on the shared Spark and broker."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.engine.drain import DrainPolicy, drain
from engagement_platform.engine.job import BatchReport, Callbacks, MicroBatchJob, Observer, Stores
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import NOTIFICATION, QUARANTINE, data_table, engagement_tables
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, build_job, open_stores, parts_of, unread_requests
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES, rematerialize_aliases
from engagement_platform.pipelines.parts import Parts
from engagement_platform.pipelines.snapshot import current, current_names, snapshot
from engagement_platform.settings import (
    BatchSettings,
    DecodingSettings,
    KafkaSettings,
    LayoutSettings,
    MutationSettings,
    Settings,
    StoreSettings,
)
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.ingestion.oracle import Key, Oracle, as_bytes

NOW = datetime(2026, 11, 21, 9, 30, 0, 123456, tzinfo=UTC)
AT_ONCE = DrainPolicy(idle_timeout=timedelta(0), max_duration=timedelta(hours=1))


def ignore(_point: str) -> None:
    """An observer that lets everything pass."""


@dataclass
class World:
    """One lake and what stands beside it. Messages go to partition 0 unless said otherwise, so offsets are known."""

    spark: SparkSession
    broker: Broker
    home: Path
    partitions: int = 1
    layout: LayoutSettings = field(default_factory=lambda: LayoutSettings(auto_compact=False))
    batch: BatchSettings = field(default_factory=BatchSettings)
    decoding: DecodingSettings = field(default_factory=DecodingSettings)
    mutation: MutationSettings = field(default_factory=MutationSettings)
    produced: int = 0
    ticks: bool = False
    """Whether time goes on, by a second a batch; otherwise it stands still, and equal runs leave equal rows."""
    lease_wait: timedelta = timedelta(seconds=20)
    later: timedelta = timedelta(0)
    """By how much it is later than at first."""
    _ticked: list[int] = field(default_factory=lambda: [0])

    def __post_init__(self) -> None:
        name = uuid4().hex[:12]
        self.topics = (f"engagements-{name}", f"requests-{name}")
        for topic in self.topics:
            self.broker.create_topic(topic, self.partitions)

    @cached_property
    def settings(self) -> Settings:
        """Settings of this world; environment variables do not reach them."""
        kafka = KafkaSettings(
            bootstrap_servers=self.broker.bootstrap_servers,
            engagements_topic=self.topics[0],
            mutation_requests_topic=self.topics[1],
        )
        return Settings(
            home=self.home,
            kafka=kafka,
            stores=StoreSettings(lease_wait=self.lease_wait),
            layout=self.layout,
            batch=self.batch,
            decoding=self.decoding,
            mutation=self.mutation,
        )

    @cached_property
    def stores(self) -> Stores:
        """The stores of this world."""
        return open_stores(self.settings)

    @cached_property
    def lake(self) -> Lake:
        """The lake of this world."""
        return Lake(self.spark, self.settings)

    @property
    def data(self) -> Table:
        """The Data Table's contract in this world's layout."""
        return data_table(self.settings.layout.scheme)

    def produce(
        self, messages: Sequence[dict[str, Any] | None], partition: int = 0, produced: int | None = None
    ) -> list[tuple[int, Any]]:
        """Put messages on the engagements topic; (offset, message) of each, when only partition 0 is used.

        produced: as `Broker.produce` takes it.
        """
        self.broker.produce(self.topics[0], [(partition, None, as_bytes(message)) for message in messages], produced)
        first = self.produced
        self.produced += len(messages)
        return list(enumerate(messages, first))

    def produce_raw(self, records: Sequence[tuple[bytes | None, bytes | None]], topic: int = 0) -> None:
        """Put (key, value) records as they stand on partition 0 of one of the two topics; up to 4 MiB each."""
        from confluent_kafka import KafkaError, Message, Producer

        refused: list[str] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                refused.append(str(error))

        servers = self.broker.bootstrap_servers
        producer = Producer({"bootstrap.servers": servers, "acks": "all", "message.max.bytes": 4 * 1024 * 1024})
        for key, value in records:
            producer.produce(self.topics[topic], value, key, 0, on_delivery=delivered)
        assert producer.flush(20) == 0, "records were not delivered within 20 s"
        assert not refused, f"the broker refused a record: {refused[0]}"
        self.produced += len(records) if topic == 0 else 0

    def under(self, **options: Any) -> World:
        """The same lake, stores and topics under other settings (fields of this class, or `spark`)."""
        other = copy.copy(self)
        for made in ("settings", "stores", "lake"):
            other.__dict__.pop(made, None)
        for name, value in options.items():
            assert hasattr(other, name), f"a world has no {name}"
            setattr(other, name, value)
        return other

    def run_all(self, jobs: Iterable[MicroBatchJob[Any]]) -> list[BatchReport]:
        """Everything these jobs find, with the clock that stands still."""
        return [report for job in jobs for report in drain(replace(job, clock=lambda: NOW), AT_ONCE)]

    def callbacks(self, observe: Observer = ignore) -> Callbacks:
        """For jobs that are not made by `job`."""
        return Callbacks(observe=observe)

    def job(self, observe: Observer = ignore, name: str = INGEST_ENGAGEMENTS) -> MicroBatchJob[Any]:
        """The ingestion job, with a clock that stands still: then equal runs leave equal rows."""
        callbacks = Callbacks(observe=observe)
        if name == REMATERIALIZE_ALIASES:
            unread = partial(unread_requests, self.settings, self.stores)
            return rematerialize_aliases(Parts(self.lake, self.stores, self.settings, callbacks), unread, self.clock)
        job = build_job(name, parts_of(self.spark, self.settings, self.stores, callbacks))
        return replace(job, clock=self.clock)

    def clock(self) -> datetime:
        """Now, in this world."""
        self._ticked[0] += self.ticks
        return NOW + timedelta(seconds=self._ticked[0]) + self.later

    def current(self) -> list[dict[str, Any]]:
        """The rows that readers see, through their view."""
        at = snapshot(self.lake.root)
        if not at.pends:
            return [row for row in self.rows(self.data) if row["person_id"] is not None]
        return [utc(row.asDict(recursive=True)) for row in current(self.lake, at).collect()]

    def names(self) -> list[tuple[str, str, str, datetime]]:
        """Organization, id, name and when it was said, as readers see them through their view; sorted."""
        rows = current_names(self.lake, snapshot(self.lake.root)).collect()
        found = (utc(row.asDict()) for row in rows)
        return sorted((row["organization_id"], row["id"], row["name"], row["name_ts"]) for row in found)

    def produce_requests(self, messages: Sequence[dict[str, Any] | None], produced: datetime | None = None) -> None:
        """Put messages on partition 0 of the topic of mutation requests. produced: as `Broker.produce` takes it."""
        self.broker.produce(self.topics[1], [(0, None, as_bytes(message)) for message in messages], produced)

    def run(self, observe: Observer = ignore, name: str = INGEST_ENGAGEMENTS) -> list[BatchReport]:
        """Everything that waits."""
        return list(drain(self.job(observe, name), AT_ONCE))

    def rows(self, table: Table) -> list[dict[str, Any]]:
        """All rows of a table; without Spark where it has nothing that only Spark reads."""
        found = DeltaTable(self.lake.uri(table))
        if found.protocol().min_reader_version > 1:
            return self.rows_in_spark(table)
        return found.to_pyarrow_table().to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]

    def rows_in_spark(self, table: Table) -> list[dict[str, Any]]:
        """All rows of a table as Spark reads them."""
        return [utc(row.asDict(recursive=True)) for row in self.lake.read(table).collect()]

    def contents(self) -> dict[str, list[str]]:
        """Every row of every engagement table as text, sorted, read without Spark; equal when no row changed."""
        found = {}
        for table in engagement_tables(self.settings.layout.scheme):
            if DeltaTable.is_deltatable(self.lake.uri(table)):
                rows = DeltaTable(self.lake.uri(table)).to_pyarrow_table().to_pylist()
                found[table.name] = sorted(map(repr, rows))
        return found

    def assert_equals(self, oracle: Oracle) -> None:
        """Every table, row for row."""
        assert self.data_rows() == sorted(
            (o, i, r["ts"], r["person"], r["version"], r["type"], r["subject"]) for (o, i), r in oracle.data.items()
        )
        assert self.names() == sorted((o, p, name, ts) for (o, p), (ts, name, _batch) in oracle.names.items())
        assert sorted(self.notified(), key=repr) == sorted(oracle.notifications, key=repr)
        ids = [row["notification_id"] for row in self.rows(NOTIFICATION)]
        assert len(ids) == len(set(ids)), "a notification stands twice"
        quarantined = self.rows(QUARANTINE)
        assert sorted(row["offset"] for row in quarantined) == sorted(oracle.quarantined)
        for row in quarantined:
            reason = oracle.quarantined[row["offset"]]
            assert not reason or row["reason_code"] == reason

    def data_rows(self) -> list[tuple[Any, ...]]:
        """What readers see, sorted, as the oracle knows it."""
        return sorted(
            (
                row["organization_id"],
                row["engagement_id"],
                row["engagement_ts"],
                row["person_id"],
                row["version"],
                row["engagement"]["type"],
                row["engagement"]["subject"],
            )
            for row in self.current()
        )

    def notified(self) -> Iterator[tuple[int, str, Key, str | None]]:
        """The notification table as the oracle knows it."""
        for row in self.rows(NOTIFICATION):
            key = (row["organization_id"], row["engagement_id"])
            yield row["batch_id"], row["change_type"], key, row["previous_person_id"]


def utc(values: dict[str, Any]) -> dict[str, Any]:
    """With aware UTC times: collect() gives naive ones in the zone of this machine."""
    return {name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in values.items()}
