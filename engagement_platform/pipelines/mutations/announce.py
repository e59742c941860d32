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
from engagement_platform.engine.job import MicroBatchJob, Step
from engagement_platform.engine.model import Counts, Limits, Manifest, NoIdentity, Offsets
from engagement_platform.lake import live_files
from engagement_platform.lake.audit_columns import stamped_changes
from engagement_platform.lake.engagement import ALIAS, CHANGESET, MUTATION_REQUEST, NOTIFICATION, data_table
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines import snapshot
from engagement_platform.pipelines.engagements.schema import ROW
from engagement_platform.pipelines.mutations import rules
from engagement_platform.pipelines.mutations.connected_components import moves as moves_of
from engagement_platform.pipelines.mutations.view import ID, PERSON, Pending, by_rule, special_rows, with_move
from engagement_platform.pipelines.parts import APPLY_MUTATIONS, Parts, announced, compiled, kept, tune_for
from engagement_platform.pipelines.pinned_settings import that_decide


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


def notify(work: Announcement, commit: Committer) -> Counts:
    """Write the notifications, an empty commit where there are none: the table then says what was announced."""
    rows, requests = sum(work.by_change.values()), sum(work.by_operation.values())
    with commit("append") as txn:
        work.lake.append(stamped_changes(work.changes, work.manifest), NOTIFICATION, txn, rows=rows)
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
        # What is resolved is requests; of the Data Table there is one scan.
        rows = live_files.rows_in(lake.uri(MUTATION_REQUEST), at.versions[MUTATION_REQUEST.name])
        tune_for(lake, rows, weighed=False)
        pending = snapshot.pending(lake, at)
        in_time = F.col("sequence") <= until
        pending = replace(
            pending,
            alias=None if pending.alias is None else pending.alias.where(in_time),
            updates=None if pending.updates is None else pending.updates.where(in_time),
        )
        requests = lake.read(MUTATION_REQUEST, at.versions[MUTATION_REQUEST.name])
        requests = requests.where(F.col("batch_sequence").between(since + 1, until))
        found = kept(changes(snapshot.data(lake, at), pending, since + 1))
        kinds = requests.select(F.lit(True), "operation").union(found.select(F.lit(False), "change_type"))
        counted = kinds.toDF("asked", "kind").groupBy("asked", "kind").count().collect()
        by_operation, by_change = (
            {row["kind"]: row["count"] for row in counted if row["asked"] is asked} for asked in (True, False)
        )
        return Announcement(lake, manifest, by_operation, found, by_change)

    return parts.job(
        APPLY_MUTATIONS,
        PublishedRequests(parts),
        prepare,
        (Step("notification", notify, ("append",)),),
        pin=lambda: {table.name: lake.version(table) for table in tables},
        decides=lambda: that_decide(settings, "mutation"),
        # An ingestion batch that is under way has announced its rows by other requests than are published now.
        leased=(data.name,),
        writes={"notification/append": NOTIFICATION},
    )


def changes(data: DataFrame, pending: Pending, since: int) -> DataFrame:
    """The engagements that readers see otherwise because of the requests from a sequence on; columns of CHANGE_DDL.

    data: the columns of ROW. Cost: resolving the edges of the organizations that have new ones, and one scan of the
    Data Table.
    """
    moves = None
    if pending.alias is not None:
        moves = moves_of(
            pending.alias, since, pending.max_edges, rules.moves_apart, f"{rules.MOVE_DDL}, is_after boolean"
        )
    special = special_rows(pending, moves, since)
    if special is None:
        return data.sparkSession.createDataFrame([], rules.CHANGE_DDL)
    special = kept(special.distinct())
    rows = named_rows(data, moves, special)
    found = by_rule(rows.where("alone"), pending, special, partial(rules.changes, since=since), rules.CHANGE_DDL)
    if moves is None:
        return found
    return found.unionByName(_moved(rows.where("NOT alone"), moves))


def named_rows(data: DataFrame, moves: DataFrame | None, special: DataFrame) -> DataFrame:
    """The rows that moves or special rows name, by id or by person, kept: the columns of ROW, and `alone`.

    alone: whether it is a special row, which goes through a rule. Cost: one scan of the Data Table.
    """
    of_id = special.where("engagement_id IS NOT NULL").select(*ID).distinct().withColumn("by_id", F.lit(True))
    of_person = special.select(*PERSON, F.lit(True).alias("by_person"))
    if moves is not None:
        of_person = of_person.unionByName(moves.select(*PERSON, F.lit(False).alias("by_person")))
    of_person = (
        of_person.where("source_person_id IS NOT NULL").groupBy(*PERSON).agg(F.max("by_person").alias("by_person"))
    )
    rows = data.join(F.broadcast(of_id), ID, "left").join(F.broadcast(of_person), PERSON, "left")
    rows = rows.where("by_id OR by_person IS NOT NULL")
    with compiled(data.sparkSession):
        return kept(rows.select(*ROW.names, F.expr("coalesce(by_id, by_person)").alias("alone")))


def _moved(rows: DataFrame, moves: DataFrame) -> DataFrame:
    """Rows of ids that move as a whole: the person that the moves before and after give them."""
    rows = rows.select("organization_id", "engagement_id", "engagement_date", "engagement_ts", "source_person_id")
    for name, phase in (("previous_person_id", "NOT is_after"), ("person_id", "is_after")):
        rows = with_move(rows, moves.where(phase).drop("is_after"), name, F.col("source_person_id"))
    before, after = F.col("previous_person_id"), F.col("person_id")
    change = F.when(after.isNull(), "DELETE").when(before.isNull(), "INSERT").otherwise("UPDATE")
    changed = rows.where(~before.eqNullSafe(after)).withColumn("change_type", change)
    return changed.select(*rules.CHANGE.names)
