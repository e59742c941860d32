"""A fresh lake, stores and topic for one entity, on the shared Spark and broker; and what should be seen in it."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from engagement_platform.engine.drain import DrainPolicy, drain
from engagement_platform.engine.job import BatchReport, Callbacks, MicroBatchJob, Observer, Stores
from engagement_platform.engine.model import Manifest
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.pipelines.parts import Parts
from engagement_platform.pipelines.profiles.entity import Attribute, Entity
from engagement_platform.pipelines.profiles.job import ingest_changes
from engagement_platform.pipelines.profiles.rematerialize import rematerialize
from engagement_platform.pipelines.profiles.snapshot import Snapshot, snapshot
from engagement_platform.settings import (
    KafkaSettings,
    LayoutSettings,
    MergeOnReadSettings,
    RematerializeSettings,
    Settings,
    StoreSettings,
)
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.pipelines.profiles.histories import NOW, plain, seen_by_rules
from engagement_platform_tests.pipelines.profiles.oracle import Row, Said, replay, rows_of

AT_ONCE = DrainPolicy(idle_timeout=timedelta(0), max_duration=timedelta(hours=1))


def ignore(_point: str) -> None:
    """An observer that lets everything pass."""


@dataclass
class World:
    """One entity's tables and what has landed in them."""

    spark: SparkSession
    broker: Broker
    home: Path
    entity: Entity
    rematerialize: RematerializeSettings = field(default_factory=RematerializeSettings)
    merge_on_read: MergeOnReadSettings = field(default_factory=MergeOnReadSettings)
    layout: LayoutSettings = field(default_factory=lambda: LayoutSettings(auto_compact=False))
    topic: str = field(default_factory=lambda: f"changes-{uuid4().hex[:12]}")
    landed: list[Said] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.broker.create_topic(self.topic)

    @cached_property
    def settings(self) -> Settings:
        return Settings(
            home=self.home,
            kafka=KafkaSettings(bootstrap_servers=self.broker.bootstrap_servers, profile_changes_topic=self.topic),
            stores=StoreSettings(lease_wait=timedelta(seconds=20)),
            layout=self.layout,
            rematerialize=self.rematerialize,
            merge_on_read=self.merge_on_read,
        )

    @cached_property
    def stores(self) -> Stores:
        return open_stores(self.settings)

    @cached_property
    def lake(self) -> Lake:
        return Lake(self.spark, self.settings)

    @property
    def snapshot(self) -> Snapshot:
        return snapshot(self.lake.root, self.entity)

    def declaring(self, attribute: Attribute) -> World:
        """The same lake, stores and topic, with one more attribute."""
        entity = replace(self.entity, attributes=(*self.entity.attributes, attribute))
        wider = copy.copy(self)
        for made in ("settings", "lake"):
            wider.__dict__.pop(made, None)
        wider.entity, wider.layout = entity, self.layout.model_copy(update={"evolve": True})
        return wider

    def ingestion(self, observe: Observer = ignore) -> MicroBatchJob[Any]:
        source = KafkaSource(self.topic, self.settings.kafka)

        def read(manifest: Manifest) -> DataFrame:
            return source.read(self.spark, manifest.start, manifest.end)

        callbacks = Callbacks(observe=observe)
        job = ingest_changes(self.entity, source, read, Parts(self.lake, self.stores, self.settings, callbacks))
        return replace(job, clock=lambda: NOW)

    def rematerialization(self, observe: Observer = ignore, later: timedelta = timedelta(0)) -> MicroBatchJob[Any]:
        callbacks, clock = Callbacks(observe=observe), lambda: NOW + later
        return rematerialize(self.entity, Parts(self.lake, self.stores, self.settings, callbacks), clock)

    def send(self, changes: Sequence[Said]) -> None:
        """Onto the topic, in this order."""
        messages = [json.dumps(change.message(self.entity), default=_plain).encode() for change in changes]
        self.produce(messages)
        self.landed += changes

    def produce(self, messages: Sequence[bytes]) -> None:
        """Onto the topic, whatever it is."""
        self.broker.produce(self.topic, [(0, None, message) for message in messages])

    def ingest(self, observe: Observer = ignore) -> list[BatchReport]:
        """Everything that waits on the topic."""
        return list(drain(self.ingestion(observe), AT_ONCE))

    def move(self, observe: Observer = ignore, later: timedelta = timedelta(0)) -> list[BatchReport]:
        """Everything that waits in the changeset."""
        return list(drain(self.rematerialization(observe, later), AT_ONCE))

    def expected(self) -> list[Row]:
        return replay(self.landed, self.entity)

    def seen_by_rules(self) -> list[Row]:
        """By the rules, without Spark."""
        return seen_by_rules(self.lake.root, self.entity)

    def seen(self, frame: DataFrame) -> list[Row]:
        """A view in Spark."""
        return rows_of(plain(frame.toArrow()), self.entity)


def _plain(value: object) -> str:
    assert isinstance(value, date | datetime)
    return value.isoformat()
