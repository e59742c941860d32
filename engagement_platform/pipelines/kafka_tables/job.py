"""Lands a declared stream: decode, compare with the pinned table, append. Nothing is decided after the plan.

What a stream is, is `tables`; which records are new, `rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import MicroBatchJob
from engagement_platform.engine.model import Counts, Manifest, Source
from engagement_platform.lake.lake import Lake
from engagement_platform.pii.tombstones import StoredTombstones, Tombstones
from engagement_platform.pinned_settings import as_pinned, that_decide
from engagement_platform.pipelines.engagements.pipe import BROADCAST_ROWS
from engagement_platform.pipelines.kafka_tables.rules import REASONS, Verdict, judged
from engagement_platform.pipelines.kafka_tables.tables import Stream
from engagement_platform.pipelines.parts import (
    COORDINATES,
    Appends,
    Parts,
    Reader,
    Received,
    TopicBatch,
    by_reason,
    kept,
    received,
    side_by_side,
    tune_for,
    with_reason,
)
from engagement_platform.pipelines.redrive import redriven, turn_of
from engagement_platform.pipelines.tombstones import withheld
from engagement_platform.sources.decoded_batches import decode_records, records_ddl
from engagement_platform.sources.messages import DecodingLimits

GROUP_ROWS = 20_000
"""About so many records are judged in one call; a name never stands in two of them (a guess)."""


@dataclass(frozen=True)
class StreamBatch(TopicBatch):
    """A batch with its finished plan: records with `verdict`."""

    stream: Stream
    folders: Mapping[str, Sequence[str]]
    """Partition column -> its texts."""
    outcome: Mapping[str, int]
    """Verdict -> records."""


@dataclass(frozen=True)
class TablesProcess:
    """Quarantine and the table."""

    name: str = "tables"
    commits: tuple[str, ...] = ("quarantine", "table")

    def run(self, work: StreamBatch, commit: Committer) -> Counts:
        """Counts: rows_in, bytes_in, unknown_fields, quarantined, landed, duplicates, files, bytes, commits."""
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
        own = as_pinned(settings, manifest)
        tune_for(lake, source.size(manifest.start, manifest.end))
        return open_batch(lake.under(own), stream, manifest, read(manifest), tombstones)

    commits = {"tables/quarantine": quarantine, "tables/table": table, "redriven/append": quarantine}
    return parts.job(
        name or stream.job,
        source,
        prepare,
        (TablesProcess(), *redriven(source)),
        pin=lambda: {table.name: lake.version(table), quarantine.name: lake.version(quarantine), turn_of(table): 0},
        decides=lambda: that_decide(settings, "decoding"),
        leased=(turn_of(table),),
        describe=StreamBatch.describe,
        writes=commits,
    )


def open_batch(lake: Lake, stream: Stream, manifest: Manifest, raw: DataFrame, tombstones: Tombstones) -> StreamBatch:
    """Decode the pinned range and compare it with the table. Cost: a Spark job for each of the two; the second only
    where something names records, or they may have been read before."""
    step = decode_records(stream.shape, DecodingLimits.of(lake.settings.decoding), manifest.ingestion_ts)
    decoded = kept(raw.mapInArrow(step, records_ddl(stream.shape)))
    if stream.subject is not None:
        decoded = withheld(decoded, {stream.tombstone: (stream.subject,)}, tombstones, lake)
    folders = sorted({*stream.table.partitioned_by} & stream.shape.ids)
    groups = by_reason(
        decoded,
        *(F.collect_set(name).alias(f"folders_{name}") for name in folders),
        *(of(name).cast("string").alias(f"{of.__name__}_{name}") for name in stream.named_by for of in (F.min, F.max)),
    )
    accepted = next((row for row in groups if row["reason_code"] is None), None)
    plan = decoded.where("reason_code IS NULL").select(*COORDINATES, *stream.declared)
    outcome: dict[str, int] = {}
    if accepted is None or not (stream.unique or manifest.is_replay):
        plan = plan.withColumn("verdict", F.lit(Verdict.NEW.value))
        outcome = {Verdict.NEW: accepted["records"]} if accepted else {}
    else:
        plan = kept(judged_records(lake, stream, manifest, plan, accepted))
        outcome = {row["verdict"]: row["count"] for row in plan.groupBy("verdict").count().collect()}
    texts = {name: accepted[f"folders_{name}"] for name in folders} if accepted else {}
    code, of = Verdict.UNIQUE_CONFLICT, Received(**received(groups))
    refused = {code.value: outcome[code]} if code in outcome else {}
    refused_rows = with_reason(plan.where(F.col("verdict") == code.value), code.value, REASONS[code])
    return StreamBatch(lake, manifest, raw, decoded, of, plan, refused, refused_rows, stream, texts, outcome)


def judged_records(lake: Lake, stream: Stream, manifest: Manifest, copies: DataFrame, accepted: Row) -> DataFrame:
    """Accepted records with their verdict. accepted: how many there are, and the bounds of what names them.

    Cost: one scan of the pinned table, pruned by these bounds, and one shuffle.
    """
    names, version = stream.named_by, manifest.table_versions[stream.table.name]
    groups = [F.pmod(F.hash(*names), F.lit(-(-accepted["records"] // GROUP_ROWS))).alias("group")]
    kinds = dict(copies.dtypes)
    ddl = ", ".join(f"{name} {kind}" for name, kind in (*kinds.items(), ("verdict", "string")))
    unique, content = stream.unique and names, stream.declared

    def judge(copies: pa.Table, landed: pa.Table) -> pa.Table:
        return judged(copies, landed, unique, content)

    if not version:
        return copies.groupBy(*groups).applyInArrow(lambda rows: judge(rows, rows.slice(0, 0)), ddl)
    ids = copies.select(*names)
    ids = F.broadcast(ids) if accepted["records"] <= BROADCAST_ROWS else ids
    landed = lake.read(stream.table, version).where(reduce(and_, _bounds(accepted, kinds, names)))
    landed = landed.join(ids, list(names), "left_semi").select(*copies.columns)
    return copies.groupBy(*groups).cogroup(landed.groupBy(*groups)).applyInArrow(judge, ddl)


def _bounds(accepted: Row, kinds: Mapping[str, str], names: Sequence[str]) -> list[Column]:
    """Predicates that skip files without such names. From text, which says values of every type exactly."""
    ends = {name: [F.lit(accepted[f"{of}_{name}"]).cast(kinds[name]) for of in ("min", "max")] for name in names}
    return [F.col(name).between(*found) for name, found in ends.items()]
