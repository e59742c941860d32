"""The processes of a mutation batch, in their order. Each commits rows that the batch has made and says what it wrote.

Quarantine, then what was accepted, then the Data Table, the mapping, and notifications last: readers never hear of a
change that they cannot see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import functions as F

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.model import Counts, Transaction
from engagement_platform.lake import affected_files
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.audit_columns import stamped, stamped_here
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import (
    ALIAS,
    AMENDMENT,
    MAPPING,
    NOTIFICATION,
    OPERATION,
    ORIGINAL,
    PENDING,
    QUARANTINE,
)
from engagement_platform.lake.lake import any_of
from engagement_platform.mutation.batch import KEY, MutationBatch


@dataclass(frozen=True)
class RejectionProcess:
    """Requests that contradict an accepted one, whole."""

    name: str = "quarantine"
    commits: tuple[str, ...] = ("append",)

    def run(self, work: MutationBatch, commit: Committer) -> Counts:
        """Counts: rows_in, landed, duplicates, quarantined, files, bytes."""
        figures = work.figures
        counts = {
            "rows_in": figures.rows_in,
            "landed": figures.accepted,
            "duplicates": figures.duplicates,
            "quarantined": figures.quarantined,
        }
        if not figures.quarantined:
            return counts
        with commit("append") as txn:
            work.lake.append(work.rejected, QUARANTINE, txn, rows=figures.quarantined)
        return {**counts, **work.lake.written(QUARANTINE, txn)}


@dataclass(frozen=True)
class AcceptedProcess:
    """Accepted requests into the logs that everything is settled from. With its edges a conversion is visible.

    Organizations are marked as pending before that, so that the view shows the edges; once the Data Table does so
    itself, the mark is taken away. Their rows are looked for only afterwards: that takes most of a batch's time.
    """

    name: str = "alias"
    commits: tuple[str, ...] = ("pending", "amendment", "alias")

    def run(self, work: MutationBatch, commit: Committer) -> Counts:
        """Counts: conversions, deletions, renames, patches, files, bytes."""
        by_operation = work.figures.by_operation
        counts = {
            "conversions": by_operation.get("CONVERT", 0),
            "deletions": by_operation.get("DELETE", 0),
            "renames": by_operation.get("RENAME", 0),
            "patches": by_operation.get("UPDATE", 0),
        }
        done = []
        if work.aliases_count and work.marked:
            with commit("pending") as txn:
                mark_pending(work, dict.fromkeys(work.marked, work.manifest.batch_id), txn)
        for name, table, rows, count in (
            ("amendment", AMENDMENT, work.amendments, work.amendments_count),
            ("alias", ALIAS, work.aliases, work.aliases_count),
        ):
            if not count:
                continue
            with commit(name) as txn:
                work.lake.append(rows, table, txn, rows=count)
            done.append(work.lake.written(table, txn))
        return {**counts, **{key: sum(one[key] for one in done) for key in ("files", "bytes", "commits")}}


@dataclass(frozen=True)
class MoveProcess:
    """Changed rows in the Data Table: every touched row once, by the strategy that was chosen."""

    table: Table
    name: str = "data"
    commits: tuple[str, ...] = ("operation", "original", "move", "rows", "pending")
    moving: ClassVar[tuple[str, ...]] = ("move", "rows")
    """The commits to the Data Table."""

    def run(self, work: MutationBatch, commit: Committer) -> Counts:
        """Counts: operations, changed, bytes_changed, files, files_rewritten, bytes, bytes_rewritten."""
        changes, transactions = work.changes, []
        if changes.operation_rows:
            with commit("operation") as txn:
                work.lake.append(self._operations(work), OPERATION, txn, rows=changes.operation_rows)
        if work.originals.num_rows:
            with commit("original") as txn:
                work.lake.append(work.originals, ORIGINAL, txn, rows=work.originals.num_rows)
        strategies = {choice.strategy for choice in work.choices.values()}
        if "deletion_vectors" in strategies:
            work.lake.set_property(self.table, "delta.enableDeletionVectors", "true")
        if "overwrite" in strategies and changes.changed_rows:
            with commit("move") as txn:
                self._overwrite(work, txn)
            transactions.append(txn)
        elif changes.changed_rows:
            # Where every organization waits as aliases only patched rows are written: nothing moves by operation.
            if changes.by_operation and work.moved:
                with commit("move") as txn:
                    self._move(work, txn)
                transactions.append(txn)
            if changes.rows_count:
                with commit("rows") as txn:
                    self._merge(work, txn)
                transactions.append(txn)
        waits = {*work.was_pending, *work.marked}
        if settled := [name for name in work.moved if name in waits]:
            with commit("pending") as txn:
                mark_pending(work, dict.fromkeys(settled), txn)
        written = work.lake.written(self.table, *transactions)
        rewritten = work.lake.rewritten(self.table, *transactions)
        counts = {"changed": changes.changed_rows, "bytes_changed": work.bytes_changed}
        if work.figures.rows_in:
            counts["operations"] = work.settled.cascades.operations
        return {**counts, **written, **rewritten}

    def _operations(self, work: MutationBatch) -> pa.Table:
        rows = work.changes.operations
        return stamped_here(rows, work.manifest) if isinstance(rows, pa.Table) else stamped(rows, work.manifest)

    def _move(self, work: MutationBatch, txn: Transaction) -> None:
        work.lake.move(
            work.changes.operations,
            self.table,
            txn,
            organizations=work.moved,
            stamp=work.manifest.batch_id,
            rows=work.changes.operation_rows,
        )

    def _merge(self, work: MutationBatch, txn: Transaction) -> None:
        work.lake.merge(
            work.changes.rows,
            self.table,
            txn,
            on=KEY,
            update=("person_id", "batch_id", "engagement"),
            fill=("engagement",),
            within=work.changes.within,
            rows=work.changes.rows_count,
        )

    def _overwrite(self, work: MutationBatch, txn: Transaction) -> None:
        pinned = work.manifest.table_versions[self.table.name]
        rows = work.lake.frame(work.changes.rows)
        new = rows.select(*KEY, *(F.col(name).alias(f"new_{name}") for name in ("person_id", "batch_id", "engagement")))
        new = new.withColumn("changes", F.lit(True))
        standing = work.lake.read(self.table, pinned).where(
            any_of("organization_id", work.changes.within["organization_id"])
        )
        joined = standing.join(new, list(KEY), "left")
        frame = joined.withColumns(
            {
                "person_id": F.when(F.col("changes"), F.col("new_person_id")).otherwise(F.col("person_id")),
                "batch_id": F.coalesce("new_batch_id", "batch_id"),
                "engagement": F.coalesce("new_engagement", "engagement"),
            }
        )
        work.lake.overwrite(frame, self.table, txn)


def move_targets(table: Table) -> dict[str, Table | None]:
    """Which table each commit of `MoveProcess` writes."""
    return {
        "data/operation": OPERATION,
        "data/original": ORIGINAL,
        "data/move": table,
        "data/rows": table,
        "data/pending": PENDING,
    }


def replaced(work: MutationBatch) -> Mapping[str | None, int]:
    """Organization -> bytes of its files that moving the batch's rows has replaced, as `tables.touched` says it."""
    if not work.changes.changed_rows:
        return {}
    transactions = [work.manifest.transaction(MoveProcess.name, commit) for commit in MoveProcess.moving]
    return affected_files.replaced(work.lake.uri(work.data), transactions)


