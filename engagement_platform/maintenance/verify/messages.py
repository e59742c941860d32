"""Compares the tables with the messages they were made from, and the ledger of batches with itself.

The topic is read again as far as the broker still has it; what requests made of the rows is `identity`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import groupby, pairwise
from operator import and_

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from engagement_platform.engine.model import BatchRecord, JobState, Manifest, Offsets, accounted
from engagement_platform.lake.engagement import ALIAS, QUARANTINE
from engagement_platform.lake.erased import PSEUDONYM
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.session import spark_session
from engagement_platform.maintenance.verify.finding import EXAMPLES, Finding, Rule, found
from engagement_platform.maintenance.verify.recomputed import recomputed
from engagement_platform.maintenance.verify.snapshot import LakeSnapshot, lake_snapshot
from engagement_platform.pii.tombstones import StoredTombstones
from engagement_platform.pipelines import snapshot
from engagement_platform.pipelines.engagements.pipe import ID
from engagement_platform.pipelines.engagements.schema import ROW
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.pipelines.mutations.view import Pending
from engagement_platform.pipelines.parts import COORDINATES, kept
from engagement_platform.pipelines.pinned_settings import as_pinned
from engagement_platform.pipelines.tombstones import ENGAGEMENTS, withheld
from engagement_platform.settings import Settings
from engagement_platform.sources.decoded_batches import ENGAGEMENT_DECODED_DDL, decode_batches
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform.sources.messages import DecodingLimits, Reason

_EVENT = ("engagement_ts", "engagement_date")


def verify(settings: Settings, spark: SparkSession | None = None) -> list[Finding]:
    """All checks of engagement ingestion. Reads keys of the whole Data Table and the topic once.

    Finishing a batch meanwhile is no error: only what finished batches have read is expected.
    Raises what opening Spark, the broker and the stores raise.
    """
    at = lake_snapshot(settings, open_stores(settings))
    findings = [ledger(at.records)]
    if not at.done:
        return findings
    if spark is not None:
        return findings + _tables(settings, spark, at)
    with spark_session(settings, "verify", reads_only=True) as own:
        return findings + _tables(settings, own, at)


def ledger(records: Sequence[BatchRecord]) -> Finding:
    """Batches of one application id, oldest first: each begins where the one before ended, and its books balance."""
    wrong: list[str] = []
    for before, record in pairwise(records):
        lost = {p: o for p, o in before.manifest.end.items() if record.manifest.start.get(p) != o}
        if lost or record.manifest.batch_id != before.manifest.batch_id + 1:
            wrong.append(f"{record.manifest} does not begin where batch {before.manifest.batch_id} ended")
    for record in records:
        counts = record.counts
        if record.state is JobState.SUCCEEDED and counts.get("rows_in", 0) != accounted(counts):
            wrong.append(f"{record.manifest} received {counts.get('rows_in', 0)} and accounts for {accounted(counts)}")
    meaning = "every batch begins where the one before ended and accounts for each record it received"
    return Finding("ledger", meaning, len(records), len(wrong), wrong[:EXAMPLES])


def _tables(settings: Settings, spark: SparkSession, at: LakeSnapshot) -> list[Finding]:
    lake = Lake(spark, settings)
    notified = at.notified(lake).select(*ID, "change_type", "notification_id")
    quarantined = at.read(lake, QUARANTINE).where(F.col("topic") == settings.kafka.engagements_topic)
    messages = kept(_messages(settings, spark, at.done, quarantined))
    refused = F.col("reason_code").isNotNull()
    joined = _joined(lake, at, messages.where(~refused), notified)
    # A visible row was inserted once more than deleted. A row that arrived hidden was never announced.
    announced = F.col("inserts") == F.col("deletes") + F.when(F.col("seen"), 1).otherwise(0)
    known = (F.col("rows") > 0) | (F.col("inserts") > 0) | (F.col("deletes") > 0)
    stale = F.col("sent").isNotNull() & (F.col("rows") > 0) & (F.col("landed") < F.col("sent"))
    missing = F.col("sent").isNotNull() & (F.col("rows") == 0)
    meaning = "every accepted message of a finished batch is in the Data Table"
    too_old, absent, doubled, announcements = found(
        joined,
        "engagement_id",
        Rule("lost", meaning, stale),
        Rule("lost", meaning, missing),
        Rule("doubled", "every engagement stands in the Data Table once", F.col("rows") > 1),
        Rule("announced", "every engagement that is seen was announced, every other one withdrawn", known & ~announced),
    )
    if absent.wrong:
        absent = _not_erased(lake, at, joined.where(missing).select(*ID, "event.*"), absent)
    examples = [*too_old.examples, *absent.examples][:EXAMPLES]
    lost = Finding("lost", meaning, too_old.looked_at, too_old.wrong + absent.wrong, examples)
    vanished = Rule("vanished", "every message that is refused stands in quarantine", refused)
    again = quarantined.groupBy(*COORDINATES, "value", "job_name", "batch_id").agg(F.count("*").alias("times"))
    twice = notified.groupBy("notification_id").agg(F.count("*").alias("times"))
    more, times = F.col("times") > 1, F.col("times")
    return [
        lost,
        *found(messages, "offset", vanished),
        doubled,
        announcements,
        *found(twice, "notification_id", Rule("notified_twice", "every notification stands once", more), weight=times),
        *found(
            again, "offset", Rule("quarantined_twice", "every rejected record stands in quarantine once", more),
            weight=times,
        ),
    ]  # fmt: skip


def _joined(lake: Lake, at: LakeSnapshot, accepted: DataFrame, notified: DataFrame) -> DataFrame:
    """One row for each engagement of the messages, the Data Table and the notifications.

    Out: ID, sent (highest version of the messages), event (of that one), rows (of the Data Table, deleted ones and
    tombstones, too), landed (highest version that landed), seen (by readers, as far as requests are announced),
    inserts, deletes.
    """
    event = F.struct(F.col("person_id").alias("source_person_id"), *_EVENT)
    newest = accepted.groupBy(*ID).agg(F.max("version").alias("sent"), F.max_by(event, "version").alias("event"))
    stored = snapshot.data(lake, at.view).groupBy(*ID).agg(F.count("*").alias("rows"))
    rows = (
        _announced(lake, at)
        .groupBy(*ID)
        .agg(F.max("version").alias("landed"), F.bool_or(F.col("person_id").isNotNull()).alias("seen"))
    )
    changes = notified.groupBy(*ID).agg(
        F.count_if(F.col("change_type") == "INSERT").alias("inserts"),
        F.count_if(F.col("change_type") == "DELETE").alias("deletes"),
    )
    joined = newest
    for frame in (stored, rows, changes):
        joined = joined.join(frame, list(ID), "full")
    return kept(joined.na.fill(0, ["rows", "inserts", "deletes"]))


def _announced(lake: Lake, at: LakeSnapshot) -> DataFrame:
    """Engagements under the identity that notifications have announced so far; null: deleted.

    That is the view's, unless there are requests that `apply-mutations` has not announced yet.
    """
    if not at.view.is_pending(ALIAS, at.announced):
        return snapshot.shown(lake, at.view)
    return recomputed(snapshot.data(lake, at.view), snapshot.pending(lake, at.view), before=at.announced + 1)


def _not_erased(lake: Lake, at: LakeSnapshot, missing: DataFrame, absent: Finding) -> Finding:
    """Those that are missing although nobody was erased whom they were converted to.

    Whatever else is deleted leaves a row: a hidden one, or a tombstone.
    """
    held = F.lit(None)
    typed = {field.name: field for field in snapshot.data(lake, at.view).schema}
    rows = missing.select(
        *(name if name in missing.columns else held.cast(typed[name].dataType).alias(name) for name in ROW.names)
    )
    edges = snapshot.pending(lake, at.view).alias
    converted = None if edges is None else edges.where(F.col("operation") == "CONVERT")
    ends = recomputed(rows, Pending(-1, None, converted, None, moves_identity=True))
    (left,) = found(
        kept(ends), "engagement_id", Rule(absent.check, absent.meaning, ~F.col("person_id").startswith(PSEUDONYM))
    )
    return left


def _messages(
    settings: Settings, spark: SparkSession, done: Sequence[BatchRecord], quarantined: DataFrame
) -> DataFrame:
    """Messages of the finished batches that quarantine does not hold, decoded; as far as the broker has them.

    Whatever quarantine holds is accounted for: the same bytes at the same place, or the place alone, where the subject
    was erased. Of erased subjects nothing is expected. Those refused by the settings of their batch have a reason_code.
    """
    source = KafkaSource(settings.kafka.engagements_topic, settings.kafka)
    for batch in (record.manifest for record in done if record.attempts > 1):
        # Where Spark's reader ended with a record, it would again.
        source.read_otherwise(_held(source, batch.start, batch.end), batch.end)
    held = quarantined.select(*(F.col(name).alias(f"held_{name}") for name in (*COORDINATES, "value")))
    same = reduce(and_, (F.col(name).eqNullSafe(F.col(f"held_{name}")) for name in (*COORDINATES, "value")))
    erased = F.col("reason_code").eqNullSafe(Reason.ERASED.value)
    marked = quarantined.where(erased & F.col("value").isNull()).select(*COORDINATES).distinct()

    def decoded_of(batches: Sequence[Manifest]) -> DataFrame:
        first, last = batches[0], batches[-1]
        start = _held(source, first.start, last.end)
        raw = source.read(spark, start, last.end, tasks=settings.spark.default_parallelism)
        raw = raw.join(held, same, "left_anti").join(marked, list(COORDINATES), "left_anti")
        limits = DecodingLimits.of(as_pinned(settings, last).decoding)
        return raw.mapInArrow(decode_batches("engagement", limits, last.ingestion_ts), ENGAGEMENT_DECODED_DDL)

    alike = groupby((record.manifest for record in done), key=lambda manifest: manifest.settings.get("decoding"))
    decoded = kept(reduce(DataFrame.unionAll, (decoded_of(list(batches)) for _, batches in alike)))
    decoded = withheld(decoded, ENGAGEMENTS, StoredTombstones(settings), Lake(spark, settings)).where(~erased)
    return decoded.select(*COORDINATES, *ID, "version", "person_id", *_EVENT, "reason_code")


def _held(source: KafkaSource, start: Offsets, end: Offsets) -> dict[str, int]:
    earliest = source.earliest_offsets()
    return {
        partition: min(max(start.get(partition, 0), earliest.get(partition, 0)), stop)
        for partition, stop in end.items()
    }
