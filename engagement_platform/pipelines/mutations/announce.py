"""The job `apply-mutations`: a notification for each engagement that accepted requests change for readers.

Requests are visible once their batch is published; this job tells those who follow notifications. It changes no other
table. Rows of ids that move as a whole are joined twice, with the moves before and after the new requests; rows that a
rule has to look at go through `rules.changes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import MicroBatchJob
from engagement_platform.engine.model import Counts, Limits, Manifest, NoIdentity, Offsets
from engagement_platform.lake import log
from engagement_platform.lake.audit_columns import stamped
from engagement_platform.lake.engagement import ALIAS, CHANGESET, MUTATION_REQUEST, NOTIFICATION, data_table
from engagement_platform.lake.lake import Lake
from engagement_platform.pinned_settings import that_decide
from engagement_platform.pipelines import snapshot
from engagement_platform.pipelines.engagements.schema import STATE
from engagement_platform.pipelines.mutations import rules
from engagement_platform.pipelines.mutations.connected_components import moves as moves_of
from engagement_platform.pipelines.mutations.view import Pending, special_state, with_move
from engagement_platform.pipelines.parts import APPLY_MUTATIONS, Parts, announced, kept, tune_for

_ID = ["organization_id", "engagement_id"]
_PERSON = ["organization_id", "source_person_id"]


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

    return parts.job(
        APPLY_MUTATIONS,
        PublishedRequests(parts),
        prepare,
        (NotificationProcess(),),
        pin=lambda: {table.name: lake.version(table) for table in tables},
        decides=lambda: that_decide(settings, "mutation"),
        # An ingestion batch that is under way has announced its rows by other requests than are published now.
        leased=(data.name,),
        writes={"notification/append": NOTIFICATION},
    )


def changes(data: DataFrame, pending: Pending, since: int) -> DataFrame:
    """The engagements that readers see otherwise because of the requests from a sequence on; columns of CHANGE_DDL.

    data: the columns of ROW. Cost: resolving the edges of the organizations that have new ones, and one scan of the
    Data Table for each of the two kinds of rows.
    """
    moves = None
    if pending.alias is not None:
        moves = moves_of(
            pending.alias, since, pending.max_edges, rules.moves_apart, f"{rules.MOVE_DDL}, is_after boolean"
        )
    special = _special(data.sparkSession, pending, moves, since)
    of_id = F.broadcast(special.where("engagement_id IS NOT NULL").select(*_ID).distinct())
    of_person = F.broadcast(special.where("source_person_id IS NOT NULL").select(*_PERSON).distinct())
    by_id = data.join(of_id, _ID, "left_semi")
    by_person = data.join(of_person, _PERSON, "left_semi").join(of_id, _ID, "left_anti")
    found = _by_rules(by_id.unionByName(by_person), pending, special, since)
    if moves is None:
        return found
    rest = data.join(of_id, _ID, "left_anti").join(of_person, _PERSON, "left_anti")
    return found.unionByName(_by_moves(rest, moves.where("engaged_before IS NOT NULL")))


def _special(spark: SparkSession, pending: Pending, moves: DataFrame | None, since: int) -> DataFrame:
    """organization_id with engagement_id or source_person_id: which rows the rules look at.

    Those that new UPDATEs name, those of which the changeset has a newer image, and those that edges tell apart.
    """
    columns = "organization_id string, engagement_id string, source_person_id string"
    whole = spark.createDataFrame([], columns)
    nothing = F.lit(None).cast("string").alias("source_person_id")
    if pending.changeset is not None:
        images = pending.changeset.where(F.col("sequence") > pending.watermark)
        whole = whole.unionByName(images.select(*_ID, nothing))
    if pending.updates is not None:
        whole = whole.unionByName(pending.updates.where(F.col("sequence") >= since).select(*_ID, nothing))
    if moves is not None:
        apart = moves.where("engaged_before IS NULL")
        whole = whole.unionByName(apart.select("organization_id", "engagement_id", "source_person_id"))
    return whole


def _by_rules(held: DataFrame, pending: Pending, special: DataFrame, since: int) -> DataFrame:
    def run(state: pa.Table) -> pa.Table:
        organization_id = state.column("organization_id")[0].as_py()
        return rules.changes(organization_id, state.cast(STATE), since)

    return special_state(held, pending, special).groupBy("organization_id").applyInArrow(run, rules.CHANGE_DDL)


def _by_moves(rows: DataFrame, moves: DataFrame) -> DataFrame:
    """Rows of ids that move as a whole: the person that the moves before and after give them."""
    reached = F.broadcast(moves.select(*_PERSON).distinct())
    rows = rows.join(reached, _PERSON, "left_semi")
    rows = rows.select("organization_id", "engagement_id", "engagement_date", "engagement_ts", "source_person_id")
    for name, phase in (("previous_person_id", "NOT is_after"), ("person_id", "is_after")):
        rows = with_move(rows, moves.where(phase).drop("is_after"), name, F.col("source_person_id"))
    before, after = F.col("previous_person_id"), F.col("person_id")
    change = F.when(after.isNull(), "DELETE").when(before.isNull(), "INSERT").otherwise("UPDATE")
    changed = rows.where(~before.eqNullSafe(after)).withColumn("change_type", change)
    return changed.select(*rules.CHANGE.names)
