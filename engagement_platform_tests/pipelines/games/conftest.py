"""A bucket that tells a queue, a lake and jobs on them."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.engine.drain import DrainPolicy, drain
from engagement_platform.engine.job import BatchReport, Callbacks, MicroBatchJob, Observer
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.games.event_type import GROUP, QUARANTINE
from engagement_platform.pipelines.games.feed import Feed
from engagement_platform.pipelines.games.job import INGEST_GAME_EVENTS, GameBatch, game_events
from engagement_platform.pipelines.games.objects import QueueSource
from engagement_platform.pipelines.games.registry import registry
from engagement_platform.pipelines.jobs import close_source, open_stores, parts_of, replay_game_events
from engagement_platform.settings import GamesSettings, LayoutSettings, Settings
from engagement_platform_tests.conftest import Moto

_numbers = itertools.count()
AT_ONCE = DrainPolicy(idle_timeout=timedelta(0), max_duration=timedelta.max)


class World:
    """Everything a job of game events needs, fresh."""

    def __init__(self, moto: Moto, folder: Path, spark: SparkSession) -> None:
        name = f"games{next(_numbers)}"
        self.moto, self.spark, self.bucket = moto, spark, f"{name}-raw"
        self.s3, self.sqs = moto.client("s3"), moto.client("sqs")
        self.s3.create_bucket(Bucket=self.bucket, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
        self.dead = self.sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
        policy = {"deadLetterTargetArn": self._arn(self.dead), "maxReceiveCount": 100}
        self.queue = self.sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": json.dumps(policy)})["QueueUrl"]
        told = [{"QueueArn": self._arn(self.queue), "Events": ["s3:ObjectCreated:*"]}]
        self.s3.put_bucket_notification_configuration(
            Bucket=self.bucket, NotificationConfiguration={"QueueConfigurations": told}
        )
        self.settings = Settings(
            home=folder,
            games=GamesSettings(bucket=self.bucket, queue_url=self.queue, visibility=timedelta(seconds=3)),
            layout=LayoutSettings(auto_compact=False),
        )
        self.stores = open_stores(self.settings)
        self.types = registry()
        if self.spark and "://" not in self.settings.lake:
            # Copied here, while a process of a test's own would make all thirty.
            Lake(spark, self.settings).ensure(*Feed(GROUP, self.types).tables)

    def variables(self, **more: str) -> dict[str, str]:
        """Settings of a process that works on this world, as environment variables."""
        told = {"HOME": str(self.settings.home), "GAMES__BUCKET": self.bucket,
                "GAMES__QUEUE_URL": self.settings.games.queue_url or "", **more}  # fmt: skip
        return {f"ENGAGEMENT_PLATFORM_{name}": value for name, value in told.items()}

    def in_a_process(self, point: str, **more: str) -> subprocess.CompletedProcess[bytes]:
        """Run the job in a process that ends itself by SIGKILL at a point, where it comes to that."""
        told = self.variables(GAMES__VISIBILITY="PT3S", LAYOUT__AUTO_COMPACT="false", **more)
        command = [sys.executable, "-m", "engagement_platform_tests.pipelines.games.killable", point]
        return subprocess.run(command, env={**os.environ, **told}, check=False, capture_output=True, timeout=900)

    def put(self, key: str, lines: Sequence[bytes]) -> None:
        """An object of gzip JSON lines."""
        self.s3.put_object(Bucket=self.bucket, Key=key, Body=gzip.compress(b"\n".join(lines) + b"\n"))

    def run(self, observe: Observer = lambda _point: None, settings: Settings | None = None) -> list[BatchReport]:
        """All that waits, as a new process would."""
        job = self.job(observe, settings or self.settings)
        try:
            return list(drain(job, AT_ONCE))
        finally:
            close_source(job)

    def job(self, observe: Observer, settings: Settings) -> MicroBatchJob[GameBatch]:
        """The job for the types of this world."""
        # What was put is announced by then.
        source, lake = QueueSource(INGEST_GAME_EVENTS, settings, wait_s=0), Lake(self.spark, settings)
        return game_events(
            INGEST_GAME_EVENTS, source, lake, self.stores, settings, Feed(GROUP, self.types), Callbacks(observe=observe)
        )

    def replay(self, *prefixes: str, observe: Observer = lambda _point: None) -> list[BatchReport]:
        """Objects with these prefixes, once more."""
        parts = parts_of(self.spark, self.settings, self.stores, Callbacks(observe=observe))
        return list(replay_game_events(prefixes, parts))

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of a type's table, or of quarantine, in the order of what stands first."""
        table = QUARANTINE if name == QUARANTINE.key[1] else self.types[name].table
        uri = table.uri(self.settings.lake)
        found = DeltaTable(uri).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(uri) else []
        return sorted(found, key=lambda row: (row["source_object"], row["source_line"]))

    def everything(self) -> Mapping[str, list[dict[str, Any]]]:
        """All rows of all tables that have any, without the stamps that a replay may give anew."""
        stamps = {"batch_id", "ingestion_ts", "ingestion_date", "job_name"}
        tables = {name: self.rows(name) for name in ("quarantine", *self.types)}
        plain = {
            name: [{key: value for key, value in row.items() if key not in stamps} for row in rows]
            for name, rows in tables.items()
        }
        return {name: rows for name, rows in plain.items() if rows}

    def left(self) -> int:
        """Messages in the queue, the invisible ones included."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.queue, AttributeNames=names)["Attributes"]
        return sum(map(int, found.values()))

    def _arn(self, url: str) -> str:
        arn: str = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        return arn


@pytest.fixture
def world(moto: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> World:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
    return World(moto, tmp_path, spark)


@pytest.fixture
def small(world: World) -> World:
    """With three types only, for what does not depend on how many there are."""
    world.types = {name: world.types[name] for name in ("heartbeat", "login", "purchase")}
    return world
