"""The job that moves pending changes into the base: one commit of base and watermark, then the batches leave.

What readers see does not change. When it runs is `schedule`, how rows come together is `view`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark.sql import DataFrame

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import MicroBatchJob, Step
from engagement_platform.engine.model import Counts, Limits, Manifest, NoIdentity, Offsets, Transaction
from engagement_platform.errors import PlatformError
from engagement_platform.lake import live_files
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.overwrite import (
    delete_through,
    delete_where,
    in_partitions,
    merge_newer,
    replace_all,
    replace_partitions,
)
from engagement_platform.pipelines.parts import Parts, tune_for
from engagement_platform.pipelines.pinned_settings import as_pinned, that_decide
from engagement_platform.pipelines.profiles.entity import Entity, declaration_of, under_declaration, version_of
from engagement_platform.pipelines.profiles.snapshot import Snapshot, snapshot, transaction
from engagement_platform.pipelines.profiles.view import folded_changes, view
from engagement_platform.pipelines.rematerialization import Choice, Strategy, choose


@dataclass(frozen=True)
class Rematerialization:
    """One batch: the state that it reads, and how the base is written."""

    lake: Lake
    """Under the settings of the manifest."""
    entity: Entity
    manifest: Manifest
    choice: Choice
    taken: Snapshot
    """Pinned, and without batches that landed after the watermark was taken."""

    @property
    def latest(self) -> int:
        """The batch up to which the base has everything afterwards."""
        return self.manifest.end["batch"]

    @property
    def rows(self) -> int:
        """At most so many rows the base has afterwards."""
        return live_files.rows_in(self.lake.uri(self.entity.base), self.taken.base_version) + self.taken.pending_rows


@dataclass(frozen=True)
class PendingSource(NoIdentity):
    """A batch whenever changes wait. Offsets {"batch": n}: up to which batch the base has, or will have, everything."""

    root: str
    entity: Entity

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> tuple[Offsets, Offsets] | None:  # noqa: ARG002
        """From the base's watermark to the newest batch, whatever the checkpoint says: the base knows."""
        found = snapshot(self.root, self.entity)
        if not found.pending and not found.orphans:
            return None
        return {"batch": found.watermark}, {"batch": found.latest}


def move_base(work: Rematerialization, commit: Committer) -> Counts:
    """Write the base with all changes up to the watermark, which the same commit carries.

    Counts: changes, batches, files, bytes, files_rewritten, bytes_rewritten; of a MERGE find_ms, rewrite_ms.
    """
    counts = {"changes": work.taken.pending_rows, "batches": len(work.taken.pending)}
    if not work.taken.pending:
        return counts
    base, latest = work.entity.base, transaction(work.entity, work.latest)
    with commit("write") as batch:
        METHODS[work.choice.strategy](work, replace(latest, guard=batch.guard))
    counts |= {**work.lake.written(base, latest), **work.lake.rewritten(base, latest)}
    if work.choice.strategy == "merge" and (found := work.lake.commit_of(base, latest)) is not None:
        counts |= {"find_ms": found.find_ms, "rewrite_ms": found.rewrite_ms}
    return counts


def clear_changeset(work: Rematerialization, commit: Committer) -> Counts:
    """Take the merged batches out of the changeset: whole partitions, so no data file is read or written. Readers have
    not looked at them since the base has them."""
    with commit("delete") as txn:
        delete_through(work.lake, work.entity.changeset, "batch_id", work.latest, txn)
    return {"batches_removed": len([number for number in work.taken.batches if number <= work.latest])}


def remove_tombstones(work: Rematerialization, commit: Committer) -> Counts:
    """Forget what was deleted long ago, where a retention is set."""
    retention = work.lake.settings.rematerialize.tombstone_retention
    if retention is None:
        return {}
    version = work.entity.version
    old = f"NOT present AND present_version = `{version}` AND present_ts < :before"
    with commit("delete") as txn:
        delete_where(work.lake, work.entity.base, old, txn, work.manifest.ingestion_ts - retention)
    found = work.lake.commit_of(work.entity.base, txn)
    return {"tombstones_removed": found.rows_deleted if found else 0}


def overwrite(work: Rematerialization, txn: Transaction) -> None:
    """The whole state over the base: each file is written once, none is looked for."""
    replace_all(work.lake, _state(work), work.entity.base, txn, rows=work.rows)


