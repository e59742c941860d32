"""A snapshot of the lake between two batches: which batches had finished, and the versions of the tables.

Several jobs write the Data Table, one batch at a time. What is compared is the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import or_

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.job import Stores
from engagement_platform.engine.model import BatchRecord, JobState
from engagement_platform.engine.unfinished_batches import blocking_batches
from engagement_platform.lake import log
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import NOTIFICATION, engagement_tables
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS
from engagement_platform.pipelines.parts import announced
from engagement_platform.pipelines.snapshot import DATA, Snapshot, snapshot_of
from engagement_platform.settings import Settings


@dataclass(frozen=True)
class LakeSnapshot:
    """Which batches had finished, and the table versions that go with them."""

    root: str
    """Of the lake."""
    records: Sequence[BatchRecord]
    """All batches of engagement ingestion under its current application id, oldest first."""
    versions: Mapping[str, int]
    """By table name; tables that are not there are absent."""
    unfinished: Sequence[BatchRecord]
    """Batches that were under way on the Data Table; at most one, since no other begins before it has finished."""
    announced: int
    """Requests up to this sequence had been announced."""

    @property
    def done(self) -> list[BatchRecord]:
        """Finished batches of engagement ingestion, oldest first."""
        return [record for record in self.records if record.state is JobState.SUCCEEDED]

    @cached_property
    def view(self) -> Snapshot:
        """What readers saw."""
        return snapshot_of(self.root, self.versions)

    def read(self, lake: Lake, table: Table) -> DataFrame:
        """A table at its version."""
        return lake.read(table, self.versions[table.name])

    def notified(self, lake: Lake) -> DataFrame:
        """The notifications, without those of an unfinished batch, whose changes readers do not see."""
        rows = self.read(lake, NOTIFICATION)
        early = [
            F.col("notification_id").startswith(f"{one.manifest.app_id}/")
            & (F.col("batch_id") >= one.manifest.batch_id)
            for one in self.unfinished
        ]
        return rows.where(~reduce(or_, early)) if early else rows


def lake_snapshot(settings: Settings, stores: Stores) -> LakeSnapshot:
    """The newest such snapshot: now between two batches, or when the batch began that is under way.

    Looks until nothing happened between two looks. A batch that is under way pinned the versions that it began with,
    and no other begins before it has finished. Tables that it does not pin are read as they are: it only appends names
    and notifications to them, and the latter are filtered by batch.
    """
    checkpoints = stores.checkpoints
    while True:
        before = _look(settings, stores)
        app_id = checkpoints.app_id(INGEST_ENGAGEMENTS)
        records = [r for r in checkpoints.history(INGEST_ENGAGEMENTS) if r.manifest.app_id == app_id]
        after = _look(settings, stores)
        # While a batch is under way its commits come and go; the versions that count are those it pinned.
        if (replace(before, versions=after.versions) if after.unfinished else before) == after:
            break
    pinned = {name: v for one in after.unfinished for name, v in one.manifest.table_versions.items()}
    return replace(after, records=records[::-1], versions={**after.versions, **pinned})


def _look(settings: Settings, stores: Stores) -> LakeSnapshot:
    """With the newest batch only."""
    checkpoints, versions = stores.checkpoints, dict[str, int]()
    for table in engagement_tables(settings.layout.scheme):
        version = log.newest_entry(table.uri(settings.lake))
        if version is not None:
            versions[table.name] = version
    unfinished = blocking_batches("", {DATA.name}, checkpoints.unfinished())
    newest = checkpoints.history(INGEST_ENGAGEMENTS, limit=1)
    return LakeSnapshot(settings.lake, newest, versions, unfinished, announced(stores))
