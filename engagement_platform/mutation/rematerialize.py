"""Moves what waits: organizations whose aliases the Data Table does not show yet; and purges rows deleted long ago.

What readers see stays the same, so nothing is announced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import functions as F

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import MicroBatchJob, Stores, Told
from engagement_platform.engine.model import Counts, Limits, Manifest, NoIdentity, Offsets
from engagement_platform.lake import light, log
from engagement_platform.lake.append_log_source import TableSource
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, MUTATION_LOGS, MUTATION_REQUEST, PENDING, data_table
from engagement_platform.lake.fencing import LakeFencing, targets
from engagement_platform.lake.lake import Lake
from engagement_platform.mutation.accepted import TooMany, pinned
from engagement_platform.mutation.batch import KEY, MutationBatch
from engagement_platform.mutation.few import open_few
from engagement_platform.mutation.identify import identified
from engagement_platform.mutation.job import APPLY_MUTATIONS, describe
from engagement_platform.mutation.many import open_many
from engagement_platform.mutation.processes import MoveProcess, move_targets
from engagement_platform.mutation.purge_horizon import purge_horizon
from engagement_platform.mutation.requests import FIELDS, PLACE
from engagement_platform.pinned_settings import as_pinned, that_decide
from engagement_platform.settings import MutationSettings, Settings
from engagement_platform.sources.lateness import from_microseconds, microseconds

REMATERIALIZE_ALIASES = "rematerialize-aliases"

Unread = Callable[[], Collection[int | None]]
"""Kafka timestamps of the first requests that are not read yet, as `purge_horizon` takes them."""

PURGE_EVERY = timedelta(days=1)
"""A purge reads the hidden rows of the whole table; rows that are hidden a day longer harm nobody."""


def waiting(lake: Lake, version: int, most: int) -> list[str]:
    """Organizations whose bytes are to be moved, those that wait longest first."""
    rows = lake.read(PENDING, version).where("pending_from IS NOT NULL")
    found = rows.orderBy("pending_from", "organization_id").limit(most).collect()
    return [row["organization_id"] for row in found]


def organizations_waiting(settings: Settings) -> int:
    """How many organizations wait. Reads one small table without Spark."""
    found = log.open_log(PENDING.uri(settings.lake))
    if found is None:
        return 0
    rows = light.find(found, ("pending_from",), {})
    return int(rows.num_rows - rows.column("pending_from").null_count)


@dataclass(frozen=True)
class WaitingSource(NoIdentity):
    """A batch whenever an organization waits or a purge is due.

    Offsets: version of `engagement/pending`, and purge_before, in microseconds since 1970 UTC: rows that requests from
    before that time have deleted are removed. The topic is asked for it when a batch is planned, and the manifest pins
    the answer.
    """

    lake: Lake
    settings: MutationSettings
    unread: Unread
    unapplied: Callable[[], int]
    """Requests that have landed and are not applied yet."""
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> tuple[Offsets, Offsets] | None:  # noqa: ARG002
        """What waits now; None when nothing does."""
        began = start or {"version": -1, "purge_before": 0}
        version = self.lake.version(PENDING)
        before = self._purge_before(began["purge_before"])
        if before == began["purge_before"] and not (version > began["version"] and waiting(self.lake, version, 1)):
            return None
        return began, {"version": version, "purge_before": before}

    def _purge_before(self, last: int) -> int:
        now, due = self.clock(), from_microseconds(last) + PURGE_EVERY
        if not reaches(purge_horizon(now, (), self.settings), due):
            # Not even if every request has been read; then nobody has to ask.
            return last
        horizon = purge_horizon(now, self.unread(), self.settings)
        # In this order: what was read by the first look has landed at the second, and counts there until it is applied.
        if horizon is None or not reaches(horizon, due) or self.unapplied():
            return last
        return microseconds(horizon)

    def check(self, start: Offsets, end: Offsets) -> None:
        """The table of what waits is small and kept; a version that is gone fails when it is read."""

    def size(self, start: Offsets, end: Offsets) -> None:
        """Not known before it is read."""


def reaches(horizon: datetime | None, due: datetime) -> bool:
    """Whether a purge is due by this horizon; exactly at it, it is."""
    return horizon is not None and horizon >= due


@dataclass(frozen=True)
class PurgeProcess:
    """Removes rows that were deleted so long ago that no request may come that brings them back."""

    table: Table
    name: str = "purge"
    commits: tuple[str, ...] = ("delete",)

    def run(self, work: MutationBatch, commit: Committer) -> Counts:
        """Counts: purged, files_rewritten, bytes_rewritten."""
        manifest = work.manifest
        if manifest.start["purge_before"] == manifest.end["purge_before"]:
            return {"purged": 0}
        hidden = work.lake.read(self.table, manifest.table_versions[self.table.name]).where("person_id IS NULL")
        edges = work.lake.read(ALIAS, pinned(manifest, ALIAS))
        # Whatever a later request says: by then these rows were gone.
        final = edges.where(F.col("execution_ts") < F.lit(from_microseconds(manifest.end["purge_before"])))
        columns = (*KEY, "engagement_ts", "source_person_id")
        gone = identified(hidden.select(*columns), final, engine=work.lake.settings.mutation.resolver)
        keys = gone.where("now IS NULL").select(*KEY).localCheckpoint()
        purged = keys.count()
        if not purged:
            return {"purged": 0}
        with commit("delete") as txn:
            work.lake.remove(keys, self.table, txn, on=KEY)
        return {"purged": purged, **work.lake.rewritten(self.table, txn)}


def rematerialize_aliases(
    lake: Lake,
    stores: Stores,
    settings: Settings,
    told: Told,
    unread: Unread,
    clock: Callable[[], datetime] | None = None,
) -> MicroBatchJob[MutationBatch]:
    """Moves waiting organizations, `mutation.rematerialize_organizations` a batch, and purges once a day.

    unread: asked under the leases of the tables, at most once for each plan, and only when a purge may be due.
    """
    data = data_table(settings.layout.scheme)
    lake.ensure(data, PENDING, MUTATION_REQUEST, *MUTATION_LOGS)
    requests = TableSource(lake.uri(MUTATION_REQUEST), MUTATION_REQUEST)

    def unapplied() -> int:
        last = stores.checkpoints.latest(APPLY_MUTATIONS)
        return requests.backlog(last.manifest.end if last else None)

    def prepare(manifest: Manifest) -> MutationBatch:
        own = as_pinned(settings, manifest)
        apply, pinned_lake = own.mutation.apply, lake.under(own)
        moving = own.mutation.model_copy(update={"apply": "merge" if apply in {"auto", "alias"} else apply})
        names = waiting(lake, pinned(manifest, PENDING), moving.rematerialize_organizations)
        nothing = schema_of(MUTATION_REQUEST, *FIELDS, *PLACE).empty_table()
        try:
            if settings.layout.light_write_rows == 0:
                raise TooMany
            return open_few(pinned_lake, data, manifest, nothing, moving, organizations=names)
        except TooMany:
            return open_many(pinned_lake, data, manifest, lake.frame(nothing), moving, organizations=names)

    tables = (data, PENDING, *MUTATION_LOGS)
    now = clock or (lambda: datetime.now(UTC))
    source = WaitingSource(lake, settings.mutation, unread, unapplied, now)
    return MicroBatchJob(
        name=REMATERIALIZE_ALIASES,
        source=source,
        prepare=prepare,
        processes=(MoveProcess(data), PurgeProcess(data)),
        stores=stores,
        limits=Limits(settings.batch.max_records, settings.batch.max_bytes),
        pin=lambda: {table.name: lake.version(table) for table in tables},
        decides=lambda: that_decide(settings, "mutation"),
        leased=(data.name, PENDING.name),
        lease_wait=settings.stores.lease_wait,
        describe=_describe,
        clock=now,
        fencing=LakeFencing(lake, targets({**move_targets(data), "purge/delete": data})),
        observe=told.observe,
        on_wait=told.on_wait,
        on_blocked=told.on_blocked,
    )


def _describe(work: MutationBatch) -> Mapping[str, object]:
    return {"strategies": describe(work)["strategies"], "moved_organizations": len(work.moved)}
