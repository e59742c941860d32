"""The job that lands a declared stream: new records in its table, refused ones in its quarantine, exactly once each.

What a stream is, is `stream`; which records are new, `settle`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import MicroBatchJob, Stores, Told
from engagement_platform.engine.model import Counts, Limits, Manifest, Source
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.audit_columns import stamped_here
from engagement_platform.lake.fencing import LakeFencing, targets
from engagement_platform.lake.lake import Lake
from engagement_platform.landing.batch import COORDINATES, DecodedBatch
from engagement_platform.landing.decoded import decoded_table, few_records
from engagement_platform.landing.redriven import RedrivenProcess, RedriveSource, turn_of
from engagement_platform.landing.rejected import RejectedProcess
from engagement_platform.landing.withheld import withheld
from engagement_platform.pii.tombstones import StoredTombstones
from engagement_platform.pinned_settings import as_pinned, that_decide
from engagement_platform.settings import Settings
from engagement_platform.sources.messages import DecodingLimits
from engagement_platform.sources.recorded_batches import decode_records, records_ddl
from engagement_platform.streams.settle import settled
from engagement_platform.streams.stream import Stream

Reader = Callable[[Manifest], DataFrame]
"""Raw records of a pinned range: topic, partition, offset, key, value, timestamp."""


@dataclass(frozen=True)
class RecordProcess:
    """Accepted records, appended."""

    stream: Stream
    name: str = "table"
    commits: tuple[str, ...] = ("append",)

    def run(self, work: DecodedBatch, commit: Committer) -> Counts:
        """Counts: landed, files, bytes."""
        rows = work.accepted
        if not rows.num_rows:
            return {"landed": 0}
        table = self.stream.table
        # In the order of ids, so that bounds within row groups let readers of one id skip most of a file.
        order = [(name, "ascending") for name in (*table.partitioned_by, self.stream.clustered_by)]
        stamped = stamped_here(rows, work.manifest)
        ordered = stamped.select(list(table.column_names)).cast(schema_of(table)).sort_by(order)
        for column in set(table.partitioned_by) & self.stream.shape.ids:
            work.lake.accept_folders(column, ordered.column(column).unique().to_pylist(), table)
        with commit("append") as txn:
            work.lake.append(ordered, table, txn, rows=rows.num_rows)
        return {"landed": rows.num_rows, **work.lake.written(table, txn)}


def ingest_stream(
    stream: Stream,
    source: Source,
    read: Reader,
    lake: Lake,
    stores: Stores,
    settings: Settings,
    told: Told,
    name: str | None = None,
) -> MicroBatchJob[DecodedBatch]:
    """Records of a declared stream into its two tables. Raises ContractBroken where a table is another one.

    name: of a redrive, which goes on under a checkpoint of its own. One batch of all these jobs at a time: two that
    look for a name at one moment would both find that nobody has it.
    """
    table, quarantine = stream.table, stream.quarantine
    redriven = [RedrivenProcess(source)] if isinstance(source, RedriveSource) else []
    lake.ensure(table, quarantine)
    unpinned, tombstones = lake, StoredTombstones(settings)
    named = {} if stream.subject is None else {stream.tombstone: (stream.subject,)}

    def prepare(manifest: Manifest) -> DecodedBatch:
        own = as_pinned(settings, manifest)
        lake = unpinned.under(own)
        step = decode_records(stream.shape, DecodingLimits.of(own.decoding), manifest.ingestion_ts)
        raw = read(manifest)
        few = few_records(source.size(manifest.start, manifest.end), lake)
        rows = decoded_table(raw, step, records_ddl(stream.shape), few)
        table = withheld(rows, named, tombstones)

        def records() -> pa.Table:
            return raw.select(*COORDINATES, "key", "value").toArrow()

        return DecodedBatch(lake, manifest, *settled(stream, table, records, lake, manifest))

    return MicroBatchJob(
        name=name or stream.job,
        source=source,
        prepare=prepare,
        processes=(RejectedProcess(quarantine), RecordProcess(stream), *redriven),
        stores=stores,
        limits=Limits(settings.batch.max_records, settings.batch.max_bytes),
        pin=lambda: {table.name: lake.version(table), quarantine.name: lake.version(quarantine), turn_of(table): 0},
        decides=lambda: that_decide(settings, "decoding"),
        leased=(turn_of(table),),
        lease_wait=settings.stores.lease_wait,
        describe=lambda work: {
            "rejected": work.by_reason,
            "produced_quantiles_ms": work.produced_quantiles_ms,
        },
        fencing=LakeFencing(
            lake, targets({"quarantine/append": quarantine, "table/append": table, "redriven/append": quarantine})
        ),
        observe=told.observe,
        on_wait=told.on_wait,
        on_blocked=told.on_blocked,
    )