@dataclass(frozen=True)
class NameProcess:
    """Names that changed; a rename writes one row here and none in the Data Table."""

    name: str = "mapping"
    commits: tuple[str, ...] = ("merge",)

    def run(self, work: MutationBatch, commit: Committer) -> Counts:
        """Counts: names_changed, files, bytes."""
        names = work.names
        counts = {"names_changed": names.rows_count}
        if not names.rows_count:
            return counts
        with commit("merge") as txn:
            work.lake.merge(
                names.rows,
                MAPPING,
                txn,
                on=("organization_id", "id"),
                update=("name", "name_ts", "batch_id"),
                insert=True,
                within={"organization_id": names.organizations},
                rows=names.rows_count,
            )
        return {**counts, **work.lake.written(MAPPING, txn)}


@dataclass(frozen=True)
class AnnounceProcess:
    """One notification for each row that looks different now, after readers can see it."""

    name: str = "notification"
    commits: tuple[str, ...] = ("append",)

    def run(self, work: MutationBatch, commit: Committer) -> Counts:
        """Counts: inserted, updated, deleted, notifications, files, bytes."""
        changes = work.changes
        counts = {
            "inserted": changes.inserted,
            "updated": changes.updated,
            "deleted": changes.deleted,
            "notifications": changes.announced,
        }
        if not changes.announced:
            return counts
        with commit("append") as txn:
            work.lake.append(changes.notifications, NOTIFICATION, txn, rows=changes.announced)
        return {**counts, **work.lake.written(NOTIFICATION, txn)}


def mark_pending(work: MutationBatch, since: dict[str, int] | dict[str, None], txn: Transaction) -> None:
    """Note from which batch on the Data Table does not show an organization's edges; None: it shows all."""
    rows = table_of(
        (
            {"organization_id": name, "pending_from": batch_id, "batch_id": work.manifest.batch_id}
            for name, batch_id in since.items()
        ),
        PENDING,
    )
    work.lake.merge(
        rows, PENDING, txn, on=("organization_id",), update=("pending_from", "batch_id"), insert=True, rows=len(since)
    )
