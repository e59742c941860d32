"""The job `apply-mutations`: a notification for each engagement that accepted requests change for readers.

Requests are visible once their batch is published; this job tells those who follow notifications. It changes no other
table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import MicroBatchJob
from engagement_platform.engine.model import Counts, Limits, Manifest, NoIdentity, Offsets
from engagement_platform.lake import log
from engagement_platform.lake.audit_columns import stamped
from engagement_platform.lake.engagement import ALIAS, CHANGESET, MUTATION_REQUEST, NOTIFICATION, data_table
from engagement_platform.lake.fencing import LakeFencing, targets
from engagement_platform.lake.lake import Lake
from engagement_platform.pinned_settings import that_decide
from engagement_platform.pipelines import snapshot
from engagement_platform.pipelines.mutations.announce import changes
from engagement_platform.pipelines.parts import APPLY_MUTATIONS, Parts, announced, kept, tune_for


@dataclass(frozen=True)
class Announcement:
    """Requests of a range of sequences, and what they change."""

    lake: Lake
    manifest: Manifest
    by_operation: Mapping[str, int]
    changes: DataFrame
    by_change: Mapping[str, int]


@dataclass(frozen=True)
class PublishedRequests(NoIdentity):
    """Requests that are published and not announced. Offsets {"sequence": n}: announced up to this sequence."""

    parts: Parts

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> tuple[Offsets, Offsets] | None:  # noqa: ARG002
        """All that are published by now; None when there are none."""
        begin = start["sequence"] if start else announced(self.parts.stores)
        newest = newest_request(self.parts.lake.root)
        return None if newest <= begin else ({"sequence": begin}, {"sequence": newest})

    def check(self, start: Offsets, end: Offsets) -> None:
        """Requests are never removed."""

    def size(self, start: Offsets, end: Offsets) -> None:
        """Not known before it is read."""


def newest_request(root: str) -> int:
    """The sequence of the newest published requests; -1: there are none. Reads the logs, no rows.

    Also of requests of which an erasure has left the edge only, since that moves rows of others.
    """
    at = snapshot.snapshot(root)
    published = {MUTATION_REQUEST.name, ALIAS.name} - at.unpublished.keys()
    return max(at.newest.get(name) or -1 for name in (MUTATION_REQUEST.name, *published))


@dataclass(frozen=True)
class NotificationProcess:
    """The notifications. An empty commit where there are none: the table then says what was announced."""

    name: str = "notification"
    commits: tuple[str, ...] = ("append",)

    def run(self, work: Announcement, commit: Committer) -> Counts:
        """Counts: rows_in, landed, conversions, deletions, renames, patches, inserted, updated, deleted,
        notifications, files, bytes, commits."""
        of, by = work.by_operation, work.by_change
        rows = sum(by.values())
        requests = sum(of.values())
        with commit("append") as txn:
            work.lake.append(notifications(work.changes, work.manifest), NOTIFICATION, txn, rows=rows)
        return {
            "rows_in": requests,
            "landed": requests,
            "conversions": of.get("CONVERT", 0),
            "deletions": of.get("DELETE", 0),
            "renames": of.get("RENAME", 0),
            "patches": of.get("UPDATE", 0),
            "inserted": by.get("INSERT", 0),
            "updated": by.get("UPDATE", 0),
            "deleted": by.get("DELETE", 0),
            "notifications": rows,
            **work.lake.written(NOTIFICATION, txn),
        }


def notifications(changed: DataFrame, manifest: Manifest) -> DataFrame:
    """Rows for the notification table."""
    batch = F.lit(str(manifest.batch_id))
    identity = F.concat_ws("/", F.lit(manifest.app_id), batch, "organization_id", "engagement_id")
    return stamped(changed, manifest).withColumn("notification_id", identity)


def apply_mutations(parts: Parts) -> MicroBatchJob[Announcement]:
    """Announce what published requests change, exactly once."""
    lake, settings = parts.lake, parts.settings
    data = data_table(settings.layout.scheme)
    tables = (data, CHANGESET, ALIAS, MUTATION_REQUEST)
    lake.ensure(*tables, NOTIFICATION)

    def prepare(manifest: Manifest) -> Announcement:
        since, until = manifest.start["sequence"], manifest.end["sequence"]
        at = snapshot.snapshot_of(lake.root, manifest.table_versions)
        tune_for(lake, log.rows_in(lake.uri(data), at.versions[data.name]))
        pending = snapshot.pending(lake, at)
        asked = F.col("sequence") <= until
        pending = replace(
            pending,
            alias=None if pending.alias is None else pending.alias.where(asked),
            updates=None if pending.updates is None else pending.updates.where(asked),
        )
        requests = lake.read(MUTATION_REQUEST, at.versions[MUTATION_REQUEST.name])
        requests = requests.where(F.col("batch_sequence").between(since + 1, until))
        operations = {row["operation"]: row["count"] for row in requests.groupBy("operation").count().collect()}
        found = kept(changes(snapshot.data(lake, at), pending, since + 1))
        by_change = {row["change_type"]: row["count"] for row in found.groupBy("change_type").count().collect()}
        return Announcement(lake, manifest, operations, found, by_change)

    return MicroBatchJob(
        name=APPLY_MUTATIONS,
        source=PublishedRequests(parts),
        prepare=prepare,
        processes=(NotificationProcess(),),
        stores=parts.stores,
        limits=Limits(settings.batch.max_records, settings.batch.max_bytes),
        pin=lambda: {table.name: lake.version(table) for table in tables},
        decides=lambda: that_decide(settings, "mutation"),
        # An ingestion batch that is under way has announced its rows by other requests than are published now.
        leased=(data.name,),
        lease_wait=settings.stores.lease_wait,
        describe=lambda _work: {},
        fencing=LakeFencing(lake, targets({"notification/append": NOTIFICATION})),
        callbacks=parts.callbacks,
    )
