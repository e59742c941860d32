"""Recomputes from the messages what the tables should hold, and compares. Changes nothing.

The topic is read again as far as the broker still has it; the ledger of batches is checked from the stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import and_

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from engagement_platform.ingestion.job import engagement_decoder
from engagement_platform.ingestion.settle import COORDINATES, ID
from engagement_platform.jobs import INGEST_ENGAGEMENTS, open_stores
from engagement_platform.microbatch.model import JobState, Manifest, Offsets
from engagement_platform.microbatch.stores import BatchRecord, CheckpointStore
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform.spark.session import spark_session
from engagement_platform.tables import log
from engagement_platform.tables.engagement import NOTIFICATION, QUARANTINE, data_table
from engagement_platform.tables.lake import Lake


@dataclass(frozen=True)
class Finding:
    """One thing that was checked: how many were looked at, how many are wrong, and a few of those."""

    check: str
    meaning: str
    looked_at: int
    wrong: int
    examples: Sequence[str] = ()


def verify(settings: Settings, spark: SparkSession | None = None) -> list[Finding]:
    """All checks of engagement ingestion. Reads keys of the whole Data Table and the topic once.

    Finishing a batch meanwhile is no error: only what finished batches have read is expected.
    Raises what opening Spark, the broker and the stores raise.
    """
    cut = _cut(settings, open_stores(settings).checkpoints)
    findings = [ledger(cut.records)]
    if not cut.done:
        return findings
    if spark is not None:
        return findings + _tables(settings, spark, cut)
    with spark_session(settings, "verify") as own:
        return findings + _tables(settings, own, cut)


@dataclass(frozen=True)
class _Cut:
    """A moment between two batches: what had finished, and the table versions of that moment."""

    records: Sequence[BatchRecord]
    """All batches of the current application id, oldest first."""
    data_version: int | None

    @property
    def done(self) -> list[BatchRecord]:
        """Finished batches, oldest first."""
        return [record for record in self.records if record.state is JobState.SUCCEEDED]

    def announced(self, notifications: DataFrame) -> DataFrame:
        """Without those of batches that had not finished then."""
        last = self.done[-1].manifest
        later = F.col("notification_id").startswith(f"{last.app_id}/") & (F.col("batch_id") > last.batch_id)
        return notifications.where(~later)


def _cut(settings: Settings, checkpoints: CheckpointStore) -> _Cut:
    """Look until no batch began or ended meanwhile; a batch under way pinned the version from before itself."""
    data = data_table(settings.layout.scheme)
    while True:
        before = checkpoints.latest(INGEST_ENGAGEMENTS)
        version = log.version(data.uri(settings.lake))
        app_id = checkpoints.app_id(INGEST_ENGAGEMENTS)
        records = [r for r in checkpoints.history(INGEST_ENGAGEMENTS) if r.manifest.app_id == app_id]
        if checkpoints.latest(INGEST_ENGAGEMENTS) == before:
            break
    records.reverse()
    if before is None or before.state is JobState.SUCCEEDED:
        return _Cut(records, version)
    return _Cut(records, before.manifest.table_versions.get(data.name))


def ledger(records: Sequence[BatchRecord]) -> Finding:
    """Batches of one application id, oldest first: each begins where the one before ended, and its books balance."""
    wrong: list[str] = []
    for before, record in pairwise(records):
        lost = {p: o for p, o in before.manifest.end.items() if record.manifest.start.get(p) != o}
        if lost or record.manifest.batch_id != before.manifest.batch_id + 1:
            wrong.append(f"{record.manifest} does not begin where batch {before.manifest.batch_id} ended")
    for record in records:
        counts = record.counts
        accounted = sum(counts.get(name, 0) for name in ("landed", "duplicates", "quarantined"))
        if record.state is JobState.SUCCEEDED and counts.get("rows_in", 0) != accounted:
            wrong.append(f"{record.manifest} received {counts.get('rows_in', 0)} and accounts for {accounted}")
    meaning = "every batch begins where the one before ended and accounts for each record it received"
    return Finding("ledger", meaning, len(records), len(wrong), wrong[:5])


def _tables(settings: Settings, spark: SparkSession, cut: _Cut) -> list[Finding]:
    lake, done = Lake(spark, settings), cut.done
    notified = cut.announced(lake.read(NOTIFICATION)).select(*ID, "change_type", "notification_id")
    data = lake.read(data_table(settings.layout.scheme), cut.data_version).select(*ID, "version")
    quarantined = lake.read(QUARANTINE).where(F.col("topic") == settings.kafka.engagements_topic)
    last = done[-1].manifest
    messages = _messages(settings, spark, done[0].manifest, last, quarantined).localCheckpoint(eager=False)
    refused = F.col("reason_code").isNotNull()
    accepted = messages.where(~refused)
    newest = accepted.groupBy(*ID).agg(F.max("version").alias("said"))
    rows = data.groupBy(*ID).agg(F.count("*").alias("rows"), F.max("version").alias("stands"))
    changes = notified.groupBy(*ID).agg(
        F.count_if(F.col("change_type") == "INSERT").alias("inserts"),
        F.count_if(F.col("change_type") == "DELETE").alias("deletes"),
    )
    joined = newest.join(rows, list(ID), "full").join(changes, list(ID), "full").na.fill(0, ["inserts", "deletes"])
    joined = joined.localCheckpoint(eager=True)
    deleted = F.col("deletes") > 0
    lost = F.col("said").isNotNull() & ~deleted & (F.col("stands").isNull() | (F.col("stands") < F.col("said")))
    # A deleted engagement may have come back: one INSERT more than DELETEs for a row that stands.
    announced = F.col("inserts") == F.col("deletes") + F.when(F.col("stands").isNotNull(), 1).otherwise(0)
    known = F.col("stands").isNotNull() | (F.col("inserts") > 0)
    again = quarantined.groupBy(*COORDINATES, "value", "job_name", "batch_id").count().where("count > 1")
    twice = notified.groupBy("notification_id").count().where("count > 1")
    return [
        _finding("lost", "every accepted message of a finished batch is in the Data Table", joined, lost),
        _count(
            "vanished",
            "every message that is refused stands in quarantine",
            messages,
            messages.where(refused),
            "offset",
        ),
        _finding("doubled", "every engagement stands in the Data Table once", joined, F.col("rows") > 1),
        _finding("announced", "every engagement that landed was announced once", joined, known & ~announced),
        _count("notified_twice", "every notification stands once", notified, twice, "notification_id"),
        _count("quarantined_twice", "every rejected record stands in quarantine once", quarantined, again, "offset"),
    ]


def _messages(
    settings: Settings, spark: SparkSession, first: Manifest, last: Manifest, quarantined: DataFrame
) -> DataFrame:
    """Messages of the finished batches that quarantine does not hold, decoded; as far as the broker has them.

    Whatever quarantine holds is accounted for: the same bytes at the same place. Refused ones have a reason_code.
    """
    source = KafkaSource(settings.kafka.engagements_topic, settings.kafka)
    start = _held(source, first.start, last.end)
    raw = source.read(spark, start, last.end, min_partitions=settings.spark.default_parallelism)
    held = quarantined.select(*(F.col(name).alias(f"held_{name}") for name in (*COORDINATES, "value")))
    same = reduce(and_, (F.col(name).eqNullSafe(F.col(f"held_{name}")) for name in (*COORDINATES, "value")))
    decoded = engagement_decoder(settings.decoding)(raw.join(held, same, "left_anti"), last)
    return decoded.select(*COORDINATES, *ID, "version", "reason_code")


def _held(source: KafkaSource, start: Offsets, end: Offsets) -> dict[str, int]:
    earliest = source.earliest_offsets()
    return {
        partition: min(max(start.get(partition, 0), earliest.get(partition, 0)), stop)
        for partition, stop in end.items()
    }


def _finding(check: str, meaning: str, frame: DataFrame, wrong: object) -> Finding:
    assert hasattr(wrong, "alias")
    bad = frame.where(wrong)  # type: ignore[arg-type]
    return _count(check, meaning, frame, bad, "engagement_id")


def _count(check: str, meaning: str, frame: DataFrame, bad: DataFrame, show: str) -> Finding:
    examples = [str(row[show]) for row in bad.limit(5).collect()]
    return Finding(check, meaning, frame.count(), bad.count() if examples else 0, examples)
