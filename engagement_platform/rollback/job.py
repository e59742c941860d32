"""The job that restores: a batch like any other, so that a crash in the middle is finished and never done twice.

What it is going to do is `plan`. Its manifest says which versions go back to which; the rest is kept with the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import BatchReport, Callbacks, MicroBatchJob, Stores
from engagement_platform.engine.lease import Fence
from engagement_platform.engine.model import BatchRecord, Counts, JobState, Limits, Manifest, NoIdentity, Offsets
from engagement_platform.engine.step import Step
from engagement_platform.errors import PlatformError
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.audit_columns import stamped
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.lake.fencing import LakeFencing, targets
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.restore import RESTORE, Checksum, checksums, restore
from engagement_platform.layout.vacuum import vacuum_of
from engagement_platform.rollback.groups import Group, RestoreRefused, come_and_gone, engagements, group_of
from engagement_platform.rollback.plan import RESTORE_TABLES, Asked, Plan, pinned, plan


class ChecksumDiffers(PlatformError):
    """A restored table does not hold what the version held that it was restored to."""

    def __init__(self, table: str, version: int, wanted: Checksum, found: Checksum) -> None:
        self.table, self.version, self.wanted, self.found = table, version, wanted, found
        super().__init__(
            f"{table} was restored to version {version} and holds something else: {found.rows:,} rows with the sum "
            f"{found.total} instead of {wanted.rows:,} with {wanted.total}. The restore stays unfinished and other "
            "jobs wait. Did something outside the platform write? `engagement-platform restore --finish` tries again."
        )


@dataclass
class PlannedSource(NoIdentity):
    """One batch: from the versions that the tables have to those they go back to."""

    settled: Callable[[], Plan]
    planned: Plan | None = None

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> tuple[Offsets, Offsets] | None:  # noqa: ARG002
        """Table -> version, before and after. None once there is nothing (more) to restore."""
        if self.planned is not None:
            return None
        self.planned = self.settled()
        changes = self.planned.changes
        if not changes and not self.planned.offsets:
            return None
        return (
            {change.table.name: change.from_version for change in changes},
            {change.table.name: change.to_version for change in changes},
        )

    def check(self, start: Offsets, end: Offsets) -> None:
        """Looked at table by table, before each goes back."""

    def size(self, start: Offsets, end: Offsets) -> None:
        """No records are read."""

    def about(self) -> Mapping[str, object]:
        """All of the plan that its batch needs beside versions: `RestoreBatch.what`."""
        if (planned := self.planned) is None:
            return {}
        asked, backs = planned.asked, dict[str, object]()
        for moved in planned.offsets:
            if moved.follows:
                backs[moved.job] = {"start": dict(moved.boundary), "end": dict(moved.boundary)}
            elif asked.mode == "replay":
                backs[moved.job] = {"start": dict(planned.since[moved.job]), "end": dict(moved.boundary)}
            elif moved.job == planned.group.verified:
                # Nothing is read again, but from here on tables no longer stand for what was read before.
                backs[moved.job] = {"start": dict(moved.now), "end": dict(moved.now)}
        return {
            **asked.as_json(),
            "by": asked.by,
            "boundary": planned.boundary,
            "undone": list(planned.undone),
            "rewinds": backs,
            "announced": planned.announced,
        }


@dataclass
class RestoreBatch:
    """One restore, as its manifest and what is kept with it say."""

    lake: Lake
    manifest: Manifest
    what: Mapping[str, Any]

    @cached_property
    def group(self) -> Group:
        """The tables that go back together."""
        return group_of(self.lake.settings, self.what["table"])

    @property
    def tables(self) -> list[Table]:
        """Those that go back, in the order of the group."""
        return [table for table in self.group.tables if table.name in self.manifest.end]

    @cached_property
    def checksums(self) -> Mapping[str, Checksum]:
        """Of the restored tables as they are now. Raises ChecksumDiffers."""
        return self.compared(self.manifest.end)

    def compared(self, versions: Mapping[str, int]) -> Mapping[str, Checksum]:
        """Of the tables as they are now, equal to those of these versions of them. Raises ChecksumDiffers."""
        wanted = [(table, versions[table.name]) for table in self.tables]
        found = checksums(self.lake, [*wanted, *((table, self.lake.version(table)) for table in self.tables)])
        for (table, version), then, now in zip(wanted, found, found[len(wanted) :], strict=False):
            if then != now:
                raise ChecksumDiffers(table.name, version, then, now)
        return {table.name: checksum for table, checksum in zip(self.tables, found, strict=False)}

    @cached_property
    def seen(self) -> DataFrame:
        """What readers see differently. Of groups that tell it row by row."""
        before = self.manifest.table_versions
        assert self.group.differences is not None, "rows only come and go"
        found = self.group.differences(self.lake, before, {**before, **self.manifest.end}, self.what["announced"])
        return found.localCheckpoint()

    @cached_property
    def kinds(self) -> Mapping[str, int]:
        """inserted, updated, deleted -> how many."""
        if self.group.differences is not None:
            return counted(self.seen)
        before = self.manifest.table_versions
        return come_and_gone(self.lake, self.group, before, {**before, **self.manifest.end})


def counted(seen: DataFrame) -> dict[str, int]:
    """inserted, updated, deleted of what `differences` found."""
    found = Counter({row["change_type"]: int(row["count"]) for row in seen.groupBy("change_type").count().collect()})
    return {name: found[kind] for kind, name in _KINDS.items()}


def differing_rows(lake: Lake, planned: Plan) -> dict[str, int]:
    """inserted, updated, deleted: what readers would see differently. Reads it; changes nothing."""
    group = planned.group
    if group.differences is None:
        return come_and_gone(lake, group, planned.versions, planned.target)
    return counted(group.differences(lake, planned.versions, planned.target, planned.announced))


_KINDS = {"INSERT": "inserted", "UPDATE": "updated", "DELETE": "deleted"}


def _restore(work: RestoreBatch, commit: Committer) -> Counts:
    """Every table back to its version, and compared with it. Counts: tables, rows (of all restored tables)."""
    for table in work.tables:
        version = work.manifest.end[table.name]
        with commit(table.key[-1]) as txn:
            restore(work.lake, table, version, txn, work.group.mark(work.lake.root, table, version))
    return {"tables": len(work.tables), "rows": sum(checksum.rows for checksum in work.checksums.values())}


def _announce(work: RestoreBatch, commit: Committer) -> Counts:
    """One notification for each engagement that readers see differently now; of other tables they are only counted.

    Counts: inserted, updated, deleted, notifications, files, bytes.
    """
    kinds = work.kinds
    count = sum(kinds.values())
    if not count or not work.group.announced:
        return {**kinds, "notifications": 0}
    begin = F.lit(f"{work.manifest.app_id}/{work.manifest.batch_id}")
    # The length says where the organization ends: ids may hold any character.
    length = F.char_length("organization_id").cast("string")
    identity = F.concat_ws("/", begin, length, "organization_id", "engagement_id")
    rows = stamped(work.seen, work.manifest).withColumn("notification_id", identity)
    with commit("append") as txn:
        work.lake.append(rows, NOTIFICATION, txn, rows=count)
    return {**kinds, "notifications": count, **work.lake.written(NOTIFICATION, txn)}


def _audit(work: RestoreBatch, commit: Committer) -> Counts:
    """Who did it, why, and what came of it, a row for each table. No counts."""
    manifest, what = work.manifest, work.what
    rows = [
        {
            "batch_id": manifest.batch_id,
            "table_name": table.name,
            "from_version": manifest.table_versions[table.name],
            "to_version": manifest.end[table.name],
            "restored_by": what["by"],
            **{name: what[name] for name in ("reason", "mode", "boundary")},
            "table_rows": work.checksums[table.name].rows,
            "checksum": work.checksums[table.name].total,
            **work.kinds,
            "ingestion_ts": manifest.ingestion_ts,
        }
        for table in work.tables
    ]
    if rows:
        with commit("append") as txn:
            work.lake.append(work.lake.frame(table_of(rows, RESTORE)), RESTORE, txn, rows=len(rows))
    return {}


@dataclass(frozen=True)
class Restoring:
    """What a restore is made with."""

    lake: Lake
    stores: Stores
    callbacks: Callbacks = field(default_factory=Callbacks)
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    @property
    def unfinished(self) -> BatchRecord | None:
        """A restore that was begun and not finished."""
        last = self.stores.checkpoints.latest(RESTORE_TABLES)
        return None if last is None or last.state is JobState.SUCCEEDED else last

    def run(self, asked: Asked | None) -> BatchReport | None:
        """Restore, or (asked None) finish the restore that was begun; None when there is nothing to do.

        Holds the leases of the jobs that are put back and of the tables. Raises RestoreRefused, what
        planning raises, LeaseUnavailable, OthersBatchUnfinished, ChecksumDiffers.
        """
        if not self._is_due(asked):
            return None
        with ExitStack() as held:
            fences = list[Fence]()
            job = self.job(asked, fences)
            # A drain keeps its lease from its first batch to its last. In one order, and before any table: those
            # who hold one job and want tables never wait in a circle.
            for name in sorted(self._group(asked).jobs):
                fences.append(held.enter_context(job.lease_of(f"job/{name}", RESTORE_TABLES)).fence)
            with job.exclusive() as lease:
                # Another process may have finished it, or begun another one, while we waited.
                return job.run_batch(lease) if self._is_due(asked) else None

    def _is_due(self, asked: Asked | None) -> bool:
        """Whether there is anything to do. Raises RestoreRefused where another restore has to end first."""
        last = self.unfinished
        if asked is not None and last is not None:
            raise RestoreRefused(
                "Another table",
                f"{last.manifest} is unfinished ({last.state}), and tables may be half-way back. Run "
                "`engagement-platform restore --finish` first, or give it up by "
                "`engagement-platform restore --abandon`",
            )
        return asked is not None or last is not None

    def job(self, asked: Asked | None, fences: Sequence[Fence] = ()) -> MicroBatchJob[RestoreBatch]:
        """The job. asked None: it only finishes what was begun. fences: of the jobs that are put back."""
        lake, settings, group = self.lake, self.lake.settings, self._group(asked)
        tables = group.tables
        lake.ensure(*tables, *group.beside, *([NOTIFICATION] if group.announced else []), RESTORE)

        def settled() -> Plan:
            assert asked is not None, "nothing is begun here"
            return plan(settings, self.stores, asked)

        def rewind_jobs(work: RestoreBatch, commit: Committer) -> Counts:  # noqa: ARG001
            """The jobs back to where the tables are, after all tables are there. Counts: jobs_put_back."""
            details = {name: work.what[name] for name in ("mode", "reason", "by", "boundary")}
            for name, back in sorted(work.what["rewinds"].items()):
                self.stores.checkpoints.rewind(
                    name, back["start"], back["end"], work.manifest, self.clock(), details=details, fences=fences
                )
            return {"jobs_put_back": len(work.what["rewinds"])}

        source = PlannedSource(settled)
        return MicroBatchJob(
            name=RESTORE_TABLES,
            source=source,
            prepare=lambda manifest: RestoreBatch(lake, manifest, self.kept()),
            processes=(
                Step("restore", _restore, tuple(table.key[-1] for table in tables)),
                Step("notification", _announce, ("append",)),
                Step("audit", _audit, ("append",)),
                Step("rewind", rewind_jobs),
            ),
            stores=self.stores,
            limits=Limits(settings.batch.max_records, settings.batch.max_bytes),
            pin=lambda: pinned(lake, group, source.planned),
            about=source.about,
            leased=group.leased,
            enters=tuple(vacuum_of(table.name) for table in tables),
            lease_wait=settings.stores.lease_wait,
            describe=lambda work: {name: work.what[name] for name in ("table", "mode", "reason", "by", "boundary")},
            clock=self.clock,
            fencing=LakeFencing(lake, targets(group.written)),
            callbacks=self.callbacks,
        )

    def _group(self, asked: Asked | None) -> Group:
        """What is asked for, or what the restore is of that was begun; else what any may be of."""
        settings = self.lake.settings
        if asked is not None:
            return group_of(settings, asked.table)
        return engagements(settings) if self.unfinished is None else group_of(settings, self.kept()["table"])

    def kept(self) -> Mapping[str, Any]:
        """What is kept with the last restore: what was asked for, and by whom."""
        return self.stores.checkpoints.history(RESTORE_TABLES, limit=1)[0].manifest.source
