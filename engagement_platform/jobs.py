"""The jobs by their names, ready to run: what the command line and Dagster both call.

Opens stores, Spark and lake for one run and closes them. What a job does is in its own package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from engagement_platform.errors import PlatformError
from engagement_platform.ingestion.job import ingest_engagements, ingest_mutation_requests
from engagement_platform.microbatch.database import open_engine
from engagement_platform.microbatch.job import BatchReport, DrainPolicy, MicroBatchJob, Observer, Stores, drain
from engagement_platform.microbatch.lease import Holder, LeaseStore
from engagement_platform.microbatch.model import Manifest
from engagement_platform.microbatch.stores import BatchMetadataStore, CheckpointStore
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform.spark.session import spark_session
from engagement_platform.tables.lake import Lake

INGEST_ENGAGEMENTS = "ingest-engagements"
INGEST_MUTATION_REQUESTS = "ingest-mutation-requests"
JOB_NAMES = (INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS)


class UnknownJob(PlatformError):
    """No job has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no job called {name!r}. Jobs: {', '.join(JOB_NAMES)}.")


@dataclass(frozen=True)
class Told:
    """Who is told what while a job runs."""

    observe: Observer = lambda _point: None
    on_wait: Callable[[str, Holder], None] = lambda _lease, _holder: None


def open_stores(settings: Settings) -> Stores:
    """The three stores on the database of the settings."""
    engine = open_engine(settings.store_url)
    return Stores(
        CheckpointStore(engine), BatchMetadataStore(engine), LeaseStore(engine, ttl=settings.stores.lease_ttl)
    )


def topic_of(name: str, settings: Settings) -> str:
    """The topic a job reads. Raises UnknownJob."""
    topics = {
        INGEST_ENGAGEMENTS: settings.kafka.engagements_topic,
        INGEST_MUTATION_REQUESTS: settings.kafka.mutation_requests_topic,
    }
    if name not in topics:
        raise UnknownJob(name)
    return topics[name]


def kafka_job(
    name: str, spark: SparkSession, settings: Settings, stores: Stores, observe: Observer = lambda _point: None
) -> MicroBatchJob[Any]:
    """One of JOB_NAMES on an open session."""
    source = KafkaSource(topic_of(name, settings), settings.kafka)
    lake = Lake(spark, settings)

    def read(manifest: Manifest) -> DataFrame:
        return source.read(spark, manifest.start, manifest.end, min_partitions=settings.spark.default_parallelism)

    if name == INGEST_ENGAGEMENTS:
        return ingest_engagements(name, lake, source, read, stores, settings, observe)
    return ingest_mutation_requests(lake, source, read, stores, settings, observe)


@contextmanager
def open_job(name: str, settings: Settings, told: Told | None = None) -> Iterator[MicroBatchJob[Any]]:
    """A job with its own Spark session. Raises UnknownJob and what opening Spark, stores and tables raises."""
    topic_of(name, settings)
    told = told or Told()
    stores = open_stores(settings)
    with spark_session(settings, name) as spark:
        yield replace(kafka_job(name, spark, settings, stores, told.observe), on_wait=told.on_wait)


def run_until_idle(name: str, settings: Settings, told: Told | None = None) -> Iterator[BatchReport]:
    """Batch after batch until nothing is waiting; without lingering and without a time limit."""
    with open_job(name, settings, told) as job:
        yield from drain(job, DrainPolicy(linger=timedelta(0), max_duration=timedelta(days=365)))
