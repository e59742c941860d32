"""The processes of engagement ingestion, in their order: quarantine, mapping, data, notification.

Each turns frames of the batch into at most two commits and says what they wrote. Deciding is `settle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from engagement_platform.ingestion.batch import EngagementBatch, kept
from engagement_platform.ingestion.settle import COORDINATES, REASONS, Verdict, changed_names, newest_names
from engagement_platform.microbatch.job import Committer
from engagement_platform.microbatch.model import Counts, Manifest, Transaction
from engagement_platform.tables.contract import Table
from engagement_platform.tables.engagement import MAPPING, NOTIFICATION, QUARANTINE
from engagement_platform.tables.lake import Lake

LANDING = (Verdict.INSERT.value, Verdict.UPDATE.value)


def stamped(frame: DataFrame, manifest: Manifest) -> DataFrame:
    """With batch_id, job_name, ingestion_ts and ingestion_date of the manifest: a replay writes the same."""
    moment = F.lit(manifest.ingestion_ts)
    return frame.withColumns(
        {
            "batch_id": F.lit(manifest.batch_id).cast("long"),
            "job_name": F.lit(manifest.job),
            "ingestion_ts": moment,
            "ingestion_date": F.lit(manifest.ingestion_ts.date()),
        }
    )


def written(lake: Lake, table: Table, *transactions: Transaction) -> dict[str, int]:
    """Files and bytes that commits added, from the table's history."""
    commits = [commit for txn in transactions if (commit := lake.commit_of(table, txn)) is not None]
    return {
        "files": sum(commit.files_added for commit in commits),
        "bytes": sum(commit.bytes_added for commit in commits),
        "commits": len(commits),
    }


@dataclass(frozen=True)
class QuarantineProcess:
    """Rejected records, whole: those decoding refused and those the table refutes."""

    name: str = "quarantine"
    commits: tuple[str, ...] = ("append",)

    def run(self, work: EngagementBatch, commit: Committer) -> Counts:
        """Counts: rows_in, bytes_in, quarantined, unknown_fields, files, bytes."""
        quarantined = sum(work.summary.rejected.values()) + work.contradictions
        counts = {
            "rows_in": work.summary.rows_in,
            "bytes_in": work.summary.bytes_in,
            "quarantined": quarantined,
            "unknown_fields": work.summary.unknown_fields,
        }
        if not quarantined:
            return counts
        columns = (*COORDINATES, "key", "value", "reason_code", "reason")
        rejected = work.decoded.where(F.col("reason_code").isNotNull()).select(*columns)
        if work.contradictions:
            rejected = rejected.unionByName(refuted(work).select(*columns))
        rejected = not_quarantined(rejected, work.lake, work.manifest)
        with commit("append") as txn:
            work.lake.append(stamped(rejected, work.manifest), QUARANTINE, txn)
        return {**counts, **written(work.lake, QUARANTINE, txn)}


def not_quarantined(rejected: DataFrame, lake: Lake, manifest: Manifest) -> DataFrame:
    """Rejected records that quarantine does not hold already, when they may have been seen before.

    The same bytes at the same coordinates are the same record, whatever it was rejected for then. A topic that was
    made anew counts its offsets from 0 again, so coordinates alone would not do.
    """
    if not manifest.goes_over_again:
        return rejected
    held = lake.read(QUARANTINE, manifest.table_versions[QUARANTINE.name]).select(
        *COORDINATES, F.col("value").alias("held_value")
    )
    same = [F.col(f"rejected.{name}") == F.col(f"held.{name}") for name in COORDINATES]
    same.append(F.col("rejected.value").eqNullSafe(F.col("held.held_value")))
    return rejected.alias("rejected").join(held.alias("held"), reduce(and_, same), "left_anti")


def refuted(work: EngagementBatch) -> DataFrame:
    """Contradictions as raw records with their reason; read from the source again, since they are few."""
    reason: Column = F.lit(None).cast("string")
    for code, sentence in REASONS.items():
        reason = F.when(F.col("reason_code") == code, sentence).otherwise(reason)
    assert work.verdicts is not None, "no verdicts, no contradictions"
    few = work.verdicts.where(F.col("reason_code").isNotNull()).select(*COORDINATES, "reason_code")
    return work.raw.join(F.broadcast(few), list(COORDINATES)).withColumn("reason", reason)


def heard(work: EngagementBatch) -> DataFrame:
    """Copies whose word about names counts: all but the refuted ones, now or earlier.

    Once a newer version stands, a copy that was refuted looks like any older one when it is read again. Quarantine
    remembers it by its place and its bytes.
    """
    rows = work.rows.where(F.col("verdict") != Verdict.QUARANTINE.value)
    if not work.manifest.goes_over_again:
        return rows
    held = work.lake.read(QUARANTINE, work.manifest.table_versions[QUARANTINE.name])
    held = held.where(F.col("reason_code").isin(list(REASONS))).select(*COORDINATES, "value").distinct()
    again = work.raw.join(held, [*COORDINATES, "value"]).select(*COORDINATES)
    settled = F.col("verdict").isin(*LANDING)
    return rows.where(settled).unionByName(rows.where(~settled).join(again, list(COORDINATES), "left_anti"))


