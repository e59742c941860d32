"""The job that appends changes from their topic to the changeset, one partition a batch; refused ones to quarantine.

Nothing is folded or merged here: that a write touches no row of the base is what merge on read is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import MicroBatchJob, Stores, Told
from engagement_platform.engine.model import Counts, Limits, Manifest, Source
from engagement_platform.engine.unfinished_batches import looked_up
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.engagement import QUARANTINE
from engagement_platform.lake.fencing import LakeFencing, targets
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.turns import turn
from engagement_platform.landing.batch import COORDINATES, DecodedBatch, with_reason
from engagement_platform.landing.decoded import decoded_table, few_records
from engagement_platform.landing.redriven import RedrivenProcess, RedriveSource, turn_of
from engagement_platform.landing.rejected import RejectedProcess
from engagement_platform.landing.withheld import of_entity, withheld
from engagement_platform.pii.tombstones import StoredTombstones
from engagement_platform.pinned_settings import as_pinned, that_decide
from engagement_platform.pipelines.profiles.entity import Entity, policies_of, under_policies
from engagement_platform.pipelines.profiles.insert_guarantee import PROPERTY, to_note
from engagement_platform.pipelines.profiles.snapshot import snapshot
from engagement_platform.settings import Settings
from engagement_platform.sources.changed_batches import changes_ddl, decode_changes
from engagement_platform.sources.messages import DecodingLimits

Reader = Callable[[Manifest], DataFrame]
"""Raw records of a pinned range: topic, partition, offset, key, value, timestamp."""

# What a manifest pins beside versions of tables that others write. Not under the tables' names: a batch that is
# unfinished would keep rematerialization from beginning, which has nothing to fear from it.
NUMBER = "number in the changeset"

REASONS = {
    "unknown_profile": "An UPDATE of an id that nobody has inserted, and merge_on_read.unknown_update is quarantine.",
    "insert_not_new": "An INSERT of an id that is known, and merge_on_read.inserts_are_new promises there is none.",
}


def job_name(entity: Entity) -> str:
    """Name of the job for an entity, such as `ingest-profile-changes`."""
    return f"ingest-{entity.name}-changes"


def reread_name(entity: Entity) -> str:
    """Name of the job that reads changes once more, such as `reread-profile-changes`."""
    return f"reread-{entity.name}-changes"


@dataclass(frozen=True)
class ChangeBatch(DecodedBatch):
    """Decoded changes of one batch."""

    entity: Entity

    @property
    def number(self) -> int:
        """Number of the batch in the changeset."""
        return self.manifest.table_versions[NUMBER]


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
        self._note(work)
        with commit("append") as txn:
            work.lake.append(rows, table, txn, rows=rows.num_rows)
        ops = {f"{op.lower()}s": _count(rows, op) for op in ("INSERT", "UPDATE", "DELETE")}
        return {"landed": rows.num_rows, **ops, **work.lake.written(table, txn)}

    @staticmethod
    def _note(work: ChangeBatch) -> None:
        """Under which policy the batch lands: a commit where that is another one than of the batch before."""
        said = to_note(work.lake.root, work.entity, work.number)
        if said is not None:
            with turn(work.lake.root, work.entity.changeset.name):
                work.lake.set_property(work.entity.changeset, PROPERTY, said)


def ingest_changes(
    entity: Entity,
    source: Source,
    read: Reader,
    lake: Lake,
    stores: Stores,
    settings: Settings,
    told: Told,
    name: str | None = None,
) -> MicroBatchJob[ChangeBatch]:
    """Changes of an entity into its changeset, exactly once, and the rejected ones into quarantine.

    name: of a redrive or a reread, which go on under checkpoints of their own. One batch of all these jobs at a time:
    who lands a batch under a number that was moved into the base meanwhile would land it where no reader looks.
    """
    lake.ensure(entity.changeset, entity.base, QUARANTINE)
    unpinned, declared, tombstones = lake, entity, StoredTombstones(settings)
    redriven = [RedrivenProcess(source)] if isinstance(source, RedriveSource) else []

    def prepare(manifest: Manifest) -> ChangeBatch:
        own, entity = as_pinned(settings, manifest), under_policies(declared, manifest.settings.get("policies"))
        lake = unpinned.under(own)
        step = decode_changes(entity.shape, DecodingLimits.of(own.decoding), manifest.ingestion_ts)
        raw = read(manifest)
        few = few_records(source.size(manifest.start, manifest.end), lake)
        rows = decoded_table(raw, step, changes_ddl(entity.shape), few)
        table = withheld(rows, of_entity(entity.name, entity.key), tombstones)
        records = raw.select(*COORDINATES, "key", "value").toArrow
        # What is redriven has not landed, so an INSERT of a known id is none of what is there.
        seen_before = manifest.goes_over_again and not redriven
        settled = _refused(table, records, lake, entity, manifest, seen_before=seen_before)
        return ChangeBatch(lake, manifest, *settled, entity)

    return MicroBatchJob(
        name=name or job_name(entity),
        source=source,
        prepare=prepare,
        processes=(RejectedProcess(QUARANTINE), ChangesetProcess(), *redriven),
        stores=stores,
        limits=Limits(settings.batch.max_records, settings.batch.max_bytes),
        pin=lambda: _pinned(lake, entity, stores),
        decides=lambda: {**that_decide(settings, "decoding"), "policies": policies_of(entity)},
        leased=(turn_of(entity.changeset),),
        enters=(QUARANTINE.name,),
        lease_wait=settings.stores.lease_wait,
        describe=lambda work: {
            "rejected": work.by_reason,
            "changeset_batch": work.number,
            "pending_rows": snapshot(lake.root, entity).pending_rows,
            "produced_quantiles_ms": work.produced_quantiles_ms,
        },
        fencing=LakeFencing(
            lake,
            targets(
                {"quarantine/append": QUARANTINE, "changeset/append": entity.changeset, "redriven/append": QUARANTINE}
            ),
        ),
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
    number = max(found.latest + 1, last.manifest.batch_id + 1 if last else 0)
    return {
        QUARANTINE.name: lake.version(QUARANTINE),
        looked_up(entity.changeset.name): found.changeset_version,
        looked_up(entity.base.name): found.base_version,
        NUMBER: number,
        turn_of(entity.changeset): number,
    }


def _refused(
    decoded: pa.Table,
    raw: Callable[[], pa.Table],
    lake: Lake,
    entity: Entity,
    manifest: Manifest,
    *,
    seen_before: bool,
) -> tuple[pa.Table, int]:
    """With the reasons for which the entity's policies refuse changes after all, and without known duplicates.

    Looks ids up in base and changeset, as pinned; for policies that refuse nothing, nothing is looked up.
    seen_before: the records may have landed, so an INSERT of a known id is taken for the one that has.
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
    landed, made = _known(wanted, lake, entity, manifest)
    is_known = pc.is_in(ids, landed)
    inserted_here = pc.is_in(ids, ids.filter(inserts).unique())
    unknown = pc.and_(known_only, pc.invert(pc.or_(pc.is_in(ids, made), inserted_here)))
    again = pc.and_(new_only, is_known)
    duplicates = 0
    if seen_before:
        duplicates, again = int(pc.sum(again).as_py() or 0), nothing
        fresh = pc.invert(pc.and_(new_only, is_known))
        decoded, unknown, again = decoded.filter(fresh), unknown.filter(fresh), again.filter(fresh)
    for code, refused in (("unknown_profile", unknown), ("insert_not_new", again)):
        if pc.any(refused).as_py():
            decoded = with_reason(decoded, refused, code, REASONS[code], raw())
    return decoded, duplicates


def _known(ids: Sequence[str], lake: Lake, entity: Entity, manifest: Manifest) -> tuple[pa.Array, pa.Array]:
    """Those of the ids of which anything has landed, in the base or in the changeset; and those of which there is more
    than a DELETE in the changeset: an UPDATE would make a row of the others."""
    found = []
    for table, also in ((entity.changeset, ("op",)), (entity.base, ())):
        version = manifest.table_versions[looked_up(table.name)]
        found.append(lake.find(table, version, (entity.key, *also), {entity.key: ids}))
    waiting, base = found
    more = waiting.filter(pc.not_equal(waiting.column("op"), "DELETE"))
    landed, made = (
        sorted({*base.column(entity.key).to_pylist(), *rows.column(entity.key).to_pylist()}) for rows in (waiting, more)
    )
    return pa.array(landed, pa.string()), pa.array(made, pa.string())


def _count(rows: pa.Table, op: str) -> int:
    return int(pc.sum(pc.equal(rows.column("op"), op)).as_py() or 0)
