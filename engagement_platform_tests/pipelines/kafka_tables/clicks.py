"""The stream that tests declare, messages of it, and a world in which it is ingested. No assertions here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.engine.drain import DrainPolicy, drain
from engagement_platform.engine.job import BatchReport, Callbacks, MicroBatchJob, Observer
from engagement_platform.lake import scan
from engagement_platform.lake.contract import Table
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.jobs import build_job, open_stores, parts_of
from engagement_platform.pipelines.kafka_tables.tables import Field, Stream
from engagement_platform.settings import BatchSettings, KafkaSettings, Settings
from engagement_platform_tests.conftest import Broker

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
AT_ONCE = DrainPolicy(idle_timeout=timedelta(0), max_duration=timedelta.max)

CLICK = Stream(
    topic="shop-clicks",
    key=("shop", "click"),
    description="Clicks.",
    fields=(
        Field("click_id", "string", "Unique."),
        Field("shop_id", "string", "Which shop."),
        Field("page", "string", "What was clicked at."),
        Field("price", "double", "What it cost."),
        Field("clicked_at", "timestamp", "When."),
    ),
    clustered_by="shop_id",
    event_time="clicked_at",
    unique=("click_id",),
)


def click(click_id: str, shop: str = "a", day: int = 20, **more: object) -> dict[str, object]:
    """A message's fields."""
    return {"click_id": click_id, "shop_id": shop, "clicked_at": f"2026-11-{day:02}T10:00:00Z", **more}


def encoded(*messages: dict[str, object] | bytes) -> list[bytes]:
    """As they go onto a topic; bytes go as they are."""
    return [message if isinstance(message, bytes) else json.dumps(message).encode() for message in messages]


class World:
    """A lake, stores and a topic of its own."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path, stream: Stream = CLICK) -> None:
        self.stream = replace(stream, topic=f"clicks-{uuid4().hex[:8]}")
        self.broker = broker
        broker.create_topic(self.stream.topic)
        self.settings = Settings(
            home=folder,
            kafka=KafkaSettings(bootstrap_servers=broker.bootstrap_servers),
            batch=BatchSettings(max_records=5),
        )
        self.lake, self.stores = Lake(spark, self.settings), open_stores(self.settings)

    def job(self, observe: Observer = lambda _point: None) -> MicroBatchJob[Any]:
        """The job, at a clock that stands still."""
        parts = parts_of(self.lake.spark, self.settings, self.stores, Callbacks(observe=observe))
        return replace(build_job(self.stream.job, parts, self.stream), clock=lambda: NOW)

    def send(self, *messages: dict[str, object] | bytes) -> None:
        """Onto the topic, in this order."""
        self.broker.produce(self.stream.topic, [(0, None, message) for message in encoded(*messages)])

    def ingest(self, observe: Observer = lambda _point: None) -> list[BatchReport]:
        """Everything that waits on the topic."""
        return list(drain(self.job(observe), AT_ONCE))

    def rows(self, table: Table, *columns: str) -> list[tuple[object, ...]]:
        """Rows in the order of their offsets, without a JVM."""
        found = scan.find(DeltaTable(self.lake.uri(table)), ("offset", *columns), {})
        return [tuple(row.values())[1:] for row in sorted(found.to_pylist(), key=lambda row: row["offset"])]


def landed(messages: Sequence[dict[str, object]]) -> tuple[list[str], list[str], list[str]]:
    """Ids of what lands, is known, and contradicts, by a loop over the messages."""
    first: dict[object, dict[str, object]] = {}
    new, known, conflicts = list[str](), list[str](), list[str]()
    for message in messages:
        name = str(message["click_id"])
        if name not in first:
            first[name] = message
            new.append(name)
        elif first[name] == message:
            known.append(name)
        else:
            conflicts.append(name)
    return new, known, conflicts
