"""The job that appends changes from their topic to the changeset, one partition a batch; refused ones to quarantine.

Decode, decide by the entity's policies against pinned base and changeset, append. Nothing is folded or merged: that a
write touches no row of the base is what merge on read is for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.forgotten_batches import last_of_each
from engagement_platform.engine.job import MicroBatchJob, Step, Stores
from engagement_platform.engine.model import Counts, Manifest, Offsets, Source
from engagement_platform.engine.unfinished_batches import looked_up
from engagement_platform.lake.engagement import QUARANTINE
from engagement_platform.lake.lake import Lake
from engagement_platform.pii.tombstones import StoredTombstones, Tombstones
from engagement_platform.pipelines.parts import (
    Appends,
    Parts,
    Reader,
    TopicBatch,
    compiled,
    counted,
    kept,
)
from engagement_platform.pipelines.pinned_settings import that_decide
from engagement_platform.pipelines.profiles.entity import Entity, declaration_of, under_declaration
from engagement_platform.pipelines.profiles.snapshot import INSERTS_ARE_NEW, snapshot, to_note
from engagement_platform.pipelines.redrive import RedriveSource, redriven, turn_of
from engagement_platform.pipelines.tombstones import of_entity, withheld
from engagement_platform.sources.decoded_batches import changes_ddl, decode_changes
from engagement_platform.sources.messages import DecodingLimits

# What a manifest pins beside versions of tables that others write. Not under the tables' names: a batch that is
# unfinished would keep rematerialization from beginning, which has nothing to fear from it.
NUMBER = "number in the changeset"

DUPLICATE = "duplicate"
"""Instead of a reason code: the change has landed."""
REASONS = {
    "unknown_profile": "An UPDATE of an id that nobody has inserted, and merge_on_read.unknown_update is quarantine.",
    "insert_not_new": "An INSERT of an id that is known, and merge_on_read.inserts_are_new promises there is none.",
}
_OPS = ("INSERT", "UPDATE", "DELETE")


@dataclass(frozen=True)
class ChangeBatch(TopicBatch):
    """A batch with its finished plan: the decoded records; reason_code is null for those that land, DUPLICATE for those
    that have."""

    entity: Entity
    ops: Mapping[str, int]
    """Operation -> changes that land."""
    duplicates: int

    @property
    def number(self) -> int:
        """Number of the batch in the changeset."""
        return self.manifest.table_versions[NUMBER]


def write_quarantine(work: ChangeBatch, commit: Committer) -> Counts:
    """Write rejected records, whole; those that quarantine may hold from an earlier reading are left out."""
    appends = Appends(work.lake, work.manifest, commit)
    if work.quarantined:
        appends.add("append", QUARANTINE, work.to_quarantine(), work.quarantined)
    counts = {"duplicates": work.duplicates, "quarantined": work.quarantined}
    return {**work.received.counts(), **counts, **appends.counts()}


def append_changes(work: ChangeBatch, commit: Committer) -> Counts:
    """Write accepted changes as one partition. With this commit, the last of the batch, the view shows them."""
    landed = sum(work.ops.values())
    if not landed:
        return {"landed": 0}
    if (checked := to_note(work.lake.root, work.entity, work.number)) is not None:
        # Another policy than that of the batch before: a commit of its own.
        work.lake.set_property(work.entity.changeset, INSERTS_ARE_NEW, checked)
    appends = Appends(work.lake, replace(work.manifest, batch_id=work.number), commit)
    appends.add("append", work.entity.changeset, work.plan.where("reason_code IS NULL"), landed)
    return {"landed": landed, **{f"{op.lower()}s": count for op, count in work.ops.items()}, **appends.counts()}


def ingest_changes(
    entity: Entity, source: Source, read: Reader, parts: Parts, name: str | None = None
) -> MicroBatchJob[ChangeBatch]:
    """Changes of an entity into its changeset, exactly once, and the rejected ones into quarantine.

    name: of a redrive or a reread, which go on under checkpoints of their own. One batch of all these jobs at a time:
    who lands a batch under a number that was moved into the base meanwhile would land it where no reader looks.
    """
    lake, settings, declared, tombstones = parts.lake, parts.settings, entity, StoredTombstones(parts.settings)
    lake.ensure(entity.changeset, entity.base, QUARANTINE)

    def prepare(manifest: Manifest) -> ChangeBatch:
        own, entity = parts.lake_for(manifest, source), under_declaration(declared, manifest.settings)
        # What is redriven has not landed, so an INSERT of a known id is none of what is there.
        is_replay = manifest.is_replay and not isinstance(source, RedriveSource)
        seen = read_before(last_of_each(parts.stores.leases.engine, entity.ingest_job), manifest) if is_replay else {}
        return open_batch(own, entity, manifest, read(manifest), tombstones, seen)

    return parts.job(
        name or entity.ingest_job,
        source,
        prepare,
        (
            Step("quarantine", write_quarantine, ("append",)),
            Step("changeset", append_changes, ("append",)),
            *redriven(source),
        ),
        pin=lambda: _pinned(lake, entity, parts.stores),
        decides=lambda: {**that_decide(settings, "decoding"), **declaration_of(entity)},
        leased=(turn_of(entity.changeset),),
        enters=(QUARANTINE.name,),
        describe=lambda work: {
            **work.describe(),
            "changeset_batch": work.number,
            "pending_rows": snapshot(lake.root, entity).pending_rows,
        },
        writes={"quarantine/append": QUARANTINE, "changeset/append": entity.changeset, "redriven/append": QUARANTINE},
    )


def read_before(last: Iterable[Manifest], manifest: Manifest) -> Offsets:
    """Below which offset of each partition records may have landed already: what others than the application id of a
    batch have read of the same topic. last: the last batch under each id."""
    ends: dict[str, int] = {}
    for other in last:
        if other.app_id != manifest.app_id and other.identity.get("topic_id") == manifest.identity.get("topic_id"):
            ends |= {partition: max(end, ends.get(partition, 0)) for partition, end in other.end.items()}
    return ends


def is_below(ends: Offsets) -> str:
    """Whether a record is below the offset of its partition, in SQL."""
    return " OR ".join(f"`partition` = {int(of)} AND `offset` < {end}" for of, end in ends.items()) or "FALSE"


def open_batch(
    lake: Lake, entity: Entity, manifest: Manifest, raw: DataFrame, tombstones: Tombstones, seen: Offsets
) -> ChangeBatch:
    """Decode the pinned range and decide what lands. tombstones: whose records become markers. seen: `read_before`.

    Cost: a Spark job with results; the keys of base and changeset are read only for a policy that refuses changes.
    """
    step = decode_changes(entity.shape, DecodingLimits.of(lake.settings.decoding), manifest.ingestion_ts)
    decoded = kept(raw.mapInArrow(step, changes_ddl(entity.shape)))
    decoded = withheld(decoded, of_entity(entity.name, entity.key), tombstones, lake)
    plan = decoded
    if entity.inserts_are_new or entity.unknown_update == "quarantine":
        with compiled(lake.spark):
            landed = landed_ids(lake, entity, manifest)
            plan = kept(by_policies(decoded, entity, landed, seen))
    found, accepted = counted(plan, *(F.count_if(F.col("op") == op).alias(op) for op in _OPS))
    ops = {op: accepted[op] if accepted else 0 for op in _OPS}
    of = replace(found, rejected={code: n for code, n in found.rejected.items() if code not in (DUPLICATE, *REASONS)})
    refused = {code: n for code, n in found.rejected.items() if code in REASONS}
    refused_rows, duplicates = plan.where(F.col("reason_code").isin(*REASONS)), found.rejected.get(DUPLICATE, 0)
    return ChangeBatch(lake, manifest, raw, decoded, of, plan, refused, refused_rows, entity, ops, duplicates)


def landed_ids(lake: Lake, entity: Entity, manifest: Manifest) -> list[DataFrame]:
    """Ids of which anything has landed at the pinned versions, with __is_made: an UPDATE would not make the row.

    Of an id with only DELETEs in the changeset it would. An id may occur many times.
    """
    found = []
    # Here and below no attribute can have the name of a column that is added: PLAIN_NAME begins with a letter.
    for table, is_made in ((entity.changeset, F.col("op") != "DELETE"), (entity.base, F.lit(True))):
        if version := manifest.table_versions[looked_up(table.name)]:
            found.append(lake.read(table, version).select(entity.key, is_made.alias("__is_made")))
    return found


def by_policies(decoded: DataFrame, entity: Entity, landed: list[DataFrame], seen: Offsets) -> DataFrame:
    """Decoded records, with the reasons for which the entity's policies refuse changes after all.

    landed: as of `landed_ids`. seen: below these offsets records may have landed, so an INSERT of a known id is taken
    for the one that has (DUPLICATE). An UPDATE of an id that the same batch inserts, before or after it, is not
    refused, unless that INSERT is.
    Cost: one scan of the keys of base and changeset, joined with the broadcast ids of the batch.
    """
    accepted, key = decoded.where("reason_code IS NULL"), entity.key
    ids = F.broadcast(accepted.select(key))
    flags = {name: F.lit(False) for name in ("__is_made", "__is_known", "__is_inserted")}
    inserted = accepted.where("op = 'INSERT'").select(key).withColumns(flags | {"__is_inserted": F.lit(True)})
    there = (
        of.join(ids, key, "left_semi").withColumns({"__is_known": F.lit(True), "__is_inserted": F.lit(False)})
        for of in landed
    )
    found = reduce(lambda ids, more: ids.unionByName(more), there, inserted).groupBy(key)
    state = found.agg(*(F.bool_or(name).alias(name) for name in flags))

    def holds(column: str) -> Column:
        return F.coalesce(F.col(column), F.lit(False))

    reason, is_made = F.col("reason_code"), holds("__is_made") | holds("__is_inserted")
    if entity.inserts_are_new:
        is_made = holds("__is_made") | (holds("__is_inserted") & ~holds("__is_known"))
        not_new = F.when(F.expr(is_below(seen)), DUPLICATE).otherwise("insert_not_new")
        reason = F.coalesce(reason, F.when((F.col("op") == "INSERT") & holds("__is_known"), not_new))
    if entity.unknown_update == "quarantine":
        unknown = F.lit("unknown_profile")
        reason = F.coalesce(reason, F.when((F.col("op") == "UPDATE") & ~is_made, unknown))
    sentence = F.coalesce("reason", *(F.when(reason == code, text) for code, text in REASONS.items()))
    joined = decoded.join(F.broadcast(state), key, "left")
    return joined.withColumns({"reason": sentence, "reason_code": reason}).select(*decoded.columns)


def _pinned(lake: Lake, entity: Entity, stores: Stores) -> Mapping[str, int]:
    """Versions to look things up in, and the number of the next batch.

    The number is greater than any in the changeset or below the base's watermark, also when a reset, or new stores,
    count the batches of the job from 0 again; else the view would take a new batch for a merged one.
    """
    lake.refuse_undeclared(entity.changeset)
    last = stores.checkpoints.latest(entity.ingest_job)
    found = snapshot(lake.root, entity)
    number = max(found.latest + 1, last.manifest.batch_id + 1 if last else 0)
    return {
        QUARANTINE.name: lake.version(QUARANTINE),
        looked_up(entity.changeset.name): found.changeset_version,
        looked_up(entity.base.name): found.base_version,
        NUMBER: number,
        turn_of(entity.changeset): number,
    }
