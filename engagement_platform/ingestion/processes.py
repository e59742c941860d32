"""The processes of engagement ingestion, in their order: quarantine, mapping, data, notification.

Each commits rows that the batch has made, and says what they wrote. Deciding is `settle`, making rows is `many` and
`few`.
"""

from __future__ import annotations

from dataclasses import dataclass

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.model import Counts, Transaction
from engagement_platform.ingestion.batch import EngagementBatch
from engagement_platform.ingestion.settle import Verdict
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import MAPPING, NOTIFICATION, ORIGINAL, QUARANTINE, SAID_NAME, SUPERSEDED


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
        with commit("append") as txn:
            work.lake.append(work.rejected_rows(), QUARANTINE, txn, rows=quarantined)
        return {**counts, **work.lake.written(QUARANTINE, txn)}


@dataclass(frozen=True)
class MappingProcess:
    """Names, newest evidence first; what was said is kept, since a late request asks for the names of its time."""

    name: str = "mapping"
    commits: tuple[str, ...] = ("said", "merge")

    def run(self, work: EngagementBatch, commit: Committer) -> Counts:
        """Counts: names_new, names_changed, files, bytes."""
        if not work.summary.named:
            return {}
        with commit("said") as txn:
            work.lake.append(work.said_names(), SAID_NAME, txn, rows=work.summary.named)
        changes = work.name_changes()
        counts = {"names_new": changes.new, "names_changed": changes.changed}
        if not changes.new + changes.changed:
            return counts
        with commit("merge") as txn:
            if changes.changed:
                work.lake.merge(
                    changes.rows,
                    MAPPING,
                    txn,
                    on=("organization_id", "id"),
                    update=("name", "name_ts", "batch_id"),
                    insert=True,
                    within={"organization_id": work.summary.organizations},
                    rows=changes.new + changes.changed,
                )
            else:
                work.lake.append(changes.rows, MAPPING, txn, rows=changes.new)
        return {**counts, **work.lake.written(MAPPING, txn)}


@dataclass(frozen=True)
class DataProcess:
    """New engagements are appended; newer versions of known ones are merged, and only then is there a MERGE.

    What they replace is kept before, since afterwards it stands nowhere.
    """

    table: Table
    name: str = "data"
    commits: tuple[str, ...] = ("original", "superseded", "update", "insert")

    def run(self, work: EngagementBatch, commit: Committer) -> Counts:
        """Counts: landed, inserted, updated, duplicates, files, bytes."""
        counts = {
            "landed": work.inserted + work.updated,
            "inserted": work.inserted,
            "updated": work.updated,
            "duplicates": work.duplicates,
        }
        transactions = []
        if work.originals:
            with commit("original") as txn:
                work.lake.append(work.original_rows(), ORIGINAL, txn, rows=work.originals)
        if work.superseded:
            with commit("superseded") as txn:
                work.lake.append(work.superseded_rows(), SUPERSEDED, txn, rows=work.superseded)
        if work.updated:
            with commit("update") as txn:
                self._update(work, txn)
            transactions.append(txn)
        if work.inserted:
            with commit("insert") as txn:
                work.lake.append(work.data_rows(Verdict.INSERT), self.table, txn, rows=work.inserted)
            transactions.append(txn)
        return {**counts, **work.lake.written(self.table, *transactions)}

    def _update(self, work: EngagementBatch, txn: Transaction) -> None:
        key = ("organization_id", "engagement_date", "engagement_id")
        work.lake.merge(
            work.data_rows(Verdict.UPDATE),
            self.table,
            txn,
            on=key,
            update=[column for column in self.table.column_names if column not in key],
            newer_by="version",
            within=work.touched(),
            rows=work.updated,
        )


@dataclass(frozen=True)
class NotificationProcess:
    """One row for each insert, update and delete, after the Data Table holds it."""

    name: str = "notification"
    commits: tuple[str, ...] = ("append",)

    def run(self, work: EngagementBatch, commit: Committer) -> Counts:
        """Counts: notifications, files, bytes."""
        notifications = work.inserted + work.updated - work.unseen
        if not notifications:
            return {"notifications": 0}
        with commit("append") as txn:
            work.lake.append(work.notification_rows(), NOTIFICATION, txn, rows=notifications)
        return {"notifications": notifications, **work.lake.written(NOTIFICATION, txn)}
