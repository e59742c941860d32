"""The job `rematerialize-aliases`: everything pending into the Data Table and the mapping, in bulk.

Base and watermark change in one commit, so that readers see the same before, between and after its commits; nothing is
announced. Once a day rows that are deleted for good become tombstones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, reduce

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import MicroBatchJob, Step
from engagement_platform.engine.model import Counts, Limits, Manifest, NoIdentity, Offsets, Transaction
from engagement_platform.lake import live_files, log
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, CHANGESET, MAPPING, MUTATION_REQUEST, data_table
from engagement_platform.lake.lake import MAX_LITERALS, Lake
from engagement_platform.lake.overwrite import delete_through, replace_all, replace_rows, update_rows
from engagement_platform.pipelines import snapshot
from engagement_platform.pipelines.mutations import names, view
from engagement_platform.pipelines.parts import Parts, announced, kept, side_by_side, tune_for
from engagement_platform.pipelines.pinned_settings import as_pinned, that_decide
from engagement_platform.pipelines.redrive import turn_of
from engagement_platform.pipelines.rematerialization import Choice, choose
from engagement_platform.pipelines.snapshot import Snapshot, moved_through
from engagement_platform.settings import MutationSettings
from engagement_platform.sources.lateness import from_microseconds, microseconds

REMATERIALIZE_ALIASES = "rematerialize-aliases"
KEY = ("organization_id", "engagement_date", "engagement_id")

Unread = Callable[[], Iterable[int | None]]
"""Times up to which all requests are read, as `purge_horizon` takes them: Kafka timestamps of the first that are not
read yet, and what else is known of the time. What costs least comes first."""

PURGE_EVERY = timedelta(days=1)
"""A purge reads the hidden rows of the whole table; rows that are hidden a day longer harm nobody."""


@dataclass(frozen=True)
class PendingChanges(NoIdentity):
    """A batch whenever something waits or a purge is due.

    Offsets: sequence, up to which the tables have, or will have, everything; and purge_before, in microseconds since
    1970 UTC: what requests from before that time have deleted is deleted for good. The topic is asked for it when a
    batch is planned, and the manifest pins the answer.
    """

    parts: Parts
    unread: Unread
    clock: Callable[[], datetime]

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> tuple[Offsets, Offsets] | None:  # noqa: ARG002
        """What waits now; None when nothing does."""
        at = snapshot.snapshot(self.parts.lake.root)
        last = start["purge_before"] if start else 0
        newest = at.newest.get(MUTATION_REQUEST.name, -1)

        def are_announced() -> bool:
            return newest is not None and newest <= announced(self.parts.stores)

        settings = self.parts.settings.mutation
        before = purge_before(last, self.clock(), self.unread, settings, are_announced)
        if before == last and not at.pends:
            return None
        # Where the time is taken back there is nothing to purge.
        begin = {"sequence": at.moved_up_to, "purge_before": min(last, before)}
        return begin, {"sequence": max(at.newest_sequence, at.watermark), "purge_before": before}


def purge_horizon(now: datetime, unread: Iterable[int | None], settings: MutationSettings) -> datetime | None:
    """No request that is read from now on and accepted has an execution_ts before this time. None: not known.

    now: taken before the topic was asked. unread: of each partition that has records which are not read yet, the Kafka
    timestamp of the first of them, in milliseconds since 1970 UTC; None where it has none. A partition that is read to
    its end counts up to `now`, one that is not up to its first unread record. So while nothing is read the horizon
    stands still, however long that takes.
    Of other times it is the same: the least counts, so while two clocks disagree nothing is purged.
    The records behind it are at most `max_disorder` older; a first one that is further ahead of `now` than that says
    nothing about them, and neither does one without a timestamp. A request is on time up to `max_lateness` before its
    production.
    """
    read, latest = microseconds(now), microseconds(now + settings.max_disorder)
    for timestamp in unread:
        if timestamp is None or not 0 <= timestamp * 1000 <= latest:
            return None
        read = min(read, timestamp * 1000)
    return from_microseconds(read) - settings.max_disorder - settings.max_lateness


def purge_before(
    last: int, now: datetime, unread: Unread, settings: MutationSettings, ready: Callable[[], bool]
) -> int:
    """Up to which time deletions become final now, in microseconds since 1970 UTC; `last` when no purge is due.

    A `last` that this clock cannot find yet was found by one that was ahead. It is taken back: until then names would
    keep nothing of what requests may still change, and no purge would be due.
    ready: whether a purge may begin and finds something. unread: asked only when both others allow a purge.
    """
    at_most = purge_horizon(now, (), settings)
    assert at_most is not None, "every request is read"
    if microseconds(at_most) < last:
        return max(microseconds(at_most), 0)
    due = from_microseconds(last) + PURGE_EVERY
    # If it is too early even with every request read, nobody has to be asked.
    if at_most < due or not ready():
        return last
    horizon, times = at_most, list[int | None]()
    for time in unread():
        times.append(time)
        if (known := purge_horizon(now, times, settings)) is None or known < due:
            return last
        horizon = known
    return microseconds(horizon)


@dataclass(frozen=True)
class Move:
    """One batch: the pinned snapshot, and what it comes to."""

    lake: Lake
    data: Table
    manifest: Manifest
    at: Snapshot

    @property
    def until(self) -> int:
        """The sequence up to which the tables have everything afterwards."""
        return self.manifest.end["sequence"]

    @property
    def base(self) -> DataFrame:
        """The Data Table before the move."""
        return self.lake.read(self.data, self.at.versions[self.data.name])

    @cached_property
    def changed(self) -> DataFrame:
        """Rows of the Data Table that change, with their new columns; tombstones only where a purge is due."""
        before = self.manifest.end["purge_before"]
        horizon = None if before == self.manifest.start["purge_before"] else from_microseconds(before)
        rows = view.changed(snapshot.data(self.lake, self.at), snapshot.pending(self.lake, self.at), horizon)
        return kept(rows.withColumn("batch_id", F.lit(self.manifest.batch_id).cast("long")))

    @cached_property
    def bounds(self) -> Row:
        """Of the rows that change: rows, tombstones, and the first and last organization and day."""
        return self.changed.agg(
            F.count("*").alias("rows"),
            F.count_if(F.col("source_person_id").isNull()).alias("tombstones"),
            *(of(name).alias(f"{of.__name__}_{name}") for name in KEY[:2] for of in (F.min, F.max)),
        ).collect()[0]

    @cached_property
    def choice(self) -> Choice:
        """How the Data Table is written."""
        rows = live_files.rows_in(self.lake.uri(self.data), self.at.versions[self.data.name])
        return choose(self.lake.settings.mutation.apply, "mutation.apply", self.bounds["rows"], rows)

    def watermark(self, table: Table, txn: Transaction) -> Transaction:
        """What the commits of data and mapping carry: the watermark, as Delta's txn action. txn: the batch's own.

        Where nothing is newer than the watermark, as when only a purge is due, the batch's own: under a watermark that
        the table has already Delta would skip the write.
        """
        held = log.open_version(self.lake.uri(table), self.at.versions[table.name])
        if snapshot.watermark(held) == self.until:
            return txn
        return replace(moved_through(held, self.until), guard=txn.guard, of=txn.marker)


def move_base(work: Move, commit: Committer) -> Counts:
    """Write the Data Table and the mapping with everything up to the watermark, which the same commits carry.

    Counts: changed_rows, tombstones, files, bytes, commits, files_rewritten, bytes_rewritten.
    """
    written: dict[str, int] = {}

    def move_data() -> None:
        with commit("data") as batch:
            txn = work.watermark(work.data, batch)
            write_data(work, txn)
        written.update(work.lake.written(work.data, txn))
        written.update(work.lake.rewritten(work.data, txn))

    def fold_names() -> None:
        with commit("mapping") as txn:
            write_names(work, work.watermark(MAPPING, txn))

    side_by_side(move_data, fold_names)
    return {"changed_rows": work.bounds["rows"], "tombstones": work.bounds["tombstones"], **written}


def clear_changeset(work: Move, commit: Committer) -> Counts:
    """Take the moved images out of the changeset. Readers have not looked at them since the base has them."""
    if CHANGESET.name not in work.at.newest:
        return {"images_removed": 0}
    with commit("delete") as txn:
        delete_through(work.lake, CHANGESET, "batch_sequence", work.until, txn)
    found = work.lake.commit_of(CHANGESET, txn)
    return {"images_removed": found.rows_deleted if found else 0}


def write_data(work: Move, txn: Transaction) -> None:
    """Commit the changed rows and the watermark to the Data Table."""
    bounds, lake, table = work.bounds, work.lake, work.data
    if not bounds["rows"]:
        lake.append(work.base, table, txn, rows=0)
    elif work.choice.strategy == "overwrite":
        rows = work.base.join(work.changed.select(*KEY), list(KEY), "left_anti").select(*table.column_names)
        replace_all(lake, rows.unionByName(work.changed.select(*table.column_names)), table, txn)
    else:
        if work.choice.strategy == "deletion_vectors":
            lake.set_property(table, "delta.enableDeletionVectors", "true")
        within = [F.col(name).between(bounds[f"min_{name}"], bounds[f"max_{name}"]) for name in KEY[:2]]
        update_rows(lake, work.changed, table, txn, on=KEY, within=within)


def write_names(work: Move, txn: Transaction) -> None:
    """Commit the folded names of the organizations that have new evidence or new edges, and the watermark."""
    lake, at = work.lake, work.at
    mapping = lake.read(MAPPING, at.versions[MAPPING.name])
    renames, alias = snapshot.renames(lake, at), snapshot.pending(lake, at).alias
    late = [frame.where(F.col("sequence") > at.names_watermark) for frame in (renames, alias) if frame is not None]
    touched = [frame.select("organization_id") for frame in (mapping.where("evidence IS NULL"), *late)]
    organizations = sorted(row[0] for row in reduce(DataFrame.unionByName, touched).distinct().collect())
    if not organizations:
        lake.append(mapping, MAPPING, txn, rows=0)
        return
    listed = len(organizations) <= MAX_LITERALS

    def of(frame: DataFrame) -> DataFrame:
        return frame.where(F.col("organization_id").isin(organizations)) if listed else frame

    some_renames, some_edges = (None if frame is None else of(frame) for frame in (renames, alias))
    horizon = from_microseconds(work.manifest.end["purge_before"])
    rows = names.folded(of(mapping), some_renames, some_edges, horizon)
    audit = {"batch_id": work.manifest.batch_id, "batch_sequence": work.until}
    rows = rows.withColumns({name: F.lit(value).cast("long") for name, value in audit.items()})
    if listed:
        replace_rows(lake, rows, MAPPING, txn, "organization_id", organizations)
    else:
        replace_all(lake, rows, MAPPING, txn)


def rematerialize_aliases(
    parts: Parts, unread: Unread, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> MicroBatchJob[Move]:
    """Move everything pending, and purge once a day.

    unread: asked under the leases of the tables, at most once for each plan, and only when a purge may be due.
    """
    lake, settings = parts.lake, parts.settings
    data = data_table(settings.layout.scheme)
    tables = (CHANGESET, ALIAS, data, MUTATION_REQUEST, MAPPING)
    lake.ensure(*tables)

    def prepare(manifest: Manifest) -> Move:
        at = snapshot.snapshot_of(lake.root, manifest.table_versions)
        tune_for(lake, live_files.rows_in(lake.uri(data), at.versions[data.name]), weighed=False)
        return Move(lake.under(as_pinned(settings, manifest)), data, manifest, at)

    return parts.job(
        REMATERIALIZE_ALIASES,
        PendingChanges(parts, unread, clock),
        prepare,
        (Step("base", move_base, ("data", "mapping")), Step("changeset", clear_changeset, ("delete",))),
        pin=lambda: {table.name: lake.version(table) for table in tables},
        decides=lambda: that_decide(settings, "mutation"),
        # With the requests: a batch of them that has begun, even one whose process has died, has a sequence, and would
        # be overlooked below the watermark. So it is finished before a move begins.
        leased=(data.name, CHANGESET.name, MAPPING.name, turn_of(MUTATION_REQUEST)),
        describe=lambda work: {"strategy": work.choice.strategy, "why": work.choice.why, "watermark": work.until},
        clock=clock,
        # The watermark goes up with the base; it cannot be written ahead of it.
        writes={"base/data": None, "base/mapping": None, "changeset/delete": CHANGESET},
    )