@dataclass(frozen=True)
class MappingProcess:
    """Names, newest evidence first; a batch whose names are all known and older writes nothing."""

    name: str = "mapping"
    commits: tuple[str, ...] = ("merge",)

    def run(self, work: EngagementBatch, commit: Committer) -> Counts:
        """Counts: names_new, names_changed, files, bytes."""
        if not work.summary.named:
            return {}
        said = newest_names(heard(work))
        changes = kept(changed_names(said, work.mapping))
        new = {row["is_new"]: int(row["count"]) for row in changes.groupBy("is_new").count().collect()}
        counts = {"names_new": new.get(True, 0), "names_changed": new.get(False, 0)}
        if not new:
            return counts
        rows = stamped(changes, work.manifest)
        with commit("merge") as txn:
            if counts["names_changed"]:
                work.lake.merge(
                    rows,
                    MAPPING,
                    txn,
                    on=("organization_id", "id"),
                    update=("name", "name_ts", "batch_id"),
                    insert=True,
                    within={"organization_id": work.summary.organizations},
                )
            else:
                work.lake.append(rows, MAPPING, txn)
        return {**counts, **written(work.lake, MAPPING, txn)}


@dataclass(frozen=True)
class DataProcess:
    """New engagements are appended; newer versions of known ones are merged, and only then is there a MERGE."""

    table: Table
    name: str = "data"
    commits: tuple[str, ...] = ("update", "insert")

    def run(self, work: EngagementBatch, commit: Committer) -> Counts:
        """Counts: landed, inserted, updated, duplicates, files, bytes."""
        counts = {
            "landed": work.inserted + work.updated,
            "inserted": work.inserted,
            "updated": work.updated,
            "duplicates": work.duplicates,
        }
        transactions = []
        if work.updated:
            with commit("update") as txn:
                self._update(work, txn)
            transactions.append(txn)
        if work.inserted:
            with commit("insert") as txn:
                inserts = work.rows.where(F.col("verdict") == Verdict.INSERT.value)
                work.lake.append(as_data(inserts, work.manifest), self.table, txn)
            transactions.append(txn)
        return {**counts, **written(work.lake, self.table, *transactions)}

    def _update(self, work: EngagementBatch, txn: Transaction) -> None:
        updates = work.rows.where(F.col("verdict") == Verdict.UPDATE.value)
        key = ("organization_id", "engagement_date", "engagement_id")
        work.lake.merge(
            as_data(updates, work.manifest),
            self.table,
            txn,
            on=key,
            update=[column for column in self.table.column_names if column not in key],
            update_if=F.col("version") < F.col("new_version"),
            within=self._touched(work),
        )

    def _touched(self, work: EngagementBatch) -> dict[str, Sequence[object]]:
        touched = (
            work.rows.where(F.col("verdict") == Verdict.UPDATE.value)
            .agg(
                F.collect_set("organization_id").alias("organization_id"),
                F.collect_set("engagement_date").alias("engagement_date"),
            )
            .collect()[0]
        )
        return {column: sorted(touched[column]) for column in ("organization_id", "engagement_date")}


def as_data(rows: DataFrame, manifest: Manifest) -> DataFrame:
    """Accepted copies as rows of the Data Table. The identity is what the event said."""
    return rows.select(
        "organization_id",
        "engagement_date",
        "engagement_ts",
        "engagement_id",
        "person_id",
        F.col("person_id").alias("source_person_id"),
        "version",
        F.lit(manifest.batch_id).cast("long").alias("batch_id"),
        F.struct("type", "channel", "subject", "attributes").alias("engagement"),
    )


@dataclass(frozen=True)
class NotificationProcess:
    """One row for each insert and update, after the Data Table holds it."""

    name: str = "notification"
    commits: tuple[str, ...] = ("append",)

    def run(self, work: EngagementBatch, commit: Committer) -> Counts:
        """Counts: notifications, files, bytes."""
        notifications = work.inserted + work.updated
        if not notifications:
            return {"notifications": 0}
        landed = work.rows.where(F.col("verdict").isin(*LANDING))
        # Coordinates name the change for good and compress to almost nothing, unlike a hash.
        identity = F.concat_ws("/", F.lit(work.manifest.app_id), "topic", "partition", "offset")
        rows = stamped(landed, work.manifest).withColumns(
            {"notification_id": identity, "change_type": F.col("verdict")}
        )
        with commit("append") as txn:
            work.lake.append(rows, NOTIFICATION, txn)
        return {"notifications": notifications, **written(work.lake, NOTIFICATION, txn)}