def merge(work: Rematerialization, txn: Transaction) -> None:
    """Folded changes merged by key: only files with changed keys are rewritten, which are few where keys cluster."""
    entity = work.entity
    merge_newer(
        work.lake,
        folded_changes(work.lake, work.entity, work.taken).drop("inserted"),
        entity.base,
        txn,
        on=entity.key,
        greatest=entity.version,
        words={"present_version": ("present", "present_ts")} | {version_of(name): (name,) for name in entity.columns},
    )


def replace_where(work: Rematerialization, txn: Transaction) -> None:
    """The partitions in which something changes, or from which something moves away, written anew."""
    entity, lake = work.entity, work.lake
    columns = list(entity.partitioned_by)
    state = _state(work)
    changed = folded_changes(work.lake, work.entity, work.taken).select(entity.key)
    before = lake.read(entity.base, work.taken.base_version).join(changed, entity.key, "left_semi")
    after = state.join(changed, entity.key, "left_semi")
    touched = before.select(columns).union(after.select(columns)).distinct().collect()
    partitions = [tuple(row[c] for c in columns) for row in touched]
    replace_partitions(lake, state.where(in_partitions(entity.base, partitions)), entity.base, txn, partitions)


METHODS: Mapping[Strategy, Callable[[Rematerialization, Transaction], None]] = {
    "merge": merge,
    "overwrite": overwrite,
    "replace_where": replace_where,
}


def rematerialize(
    entity: Entity, parts: Parts, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> MicroBatchJob[Rematerialization]:
    """All changes that wait into the base, in one batch."""
    lake, settings = parts.lake, parts.settings
    lake.ensure(entity.base, entity.changeset)
    if any(a.type == "string" for a in entity.attributes if a.name in entity.partitioned_by):
        # Values are the producers', and few of them make good folder names on every file system.
        lake.set_property(entity.base, "delta.randomizeFilePrefixes", "true")
    declared = entity
    if settings.rematerialize.method == "replace_where" and not entity.partitioned_by:
        raise PlatformError(
            f"{entity.base.name} is not partitioned, so there are no partitions to replace. Nothing was changed. Set "
            "ENGAGEMENT_PLATFORM_REMATERIALIZE__METHOD to overwrite or merge, or declare the entity partitioned."
        )

    def prepare(manifest: Manifest) -> Rematerialization:
        own, entity = as_pinned(settings, manifest), under_declaration(declared, manifest.settings)
        changeset, base = (manifest.table_versions[table.name] for table in (entity.changeset, entity.base))
        pinned = snapshot(lake.root, entity, changeset_version=changeset, base_version=base)
        # A batch may have landed between the watermark and the versions that were pinned.
        taken = replace(pinned, through=manifest.end["batch"])
        rows = live_files.rows_in(lake.uri(entity.base), base)
        choice = choose(own.rematerialize.method, "rematerialize.method", taken.pending_rows, rows)
        tune_for(lake, rows + taken.pending_rows)
        return Rematerialization(lake.under(own), entity, manifest, choice, taken)

    def pin() -> dict[str, int]:
        # A process of before a column was added may live for long.
        lake.refuse_undeclared(entity.changeset, entity.base)
        # The changeset first, for the reason that `snapshot` gives.
        return {table.name: lake.version(table) for table in (entity.changeset, entity.base)}

    return parts.job(
        entity.rematerialize_job,
        PendingSource(lake.root, entity),
        prepare,
        (
            Step("base", move_base, ("write",)),
            Step("changeset", clear_changeset, ("delete",)),
            Step("tombstones", remove_tombstones, ("delete",)),
        ),
        pin=pin,
        decides=lambda: {
            **that_decide(settings, rematerialize=("method", "tombstone_retention")),
            **declaration_of(entity),
        },
        # Of the changeset too: OPTIMIZE of a batch that is about to leave would be one of the two that fail.
        leased=(entity.base.name, entity.changeset.name),
        describe=lambda work: {
            "method": work.choice.strategy,
            "why": work.choice.why,
            "watermark": work.latest,
            "pending_rows": work.taken.pending_rows,
        },
        clock=clock,
        # The watermark goes up with the base; it cannot be written ahead of it.
        writes={"base/write": None, "changeset/delete": entity.changeset, "tombstones/delete": entity.base},
    )


def _state(work: Rematerialization) -> DataFrame:
    """All rows with their changes. Not by `left_join_union_inserts`, which drops what readers do not see anyway, such
    as the tombstone of an unknown key: the base has to remember it."""
    return view(work.lake, replace(work.entity, inserts_are_new=False), strategy="auto", at=work.taken).state
