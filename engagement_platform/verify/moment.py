"""A moment of the lake at which no batch is between two of its commits: what had finished, and the tables' versions.

Several jobs write the Data Table, one batch at a time; what is compared at such a moment is the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.model import Checkpoint, JobState, Manifest
from engagement_platform.engine.stores import BatchRecord, CheckpointStore
from engagement_platform.engine.unfinished_batches import in_the_way
from engagement_platform.jobs import INGEST_ENGAGEMENTS
from engagement_platform.lake import log
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import (
    ALIAS,
    MAPPING,
    MUTATION_LOGS,
    NOTIFICATION,
    PENDING,
    QUARANTINE,
    data_table,
)
from engagement_platform.lake.lake import Lake
from engagement_platform.mutation.current import shown_at
from engagement_platform.settings import Settings


@dataclass(frozen=True)
class Moment:
    """What had finished, and the table versions of that moment."""

    records: Sequence[BatchRecord]
    """All batches of engagement ingestion under its current application id, oldest first."""
    versions: Mapping[str, int]
    """By table name; tables that are not there are absent."""
    unfinished: Sequence[Manifest]
    """Batches that were under way on the Data Table; at most one, since no other begins before it has finished."""

    @property
    def done(self) -> list[BatchRecord]:
        """Finished batches of engagement ingestion, oldest first."""
        return [record for record in self.records if record.state is JobState.SUCCEEDED]

    def has(self, *tables: Table) -> bool:
        """Whether all of these tables were there."""
        return all(table.name in self.versions for table in tables)

    def read(self, lake: Lake, table: Table) -> DataFrame:
        """A table as it was then."""
        return lake.read(table, self.versions[table.name])

    def announced(self, lake: Lake) -> DataFrame:
        """The notifications, without those of a batch that had not finished then: its changes are not to be seen."""
        rows = self.read(lake, NOTIFICATION)
        early = [
            F.col("notification_id").startswith(f"{manifest.app_id}/") & (F.col("batch_id") >= manifest.batch_id)
            for manifest in self.unfinished
        ]
        return rows.where(~reduce(or_, early)) if early else rows

    def seen(self, lake: Lake) -> DataFrame:
        """Rows of the Data Table with the person_id that readers of the current view saw; null: none."""
        data = data_table(lake.settings.layout.scheme)
        return shown_at(lake, data, self.versions) if self.has(PENDING, ALIAS) else self.read(lake, data)

    def edges(self, lake: Lake, organizations: Sequence[str]) -> pa.Table:
        """All edges of these organizations, with the columns of `engagement/alias`."""
        if not organizations or not self.has(ALIAS):
            return schema_of(ALIAS).empty_table()
        return lake.find(ALIAS, self.versions[ALIAS.name], ALIAS.column_names, {"organization_id": organizations})


def moment(settings: Settings, checkpoints: CheckpointStore) -> Moment:
    """The newest such moment: now between two batches, or when the batch began that is under way.

    Looks until nothing happened between two looks. A batch that is under way pinned the versions that it began with,
    and no other begins before it has finished. Tables that it does not pin are read as they are: it only appends
    notifications to them, which are told apart.
    """
    data = data_table(settings.layout.scheme)
    while True:
        before = _look(settings, data, checkpoints)
        app_id = checkpoints.app_id(INGEST_ENGAGEMENTS)
        records = [r for r in checkpoints.history(INGEST_ENGAGEMENTS) if r.manifest.app_id == app_id]
        after = _look(settings, data, checkpoints)
        # While a batch is under way its commits come and go; the versions that count are those it pinned.
        if before.batches == after.batches and (before.unfinished or before.versions == after.versions):
            break
    manifests = [batch.manifest for batch in before.unfinished]
    pinned = {name: version for manifest in manifests for name, version in manifest.table_versions.items()}
    return Moment(records[::-1], {**before.versions, **pinned}, manifests)


@dataclass(frozen=True)
class _Look:
    unfinished: tuple[Checkpoint, ...]
    last: Checkpoint | None
    versions: Mapping[str, int]

    @property
    def batches(self) -> object:
        return self.unfinished, self.last


def _look(settings: Settings, data: Table, checkpoints: CheckpointStore) -> _Look:
    found = {}
    for table in (data, MAPPING, NOTIFICATION, QUARANTINE, PENDING, *MUTATION_LOGS):
        version = log.version(table.uri(settings.lake))
        if version is not None:
            found[table.name] = version
    unfinished = in_the_way("", {data.name}, checkpoints.unfinished())
    return _Look(unfinished, checkpoints.latest(INGEST_ENGAGEMENTS), found)
