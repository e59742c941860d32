"""The job that restores: a batch like any other, so that a crash in the middle is finished and never done twice.

What it is going to do is `plan`. Its manifest says which versions go back to which; the rest is kept with the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import BatchReport, Callbacks, MicroBatchJob, Step, Stores
from engagement_platform.engine.lease import Fence
from engagement_platform.engine.model import BatchRecord, Counts, JobState, Limits, Manifest, NoIdentity, Offsets
from engagement_platform.errors import PlatformError
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.audit_columns import stamped_changes
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.lake.fencing import LakeFencing, targets
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.restore import RESTORE, Checksum, checksums, moved, restore
from engagement_platform.maintenance.layout.vacuum import vacuum_of
from engagement_platform.maintenance.rollback.groups import BEGIN, Group, RestoreRefused, engagements, group_of
from engagement_platform.maintenance.rollback.plan import RESTORE_TABLES, Asked, Plan, plan
from engagement_platform.settings import Settings


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

    settings: Settings
    stores: Stores
    asked: Asked | None
    """None: only what was begun is finished."""
    planned: Plan | None = None

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> tuple[Offsets, Offsets] | None:  # noqa: ARG002
        """Table -> version, before and after. None once there is nothing (more) to restore."""
        if self.planned is not None or self.asked is None:
            return None
        self.planned = plan(self.settings, self.stores, self.asked)
        changes = self.planned.changes
        if not changes and not self.planned.offsets:
            return None
        return (
            {change.table.name: change.from_version for change in changes},
            {change.table.name: change.to_version for change in changes},
        )

    def about(self) -> Mapping[str, object]:
        """All of the plan that its batch needs beside versions: `RestoreBatch.what`."""
        if (planned := self.planned) is None:
            return {}
        return {
            **planned.asked.as_json(),
            "by": planned.asked.by,
            "boundary": planned.boundary,
            "undone": list(planned.undone),
            "rewinds": {
                offset.job: {"start": dict(offset.rewind[0]), "end": dict(offset.rewind[1])}
                for offset in planned.offsets
                if offset.rewind is not None
            },
            "announced": planned.announced,
        }

    def pin(self, lake: Lake, group: Group) -> dict[str, int]:
        """Versions of all tables of the group. What is leased and is no table has none; its name alone keeps others
        out.

        Looks once more whether all files of the planned versions are there: from the manifest on VACUUM keeps them, and
        before the lease that `enters` names it may have come. Raises VersionGone.
        """
        for change in () if self.planned is None else self.planned.changes:
            moved(lake.uri(change.table), change.table.name, lake.version(change.table), change.to_version)
        versions = {table.name: lake.version(table) for table in (*group.tables, *group.beside)}
        return {**dict.fromkeys(group.leased, 0), **versions}


@dataclass
class RestoreBatch:
    """One restore, as its manifest says."""

    lake: Lake
    manifest: Manifest

    @property
    def what(self) -> Mapping[str, Any]:
        """`PlannedSource.about` of it."""
        return self.manifest.source

    @cached_property
    def group(self) -> Group:
        """The tables that go back together."""
        return group_of(self.lake.settings, self.what["table"])

    @property
    def tables(self) -> list[Table]:
        """Those that go back, in the order of the group."""
        return [table for table in self.group.tables if table.name in self.manifest.end]

    @property
    def details(self) -> dict[str, Any]:
        """What was asked for, for people."""
        return {name: self.what[name] for name in ("table", "mode", "reason", "by", "boundary")}

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
    def seen(self) -> tuple[DataFrame | None, dict[str, int]]:
        """`Group.seen` of this restore."""
        before = self.manifest.table_versions
        return self.group.seen(self.lake, before, {**before, **self.manifest.end}, self.what["announced"])


def _restore(work: RestoreBatch, commit: Committer) -> Counts:
    """Every table back to its version, and compared with it. Counts: tables, rows (of all restored tables)."""
    with commit(BEGIN) as txn:
        work.lake.append(work.lake.read(RESTORE), RESTORE, txn, rows=0)
    for table in work.tables:
        version = work.manifest.end[table.name]
        with commit(table.key[-1]) as txn:
            restore(work.lake, table, version, txn, work.group.mark(work.lake.root, table, version))
    return {"tables": len(work.tables), "rows": sum(checksum.rows for checksum in work.checksums.values())}


def _announce(work: RestoreBatch, commit: Committer) -> Counts:
    """One notification for each engagement that readers see differently now; of other tables they are only counted.

    Counts: inserted, updated, deleted, notifications, files, bytes.
    """
    seen, kinds = work.seen
    count = sum(kinds.values())
    if not count or not work.group.announced or seen is None:
        return {**kinds, "notifications": 0}
    with commit("append") as txn:
        work.lake.append(stamped_changes(seen, work.manifest), NOTIFICATION, txn, rows=count)
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
            **work.seen[1],
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

    def abandon(self, by: str) -> Manifest | None:
        """Give up the restore that was begun; None when there is none.

        Only while nothing of it is announced; after that `run` is the one way. Every table that it was to take back
        gets a commit, one that it had not come to one without rows: a RESTORE that a server is still at fails by that,
        since Delta does not try one again after another commit. A crash meanwhile leaves the restore unfinished; the
        same call, or `--finish`, goes on. Offsets and notifications are as they were.
        by: user@host, kept with the batch. Raises RestoreRefused, VersionGone, ChecksumDiffers, LeaseUnavailable.
        """
        lake, checkpoints, lock = self.lake, self.stores.checkpoints, f"job/{RESTORE_TABLES}"
        with ExitStack() as held:
            wait = lake.settings.stores.lease_wait
            leases = [held.enter_context(self.stores.leases.acquire(lock, purpose="abandon", wait=wait))]
            if (last := self.unfinished) is None:
                return None
            job, manifest = self.job(None), last.manifest
            leases += [held.enter_context(job.lease_of(f"table/{name}", job.name)) for name in sorted(job.leased)]
            fences = [each.fence for each in leases]
            if any(state.batch_id == manifest.batch_id for state in self.stores.metadata.get(RESTORE_TABLES).values()):
                raise RestoreRefused(
                    "What was before",
                    f"{manifest} has taken all of its tables back, and notifications may have gone out. Run "
                    "`engagement-platform restore --finish`; another restore, to a version from before this one, takes "
                    "back what it did",
                )
            # The batch goes on, to another end: as when it is resumed, and nobody else may write it from here on.
            checkpoints.begin(manifest, fences=fences)
            work = RestoreBatch(lake, manifest)
            for table in work.tables:
                for each in leases:
                    each.check()
                self.callbacks.observe(f"abandon.{table.key[-1]}:before")
                version, txn = manifest.table_versions[table.name], manifest.transaction("abandon", table.key[-1])
                if lake.version(table) == version:
                    lake.append(lake.read(table), table, txn, rows=0)
                else:
                    restore(lake, table, version, txn, work.group.mark(lake.root, table, version))
            work.compared(manifest.table_versions)
            # For stores that are lost: `recover` must not take it for unfinished.
            lake.append(lake.read(RESTORE), RESTORE, manifest.transaction("abandon", "end", final=True), rows=0)
            counts = {"tables": 0, "tables_put_back": len(work.tables)}
            details = {"abandoned_by": by, "table": work.what["table"], "mode": work.what["mode"]}
            checkpoints.succeed(manifest, counts, details, self.clock(), fences=fences)
        return manifest

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

        def rewind_jobs(work: RestoreBatch, commit: Committer) -> Counts:  # noqa: ARG001
            """The jobs back to where the tables are, after all tables are there. Counts: jobs_put_back."""
            details = {name: what for name, what in work.details.items() if name != "table"}
            for name, back in sorted(work.what["rewinds"].items()):
                self.stores.checkpoints.rewind(
                    name, back["start"], back["end"], work.manifest, self.clock(), details=details, fences=fences
                )
            return {"jobs_put_back": len(work.what["rewinds"])}

        source = PlannedSource(settings, self.stores, asked)
        return MicroBatchJob(
            name=RESTORE_TABLES,
            source=source,
            prepare=lambda manifest: RestoreBatch(lake, manifest),
            processes=(
                Step("restore", _restore, (BEGIN, *(table.key[-1] for table in tables))),
                Step("notification", _announce, ("append",)),
                Step("audit", _audit, ("append",)),
                Step("rewind", rewind_jobs),
            ),
            stores=self.stores,
            limits=Limits(settings.batch.max_records, settings.batch.max_bytes),
            pin=lambda: source.pin(lake, group),
            about=source.about,
            leased=group.leased,
            enters=tuple(vacuum_of(table.name) for table in tables),
            lease_wait=settings.stores.lease_wait,
            describe=lambda work: work.details,
            clock=self.clock,
            fencing=LakeFencing(lake, targets(group.written)),
            callbacks=self.callbacks,
        )

    def _group(self, asked: Asked | None) -> Group:
        """What is asked for, or what the restore is of that was begun; else what any may be of."""
        settings = self.lake.settings
        if asked is not None:
            return group_of(settings, asked.table)
        if (last := self.unfinished) is not None:
            return RestoreBatch(self.lake, last.manifest).group
        return engagements(settings)
