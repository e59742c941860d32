"""The job `apply-mutations`: a notification for each engagement that accepted requests change for readers.

Requests are visible once their batch is published; this job announces them and changes no other table. Rows of ids that
move as a whole are joined twice, with the moves before and after the new requests; rows that a rule has to look at go
through `rules.changes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import MicroBatchJob
from engagement_platform.engine.model import Counts, Limits, Manifest, NoIdentity, Offsets
from engagement_platform.lake import log
from engagement_platform.lake.audit_columns import stamped
from engagement_platform.lake.engagement import ALIAS, CHANGESET, MUTATION_REQUEST, NOTIFICATION, data_table
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines import snapshot
from engagement_platform.pipelines.mutations import rules
from engagement_platform.pipelines.mutations.connected_components import moves as moves_of
from engagement_platform.pipelines.mutations.view import Pending, by_rule, special_rows, split, with_move
from engagement_platform.pipelines.parts import APPLY_MUTATIONS, Parts, announced, kept, tune_for
from engagement_platform.pipelines.pinned_settings import that_decide

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
        rows, requests = sum(work.by_change.values()), sum(work.by_operation.values())
        identity = F.concat_ws(
            "/", F.lit(work.manifest.app_id), F.lit(str(work.manifest.batch_id)), "organization_id", "engagement_id"
        )
        notifications = stamped(work.changes, work.manifest).withColumn("notification_id", identity)
        with commit("append") as txn:
            work.lake.append(notifications, NOTIFICATION, txn, rows=rows)
        operations = {"conversions": "CONVERT", "deletions": "DELETE", "renames": "RENAME", "patches": "UPDATE"}
        kinds = {"inserted": "INSERT", "updated": "UPDATE", "deleted": "DELETE"}
        return {
            "rows_in": requests,
            "landed": requests,
            **{name: work.by_operation.get(operation, 0) for name, operation in operations.items()},
            **{name: work.by_change.get(kind, 0) for name, kind in kinds.items()},
            "notifications": rows,
            **work.lake.written(NOTIFICATION, txn),
        }


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
        found = kept(changes(snapshot.data(lake, at), pending, since + 1))
        counts = [
            {row[column]: row["count"] for row in frame.groupBy(column).count().collect()}
            for frame, column in ((requests, "operation"), (found, "change_type"))
        ]
        return Announcement(lake, manifest, counts[0], found, counts[1])

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
    special = special_rows(pending, moves, since)
    if special is None:
        return data.sparkSession.createDataFrame([], rules.CHANGE_DDL)
    plain, held = split(data, moves, special)
    found = by_rule(held, pending, special, partial(rules.changes, since=since), rules.CHANGE_DDL)
    return found if moves is None else found.unionByName(_moved(plain, moves.where("engaged_before IS NOT NULL")))


def _moved(rows: DataFrame, moves: DataFrame) -> DataFrame:
    """Rows of ids that move as a whole: the person that the moves before and after give them."""
    rows = rows.join(F.broadcast(moves.select(*_PERSON).distinct()), _PERSON, "left_semi")
    rows = rows.select("organization_id", "engagement_id", "engagement_date", "engagement_ts", "source_person_id")
    for name, phase in (("previous_person_id", "NOT is_after"), ("person_id", "is_after")):
        rows = with_move(rows, moves.where(phase).drop("is_after"), name, F.col("source_person_id"))
    before, after = F.col("previous_person_id"), F.col("person_id")
    change = F.when(after.isNull(), "DELETE").when(before.isNull(), "INSERT").otherwise("UPDATE")
    changed = rows.where(~before.eqNullSafe(after)).withColumn("change_type", change)
    return changed.select(*rules.CHANGE.names)
