"""The job that appends changes from their topic to the changeset, one partition a batch; refused ones to quarantine.

Nothing is folded or merged here: that a write touches no row of the base is what merge on read is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from engagement_platform.merge_on_read.entity import Entity
from engagement_platform.merge_on_read.snapshot import snapshot
from engagement_platform.microbatch.job import Committer, MicroBatchJob, Stores, Told
from engagement_platform.microbatch.model import Counts, Limits, Manifest, Source
from engagement_platform.settings import Settings
from engagement_platform.sources.changed_batches import changes_ddl, decode_changes
from engagement_platform.sources.messages import DecodingLimits
from engagement_platform.tables.arrow import schema_of
from engagement_platform.tables.engagement import QUARANTINE
from engagement_platform.tables.lake import Lake
from engagement_platform.tables.stamps import stamped_here

Reader = Callable[[Manifest], DataFrame]
"""Raw records of a pinned range: topic, partition, offset, key, value, timestamp."""

_COORDINATES = ("topic", "partition", "offset")
_QUANTILES = tuple(i / 20 for i in range(21))

# What a manifest pins beside versions of tables that others write. Not under the tables' names: a batch that is
# unfinished would keep rematerialization from beginning, which has nothing to fear from it.
_NUMBER = "number in the changeset"
_KNOWN = "looked up: "

REASONS = {
    "unknown_profile": "An UPDATE of an id that nobody has inserted, and merge_on_read.unknown_update is quarantine.",
    "insert_not_new": "An INSERT of an id that is known, and merge_on_read.inserts_are_new promises there is none.",
}


def job_name(entity: Entity) -> str:
    """Name of the job for an entity, such as `ingest-profile-changes`."""
    return f"ingest-{entity.name}-changes"


@dataclass(frozen=True)
class ChangeBatch:
    """Decoded changes of one batch, in this process: a batch is bounded in rows and bytes, and decoded in Spark."""

    lake: Lake
    entity: Entity
    manifest: Manifest
    decoded: pa.Table
    """All records but known duplicates; reason_code is null for accepted ones."""
    duplicates: int

    @property
    def number(self) -> int:
        """Number of the batch in the changeset."""
        return self.manifest.table_versions[_NUMBER]

    @cached_property
    def rejected(self) -> pa.Table:
        """Records for quarantine, of which some may be there already when old records are gone over again."""
        return self.decoded.filter(self.decoded.column("reason_code").is_valid())

    @cached_property
    def accepted(self) -> pa.Table:
        """Records for the changeset."""
        return self.decoded.filter(self.decoded.column("reason_code").is_null())

    @property
    def by_reason(self) -> dict[str, int]:
        """Reason code -> rejected records."""
        counted = self.rejected.group_by("reason_code").aggregate([([], "count_all")]).to_pylist()
        return {row["reason_code"]: row["count_all"] for row in counted}

    @property
    def produced_quantiles_ms(self) -> list[int]:
        """Of the production times, for freshness."""
        times = self.decoded.column("produced_ts").drop_null().cast(pa.int64()).to_numpy()
        return [int(at) // 1000 for at in np.quantile(times, _QUANTILES)] if len(times) else []


@dataclass(frozen=True)
class RejectedProcess:
    """Rejected records, whole."""

    name: str = "quarantine"
    commits: tuple[str, ...] = ("append",)

    def run(self, work: ChangeBatch, commit: Committer) -> Counts:
        """Counts: rows_in, bytes_in, duplicates, quarantined, unknown_fields, files, bytes."""
        decoded = work.decoded
        counts = {
            "rows_in": decoded.num_rows + work.duplicates,
            "duplicates": work.duplicates,
            "bytes_in": int(pc.sum(decoded.column("value_bytes")).as_py() or 0),
            "unknown_fields": int(pc.sum(decoded.column("unknown_fields")).as_py() or 0),
            "quarantined": work.rejected.num_rows,
        }
        rows = _not_there_yet(work)
        if not rows.num_rows:
            return counts
        columns = [*_COORDINATES, "key", "value", "reason_code", "reason"]
        with commit("append") as txn:
            stamped = stamped_here(rows.select(columns), work.manifest)
            work.lake.append(stamped, QUARANTINE, txn, rows=rows.num_rows)
        return {**counts, **work.lake.written(QUARANTINE, txn)}


@dataclass(frozen=True)
class ChangesetProcess:
    """Accepted changes as one partition. With this commit they are visible in the view."""

    name: str = "changeset"
    commits: tuple[str, ...] = ("append",)

    def run(self, work: ChangeBatch, commit: Committer) -> Counts:
        """Counts: landed, files, bytes, and inserts, updates, deletes among them."""
        rows = work.accepted
        if not rows.num_rows:
            return {"landed": 0}
        table = work.entity.changeset
        stamps = {
            "ingestion_ts": pa.scalar(work.manifest.ingestion_ts, pa.timestamp("us", tz="UTC")),
            "batch_id": pa.scalar(work.number, pa.int64()),
        }
        for name, value in stamps.items():
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
        # In the order of keys, so that a file's bounds within row groups let readers of one key skip most of it.
        rows = rows.select(list(table.column_names)).cast(schema_of(table)).sort_by(work.entity.key)
        with commit("append") as txn:
            work.lake.append(rows, table, txn, rows=rows.num_rows)
        ops = {f"{op.lower()}s": _count(rows, op) for op in ("INSERT", "UPDATE", "DELETE")}
        return {"landed": rows.num_rows, **ops, **work.lake.written(table, txn)}


def ingest_changes(
    entity: Entity, source: Source, read: Reader, lake: Lake, stores: Stores, settings: Settings, told: Told
) -> MicroBatchJob[ChangeBatch]:
    """Changes of an entity into its changeset, exactly once, and the rejected ones into quarantine."""
    lake.ensure(entity.changeset, entity.base, QUARANTINE)
    limits = DecodingLimits.of(settings.decoding)

    def prepare(manifest: Manifest) -> ChangeBatch:
        step = decode_changes(entity.shape, limits, manifest.ingestion_ts)
        raw = read(manifest)
        decoded = raw.mapInArrow(step, changes_ddl(entity.shape)).toArrow()
        records = raw.select(*_COORDINATES, "key", "value").toArrow
        return ChangeBatch(lake, entity, manifest, *_refused(decoded, records, lake, entity, manifest))

    return MicroBatchJob(
        name=job_name(entity),
        source=source,
        prepare=prepare,
        processes=(RejectedProcess(), ChangesetProcess()),
        stores=stores,
        limits=Limits(settings.batch.max_records, settings.batch.max_bytes),
        pin=lambda: _pinned(lake, entity, stores),
        lease_wait=settings.stores.lease_wait,
        describe=lambda work: {
            "rejected": work.by_reason,
            "changeset_batch": work.number,
            "pending_rows": snapshot(lake.root, entity).pending_rows,
            "produced_quantiles_ms": work.produced_quantiles_ms,
        },
        observe=told.observe,
        on_wait=told.on_wait,
        on_blocked=told.on_blocked,
    )


def _pinned(lake: Lake, entity: Entity, stores: Stores) -> Mapping[str, int]:
    """Versions to look things up in, and the number of the next batch.

    The number is greater than any in the changeset or below the base's watermark, also when a reset, or new stores,
    count the batches of the job from 0 again; else the view would take a new batch for a merged one.
    """
    last = stores.checkpoints.latest(job_name(entity))
    found = snapshot(lake.root, entity)
    return {
        QUARANTINE.name: lake.version(QUARANTINE),
        f"{_KNOWN}{entity.changeset.name}": found.changeset_version,
        f"{_KNOWN}{entity.base.name}": found.base_version,
        _NUMBER: max(found.latest + 1, last.manifest.batch_id + 1 if last else 0),
    }


def _refused(
    decoded: pa.Table, raw: Callable[[], pa.Table], lake: Lake, entity: Entity, manifest: Manifest
) -> tuple[pa.Table, int]:
    """With the reasons for which the entity's policies refuse changes after all, and without known duplicates.

    Looks ids up in base and changeset, as pinned; for policies that refuse nothing, nothing is looked up. Where old
    records are gone over again an INSERT of a known id is taken for the one that has landed.
    raw: the same records with key and value, which decoding keeps of those only that it refused.
    """
    ops, ids = pc.fill_null(decoded.column("op"), ""), decoded.column(entity.key)
    inserts, updates = pc.equal(ops, "INSERT"), pc.equal(ops, "UPDATE")
    nothing = pa.chunked_array([pa.repeat(False, decoded.num_rows)])
    new_only = inserts if entity.inserts_are_new else nothing
    known_only = updates if entity.unknown_update == "quarantine" else nothing
    wanted = ids.filter(pc.or_(new_only, known_only)).unique().to_pylist()
    if not wanted:
        return decoded, 0
    is_known = pc.is_in(ids, _known(wanted, lake, entity, manifest))
    inserted_here = pc.is_in(ids, ids.filter(inserts).unique())
    unknown = pc.and_(known_only, pc.invert(pc.or_(is_known, inserted_here)))
    again = pc.and_(new_only, is_known)
    duplicates = 0
    if manifest.goes_over_again:
        duplicates, again = int(pc.sum(again).as_py() or 0), nothing
        fresh = pc.invert(pc.and_(new_only, is_known))
        decoded, unknown, again = decoded.filter(fresh), unknown.filter(fresh), again.filter(fresh)
    for code, refused in (("unknown_profile", unknown), ("insert_not_new", again)):
        if pc.any(refused).as_py():
            decoded = _with_reason(decoded, refused, code, raw())
    return decoded, duplicates


def _with_reason(decoded: pa.Table, refused: pa.ChunkedArray, code: str, raw: pa.Table) -> pa.Table:
    """Some rows as decoding would have refused them: with the whole record."""
    place = {(row["partition"], row["offset"]): n for n, row in enumerate(raw.select(_COORDINATES[1:]).to_pylist())}
    order = [place[row["partition"], row["offset"]] for row in decoded.select(_COORDINATES[1:]).to_pylist()]
    whole = raw.take(pa.array(order))
    said = {"key": whole.column("key"), "value": whole.column("value"), "reason_code": code, "reason": REASONS[code]}
    for name, value in said.items():
        column = pc.if_else(refused, value, decoded.column(name))
        decoded = decoded.set_column(
            decoded.column_names.index(name), name, column.cast(decoded.schema.field(name).type)
        )
    return decoded


def _known(ids: Sequence[str], lake: Lake, entity: Entity, manifest: Manifest) -> pa.Array:
    """Those of the ids of which anything has landed: in the base, or in the changeset."""
    found: set[str] = set()
    for table in (entity.changeset, entity.base) if ids else ():
        version = manifest.table_versions[f"{_KNOWN}{table.name}"]
        rows = lake.find(table, version, (entity.key,), {entity.key: ids})
        found.update(rows.column(entity.key).to_pylist())
    return pa.array(sorted(found), pa.string())


def _not_there_yet(work: ChangeBatch) -> pa.Table:
    """Rejected records that quarantine does not hold already, where they may have been seen before."""
    rows = work.rejected
    if not rows.num_rows or not work.manifest.goes_over_again:
        return rows
    topics = rows.column("topic").unique().to_pylist()
    version = work.manifest.table_versions[QUARANTINE.name]
    held = work.lake.find(QUARANTINE, version, (*_COORDINATES, "value"), {"topic": topics})
    there = {tuple(row.values()) for row in held.to_pylist()}
    places = rows.select([*_COORDINATES, "value"]).to_pylist()
    return rows.filter(pa.array([tuple(row.values()) not in there for row in places]))


def _count(rows: pa.Table, op: str) -> int:
    return int(pc.sum(pc.equal(rows.column("op"), op)).as_py() or 0)
