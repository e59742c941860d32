"""Lands a declared stream: decode, compare with the pinned table, append. Nothing is decided after the plan.

What a stream is, is `tables`; which records are new, `pipelines.rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import MicroBatchJob, Step
from engagement_platform.engine.model import Counts, Manifest, Source
from engagement_platform.lake.lake import Lake
from engagement_platform.pii.tombstones import StoredTombstones, Tombstones
from engagement_platform.pipelines.duplicates import bounds, with_verdict
from engagement_platform.pipelines.kafka_tables.tables import Stream, declaration_of, under_declaration
from engagement_platform.pipelines.parts import (
    COORDINATES,
    Appends,
    Parts,
    Reader,
    TopicBatch,
    counted,
    kept,
    side_by_side,
    unweighed,
    with_reason,
)
from engagement_platform.pipelines.pinned_settings import that_decide
from engagement_platform.pipelines.redrive import redriven, turn_of
from engagement_platform.pipelines.rules import Verdict
from engagement_platform.pipelines.tombstones import withheld
from engagement_platform.sources.decoded_batches import decode_records, records_ddl
from engagement_platform.sources.messages import DecodingLimits

REASONS = {
    "unique_conflict": "A record of the same name has landed, or came before in this batch, and says something else.",
}


@dataclass(frozen=True)
class StreamBatch(TopicBatch):
    """A batch with its finished plan: records with `verdict`."""

    stream: Stream
    folders: Mapping[str, Sequence[str]]
    """Partition column -> its texts."""
    outcome: Mapping[str, int]
    """Verdict -> records."""


def write_tables(work: StreamBatch, commit: Committer) -> Counts:
    """Write quarantine and the table.

    Counts: rows_in, bytes_in, unknown_fields, quarantined, landed, duplicates, files, bytes, commits.
    """
    stream, appends = work.stream, Appends(work.lake, work.manifest, commit)
    landed, quarantined = work.outcome.get(Verdict.NEW, 0), work.quarantined
    writes: list[Callable[[], None]] = []
    if quarantined:
        rows = work.to_quarantine(stream.quarantine)
        writes.append(lambda: appends.add("quarantine", stream.quarantine, rows, quarantined))
    if landed:
        for column, values in work.folders.items():
            work.lake.accept_folders(column, values, stream.table)
        new = work.plan.where(F.col("verdict") == Verdict.NEW.value)
        writes.append(lambda: appends.add("table", stream.table, new, landed))
    side_by_side(*writes)
    return {
        **work.received.counts(),
        "quarantined": quarantined,
        "landed": landed,
        "duplicates": work.outcome.get(Verdict.KNOWN, 0),
        **appends.counts(),
    }


def ingest_stream(
    stream: Stream, source: Source, read: Reader, parts: Parts, name: str | None = None
) -> MicroBatchJob[StreamBatch]:
    """Records of a declared stream into its two tables. Raises ContractBroken where a table is another one.

    name: of a redrive, which goes on under a checkpoint of its own. One batch of all these jobs at a time: two that
    look for a name at one moment would both find that nobody has it.
    """
    lake, settings, tombstones = parts.lake, parts.settings, StoredTombstones(parts.settings)
    table, quarantine = stream.table, stream.quarantine
    lake.ensure(table, quarantine)

    def prepare(manifest: Manifest) -> StreamBatch:
        own, pinned = parts.lake_for(manifest, source), under_declaration(stream, manifest.settings)
        return open_batch(own, pinned, manifest, read(manifest), tombstones)

    def pin() -> dict[str, int]:
        lake.refuse_undeclared(table)
        return {table.name: lake.version(table), quarantine.name: lake.version(quarantine), turn_of(table): 0}

    return parts.job(
        name or stream.job,
        source,
        prepare,
        (Step("tables", write_tables, ("quarantine", "table"), in_order=False), *redriven(source)),
        pin=pin,
        decides=lambda: {**that_decide(settings, "decoding"), **declaration_of(stream)},
        leased=(turn_of(table),),
        describe=StreamBatch.describe,
        writes={"tables/quarantine": quarantine, "tables/table": table, "redriven/append": quarantine},
    )


def open_batch(lake: Lake, stream: Stream, manifest: Manifest, raw: DataFrame, tombstones: Tombstones) -> StreamBatch:
    """Decode the pinned range and compare it with the table. Cost: a Spark job for each of the two; the second only
    where something names records, or they may have been read before."""
    step = decode_records(stream.shape, DecodingLimits.of(lake.settings.decoding), manifest.ingestion_ts)
    decoded = kept(raw.mapInArrow(step, records_ddl(stream.shape)))
    if stream.subject is not None:
        decoded = withheld(decoded, {stream.tombstone: (stream.subject,)}, tombstones, lake)
    folders = sorted({*stream.table.partitioned_by} & stream.shape.ids)
    texts = [F.collect_set(name).alias(f"folders_{name}") for name in folders]
    received, accepted = counted(decoded, *texts, *bounds(stream.named_by))
    plan = decoded.where("reason_code IS NULL").select(*COORDINATES, *stream.declared)
    outcome: dict[str, int] = {}
    if accepted is None or not (stream.unique or manifest.is_replay):
        plan = plan.withColumn("verdict", F.lit(Verdict.NEW.value))
        outcome = {Verdict.NEW: accepted["records"]} if accepted else {}
    else:
        version = manifest.table_versions[stream.table.name]
        landed = lake.read(stream.table, version) if version else None
        unique = stream.named_by if stream.unique else ()
        added = lake.added(stream.table)
        plan = kept(with_verdict(plan, landed, accepted, stream.named_by, unique=unique, added=added))
        with unweighed(lake.spark):
            outcome = {row["verdict"]: row["count"] for row in plan.groupBy("verdict").count().collect()}
    [(code, sentence)] = REASONS.items()
    conflicts = plan.where(F.col("verdict") == Verdict.CONFLICT.value)
    refused = {code: outcome[Verdict.CONFLICT]} if Verdict.CONFLICT in outcome else {}
    return StreamBatch(
        lake,
        manifest,
        raw,
        decoded,
        received,
        plan,
        refused,
        with_reason(conflicts, code, sentence),
        stream,
        {name: accepted[f"folders_{name}"] for name in folders} if accepted else {},
        outcome,
    )
