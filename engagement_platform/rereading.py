"""Days that were ingested, read once more from their topics: by what the checkpoints of those days recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from engagement_platform.engine.drain import DrainPolicy, drain
from engagement_platform.engine.job import BatchReport, Callbacks, MicroBatchJob, Stores
from engagement_platform.engine.stores import lineage
from engagement_platform.jobs import INGEST_ENGAGEMENTS, REREAD_ENGAGEMENTS, read_topic
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.declarations.declared import DeclaredEntity
from engagement_platform.pipelines.engagements.job import ingest_engagements
from engagement_platform.pipelines.parts import Parts
from engagement_platform.pipelines.profiles.job import ingest_changes, reread_name
from engagement_platform.pipelines.profiles.job import job_name as ingest_name
from engagement_platform.pipelines.replay import RecordedRanges, recorded_ranges
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka import KafkaSource


def reread_job(
    day: date, spark: SparkSession, settings: Settings, stores: Stores, callbacks: Callbacks | None = None
) -> MicroBatchJob[Any]:
    """Engagements that were ingested on a UTC day, read once more and applied as a keyed upsert.

    Changes nothing where nothing was wrong; after a decoding fix the repaired rows land and are announced.
    """
    callbacks = callbacks or Callbacks()
    source = KafkaSource(settings.kafka.engagements_topic, settings.kafka)
    parts = Parts(Lake(spark, settings), stores, settings, callbacks)
    read = partial(read_topic, source, spark, settings)
    return ingest_engagements(REREAD_ENGAGEMENTS, _recorded(INGEST_ENGAGEMENTS, day, source, stores), read, parts)


def reread_changes_job(
    declared: DeclaredEntity, day: date, spark: SparkSession, settings: Settings, stores: Stores, callbacks: Callbacks
) -> MicroBatchJob[Any]:
    """Changes of an entity that were ingested on a UTC day, as batches of their own; versions say which word counts."""
    source = KafkaSource(declared.topic, settings.kafka)
    ranges = _recorded(ingest_name(declared.entity), day, source, stores)
    read, name = partial(read_topic, source, spark, settings), reread_name(declared.entity)
    return ingest_changes(
        declared.entity, ranges, read, Parts(Lake(spark, settings), stores, settings, callbacks), name
    )


def reread(
    days: Sequence[date],
    spark: SparkSession,
    settings: Settings,
    stores: Stores,
    callbacks: Callbacks | None = None,
    *,
    declared: DeclaredEntity | None = None,
) -> Iterator[BatchReport]:
    """Read what was ingested on these UTC days once more, day by day. declared: changes of it; None: engagements."""
    for day in days:
        with_it = (day, spark, settings, stores, callbacks or Callbacks())
        job = reread_job(*with_it) if declared is None else reread_changes_job(declared, *with_it)
        yield from drain(job, DrainPolicy(idle_timeout=timedelta(0), max_duration=timedelta.max))


def _recorded(job: str, day: date, source: KafkaSource, stores: Stores) -> RecordedRanges:
    """What a job read on a UTC day."""
    last, history = stores.checkpoints.latest(job), stores.checkpoints.history(job)
    app_ids = lineage(history, stores.checkpoints.app_id(job))
    ranges = recorded_ranges(stores.checkpoints.history(job, ingestion_date=day), app_ids)
    return RecordedRanges(source, ranges, last.manifest.identity if last else {})
