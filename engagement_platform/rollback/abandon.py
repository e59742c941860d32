"""Gives up a restore that is half done: every table gets the rows back that it had before, and the batch is over.

Only while nothing of it is announced. After that there is one way, forward: `job`.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from engagement_platform.engine.model import Manifest
from engagement_platform.lake.restore import restore
from engagement_platform.rollback.groups import RestoreRefused
from engagement_platform.rollback.job import RestoreBatch, Restoring
from engagement_platform.rollback.plan import RESTORE_TABLES


@dataclass(frozen=True)
class Abandoned:
    """A restore that was given up."""

    manifest: Manifest
    tables: dict[str, int]
    """Table -> the version whose rows it has again."""

    def as_json(self) -> dict[str, object]:
        """All of it by name."""
        return {"batch_id": self.manifest.batch_id, "abandoned": True, "tables": self.tables}


def abandon(restoring: Restoring, by: str) -> Abandoned | None:
    """Give up the restore that was begun; None when there is none.

    Every table that it was to take back gets a commit, one that it had not come to one without rows: a RESTORE that a
    server is still at fails by that, since Delta does not try one again after another commit. A crash in here leaves
    the restore unfinished; the same call, or `--finish`, goes on. Offsets and notifications are as they were.
    by: user@host, kept with the batch. Raises RestoreRefused, VersionGone, ChecksumDiffers, LeaseUnavailable.
    """
    stores, lake = restoring.stores, restoring.lake
    with stores.leases.acquire(
        f"job/{RESTORE_TABLES}", purpose="abandon", wait=lake.settings.stores.lease_wait
    ) as lease:
        last = restoring.unfinished
        if last is None:
            return None
        job, manifest = restoring.job(None), last.manifest
        with ExitStack() as held:
            tables = [held.enter_context(job.lease_of(f"table/{name}", job.name)) for name in sorted(job.leased)]
            leases = (lease, *tables)
            fences = [each.fence for each in leases]
            if any(state.batch_id == manifest.batch_id for state in stores.metadata.get(RESTORE_TABLES).values()):
                raise RestoreRefused(
                    "What was before",
                    f"{last.manifest} has taken all of its tables back, and notifications may have gone out. Run "
                    "`engagement-platform restore --finish`; another restore, to a version from before this one, takes "
                    "back what it did",
                )
            # The batch goes on, to another end: as when it is resumed, and nobody else may write it from here on.
            stores.checkpoints.begin(manifest, fences=fences)
            work = RestoreBatch(lake, manifest, restoring.kept())
            put_back = {table.name: manifest.table_versions[table.name] for table in work.tables}
            for table in work.tables:
                for each in leases:
                    each.check()
                restoring.callbacks.observe(f"abandon.{table.key[-1]}:before")
                version, txn = put_back[table.name], manifest.transaction("abandon", table.key[-1])
                if lake.version(table) == version:
                    lake.append(lake.read(table), table, txn, rows=0)
                else:
                    mark = work.group.mark(lake.root, table, version)
                    restore(lake, table, version, txn, mark)
            work.compared(put_back)
            counts = {"tables": 0, "tables_put_back": len(put_back)}
            details = {"abandoned_by": by, "table": work.what["table"], "mode": work.what["mode"]}
            stores.checkpoints.succeed(manifest, counts, details, restoring.clock(), fences=fences)
    return Abandoned(manifest, put_back)
